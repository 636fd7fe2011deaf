package demo

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// The workers of the demo run the test binary.
func TestMain(m *testing.M) {
	if worker := WorkerCommand(); len(os.Args) > 1 && os.Args[1] == worker.Name() {
		worker.SetArgs(os.Args[2:])
		_ = worker.Execute()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestOutcomeOfAnAct(t *testing.T) {
	two := func(p *play) { // hold the lock at the same time
		p.mark(&worker{lane: 0}, p.start, timeline.Holding, "", "")
		p.mark(&worker{lane: 1}, p.start.Add(time.Millisecond), timeline.Holding, "", "")
	}
	late := func(p *play) {
		ctx, cancel := context.WithTimeoutCause(p.ctx, 0, errLate)
		defer cancel()
		p.ctx = ctx
		p.pause(time.Hour)
	}
	ended := func(p *play) { p.handle(event{worker: &worker{}, ended: true}) }
	for name, c := range map[string]struct {
		perform func(p *play)
		want    timeline.Outcome
		code    int
	}{
		"nothing goes wrong":      {func(*play) {}, timeline.Kept, 0},
		"larger fences":           {func(p *play) { p.rank(7); p.rank(8) }, timeline.Kept, 0},
		"a smaller fence":         {func(p *play) { p.rank(8); p.rank(7) }, timeline.Violated, exitViolated},
		"the same fence":          {func(p *play) { p.rank(8); p.rank(8) }, timeline.Violated, exitViolated},
		"two hold the lock":       {two, timeline.Violated, exitViolated},
		"two, as one was paused":  {func(p *play) { two(p); p.losses++ }, timeline.Incomplete, exitIncomplete},
		"one was paused":          {func(p *play) { p.losses++ }, timeline.Kept, 0},
		"too slow":                {late, timeline.Incomplete, exitIncomplete},
		"two, and too slow":       {func(p *play) { two(p); late(p) }, timeline.Violated, exitViolated},
		"a worker ends by itself": {ended, timeline.Pending, 0},
	} {
		p := &play{limit: 1, others: 2, Act: timeline.Act{Lanes: []string{"a", "b"}}}
		p.perform = func(p *play) string { c.perform(p); return "it works" }
		err := p.run(t.Context(), "", nil, &display{})
		check.That(t, p.Outcome == c.want && (err == nil) == (c.want == timeline.Kept),
			"%s: outcome %d, want %d: %s, %v", name, p.Outcome, c.want, p.Verdict, err)
		failed := &exit.Error{}
		if errors.As(err, &failed); failed.Code != c.code {
			t.Errorf("%s: exit code %d, want %d", name, failed.Code, c.code)
		}
	}
}

// A machine that is too slow makes the demo end with code 2. Then it is repeated, a few times.
func TestDemo(t *testing.T) {
	defer func(was bool) { canFreeze = was }(canFreeze)
	for _, want := range [][]string{
		{"\n1. Fair lock: ", " is killed while it holds the lock; w", " is frozen in the queue\n", " the frozen waiter cost the others ",
			"\n2. Fence: ", "A+1░", "A+1!", "ok: without a check A+1 has replaced B+2, with one it was refused; A was told",
			"\n3. Read-write lock: ", " M/s\n", " writes\n", " million reads per second, none during a write; the writer waited",
			"\n4. Rate limit: ", " c4 is killed during a call", "ok: at most 8 calls in any 600ms and 3 at once; the permit of the killed"},
		{"\n1. Fair lock: ", " is killed while it holds the lock\n", "ok: 1 holder at a time", "\n2. Read-write lock: ", "ok: ", "\n3. Rate limit: ", "ok: "},
	} {
		var text string
		for attempt := 1; ; attempt++ {
			out := must.Get(os.Create(t.TempDir() + "/out"))(t)
			_, err := Play(t.Context(), out)
			b, _ := os.ReadFile(out.Name())
			if text = "\n" + string(b); err == nil {
				break
			}
			e := (*exit.Error)(nil)
			must.That(t, errors.As(err, &e) && e.Code == exitIncomplete && attempt != 4, "%v:\n%s", err, text)
		}
		rest, found := text, false
		for _, s := range want {
			if _, rest, found = strings.Cut(rest, s); !found {
				t.Fatalf("no %q in its place:\n%s", s, text)
			}
		}
		check.That(t, !strings.Contains(text, "\x1b"), "escape sequences without a terminal: %q", text)
		canFreeze = false // as on Windows
	}
}
