package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		child(role)
		return
	}
	os.Exit(m.Run())
}

func TestArgumentsAreRefused(t *testing.T) {
	for _, x := range []struct {
		says string
		args []string
	}{
		{`"speed": there is no such case; there are `, []string{"-only", "uncontended,speed"}},
		{"needs a whole run", []string{"-page", "x.md", "-quick"}},
		{"needs a whole run", []string{"-page", "x.md", "-only", "limit"}},
	} {
		var errs strings.Builder
		code := run(x.args, &errs, &errs)
		check.That(t, code == 2 && strings.Contains(errs.String(), x.says), "%q: %d, %s", x.args, code, errs.String())
	}
}

// measure runs these cases quickly. The keys of figures are the case, the library and the metric.
func measure(t *testing.T, only string, args ...string) (figures map[string]result, m machine) {
	t.Helper()
	redistest.RequireBinary(t)
	var out, errs strings.Builder
	code := run(append(args, "-quick", "-json", "-only", only), &out, &errs)
	must.That(t, code == 0, "the code is %d: %s%s", code, errs.String(), out.String())
	var got struct {
		Cases   []result
		Machine machine
	}
	must.OK(t, json.Unmarshal([]byte(out.String()), &got))
	figures = map[string]result{}
	for _, x := range got.Cases {
		figures[x.Case+" "+x.Library+" "+x.Metric] = x
	}
	return figures, got.Machine
}

func TestRunMeasuresEveryLibraryAndDrawsCharts(t *testing.T) {
	dir := t.TempDir()
	figures, machine := measure(t, "uncontended", "-plot", dir)
	for _, l := range append(append(floors, endless), libraries...) {
		for _, of := range []string{"uncontended/goroutines=1", "uncontended/goroutines=64", "uncontended/goroutines=1024"} {
			x := figures[of+" "+l.name+" ns/op"]
			if (!l.etcd || machine.Etcd != "") && (x.Min <= 0 || x.Value < x.Min || x.Max < x.Value) {
				t.Errorf("%s: no figures of %s", of, l.name)
			}
		}
	}
	svg := must.Get(os.ReadFile(filepath.Join(dir, "uncontended.svg")))(t)
	for _, want := range []string{"<svg", "rueidislock", "64 goroutines"} {
		check.That(t, strings.Contains(string(svg), want), "the chart lacks %q", want)
	}
	_, err := os.Stat(filepath.Join(dir, "handoff.svg"))
	check.That(t, os.IsNotExist(err), "a chart of what was not measured: %v", err)
}

func TestKeysOfARunAreDeletedAfterEachTurn(t *testing.T) {
	s := redistest.Start(t)
	b := &bench{at: target{redis: "redis://" + s.Addr}, results: &results{}, id: "bench-test"}
	b.rdb = b.at.rdb(t)
	must.OK(t, b.rdb.Set(ctx, "another's", "", 0).Err())
	b.turn("case", "library", func(s *stage) { s.must(once(libraries[0].open(s, b.at, ttl).lock(b.name()))) })
	keys, err := b.rdb.Keys(ctx, "*").Result()
	check.That(t, err == nil && len(keys) == 1, "the keys %q, %v are there; want only another's", keys, err)
	if b.failed {
		t.Error(b.results.notes)
	}
	b.turn("case", "library", func(s *stage) { s.Fatal("broken") })
	check.That(t, b.failed && len(b.results.notes) == 1 && strings.HasSuffix(b.results.notes[0], "broken"),
		"after a turn that failed: %v, %q", b.failed, b.results.notes)
}

func TestChildHoldsUntilItIsKilled(t *testing.T) {
	s := redistest.Start(t)
	b := &bench{at: target{redis: "redis://" + s.Addr}, results: &results{}, id: "bench-test"}
	for _, l := range libraries {
		if l.etcd || l.renewals == 0 { // a lease that is not renewed could end before it is looked at
			continue
		}
		t.Run(strings.ReplaceAll(l.name, " ", "-"), func(t *testing.T) {
			err := play(func(s *stage) {
				names := []string{b.name(), b.name()}
				held, kill := b.spawn(s, l, time.Second, names)
				s.must(<-held)
				arrived := b.waiters(s, l, names)
				look := l.open(s, b.at, ttl)
				for _, name := range names {
					left, err := look.left(ctx, name)
					check.That(t, err == nil && left <= time.Second, "the lease lasts for %v more, %v; want at most a second", left, err)
				}
				select {
				case a := <-arrived:
					s.Fatalf("somebody else holds it, too: %v", a)
				default:
				}
				kill()
				for range names {
					if a := <-arrived; a.err != nil {
						t.Error(a.err)
					}
				}
			})
			must.Report(t, err)
		})
	}
}

func TestLingerIsMeasuredAgainstTheSameWithout(t *testing.T) {
	figures, _ := measure(t, "linger")
	for _, kind := range []string{"rwlock", "mutex", "semaphore"} {
		for _, x := range sidesOf("lockkeeper "+kind, lingerTime) {
			check.That(t, figures["linger/inside "+x.name+" ns/op"].Value > 0, "no figures of %s", x.name)
		}
	}
	// Counts, and a time that leases bound, do not depend on the machine.
	plain, shared := figures["linger/readers lockkeeper rwlock cmds/1000-reads"].Value, figures["linger/readers lockkeeper rwlock, Linger 20ms cmds/1000-reads"].Value
	check.That(t, plain >= 1900 && shared <= plain/4, "commands per 1,000 reads: %v, with Linger %v", plain, shared)
	wait := figures["linger/frozen lockkeeper rwlock, Linger 10ms ms/wait-max"].Value
	check.That(t, wait > 0 && wait <= 1000, "a writer waits %v ms for a process that is idle and frozen", wait)
}
