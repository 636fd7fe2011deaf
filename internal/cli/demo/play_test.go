package demo

import (
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
)

func TestOutcomeOfAnAct(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(p *play)
		want  timeline.Outcome
		code  int
	}{
		{"nothing went wrong", func(*play) {}, timeline.Kept, 0},
		{"two held the lock", func(p *play) { p.suspected("two held the lock") }, timeline.Violated, exitViolated},
		{"two held the lock, but a process was paused for long", func(p *play) {
			p.suspected("two held the lock")
			p.losses = 1
		}, timeline.Incomplete, exitIncomplete},
		{"a lease was lost, and only one held the lock", func(p *play) { p.losses = 1 }, timeline.Kept, 0},
		{"out of order", func(p *play) { p.violated("out of order") }, timeline.Violated, exitViolated},
		{"a smaller fence", func(p *play) { p.rank(8); p.rank(7) }, timeline.Violated, exitViolated},
		{"larger fences, one of them twice", func(p *play) { p.rank(7); p.rank(8); p.rank(7) }, timeline.Kept, 0},
		{"too slow", func(p *play) { p.perform = func() error { return errLate } }, timeline.Incomplete, exitIncomplete},
		{"too slow after a violation", func(p *play) {
			p.perform = func() error { p.violated("out of order"); return errLate }
		}, timeline.Violated, exitViolated},
	} {
		p := newPlay(&timeline.Act{})
		p.ctx, p.display = t.Context(), &plainDisplay{t.Output()}
		p.perform = func() error { p.finish("it works"); return nil }
		c.given(p)
		if err := p.run(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if p.Outcome != c.want {
			t.Errorf("%s: outcome %d, want %d: %s", c.name, p.Outcome, c.want, p.Verdict)
		}
		kept := &timeline.Act{Outcome: timeline.Kept}
		err, code := outcome([]*timeline.Act{kept, p.Act, kept}), 0
		if e := (*exit.Error)(nil); errors.As(err, &e) {
			code = e.Code
		}
		if code != c.code {
			t.Errorf("%s: exit code %d, want %d: %v", c.name, code, c.code, err)
		}
	}
}
