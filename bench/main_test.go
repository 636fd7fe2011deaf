package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

func TestUnknownCasesAreRefused(t *testing.T) {
	var out, errs strings.Builder
	if code := run([]string{"-only", "uncontended,speed"}, &out, &errs); code != 2 {
		t.Errorf("the code is %d, want 2", code)
	}
	if got := errs.String(); !strings.Contains(got, `"speed"`) || !strings.Contains(got, "handoff") {
		t.Errorf("the error is %q, want it to name what was asked for and what there is", got)
	}
}

func TestRunMeasuresEveryLibraryAndDrawsCharts(t *testing.T) {
	redistest.RequireBinary(t)
	var out, errs strings.Builder
	dir := t.TempDir()
	if code := run([]string{"-quick", "-only", "uncontended", "-json", "-plot", dir}, &out, &errs); code != 0 {
		t.Fatalf("the code is %d: %s%s", code, errs.String(), out.String())
	}
	var got struct {
		Cases   []result
		Machine machine
	}
	must.OK(t, json.Unmarshal([]byte(out.String()), &got))
	measured := map[string]bool{}
	for _, x := range got.Cases {
		if x.Metric == "ns/op" && 0 < x.Min && x.Min <= x.Value && x.Value <= x.Max {
			measured[x.Case+" "+x.Library] = true
		}
	}
	for _, l := range append(append(floors, endless), libraries...) {
		for _, of := range []string{"uncontended/goroutines=1", "uncontended/goroutines=64", "uncontended/goroutines=1024"} {
			if (!l.etcd || got.Machine.Etcd != "") && !measured[of+" "+l.name] {
				t.Errorf("%s: no figures of %s", of, l.name)
			}
		}
	}
	svg := must.Get(os.ReadFile(filepath.Join(dir, "uncontended.svg")))(t)
	for _, want := range []string{"<svg", "rueidislock", "64 goroutines"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("the chart lacks %q", want)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "handoff.svg")); !os.IsNotExist(err) {
		t.Errorf("a chart of what was not measured: %v", err)
	}
}

func TestKeysOfARunAreDeletedAfterEachTurn(t *testing.T) {
	s := redistest.Start(t)
	b := &bench{at: target{redis: "redis://" + s.Addr}, results: &results{}, id: "bench-test"}
	b.rdb = b.at.rdb(t)
	must.OK(t, b.rdb.Set(ctx, "another's", "", 0).Err())
	b.turn("case", "library", func(s *stage) { s.must(once(libraries[0].open(s, b.at, ttl).lock(b.name()))) })
	keys, err := b.rdb.Keys(ctx, "*").Result()
	if err != nil || len(keys) != 1 {
		t.Errorf("the keys %q, %v are there; want only another's", keys, err)
	}
	if b.failed {
		t.Error(b.results.notes)
	}
	b.turn("case", "library", func(s *stage) { s.Fatal("broken") })
	if !b.failed || len(b.results.notes) != 1 || !strings.HasSuffix(b.results.notes[0], "broken") {
		t.Errorf("after a turn that failed: %v, %q", b.failed, b.results.notes)
	}
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
					if left, err := look.left(ctx, name); err != nil || left > time.Second {
						t.Errorf("the lease lasts for %v more, %v; want at most a second", left, err)
					}
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

func TestRetainedIsMeasuredAgainstTheSameWithout(t *testing.T) {
	redistest.RequireBinary(t)
	var out, errs strings.Builder
	if code := run([]string{"-quick", "-only", "retained", "-json"}, &out, &errs); code != 0 {
		t.Fatalf("the code is %d: %s%s", code, errs.String(), out.String())
	}
	var got struct{ Cases []result }
	must.OK(t, json.Unmarshal([]byte(out.String()), &got))
	measured := map[string]float64{}
	for _, x := range got.Cases {
		measured[x.Case+" "+x.Library+" "+x.Metric] = x.Value
	}
	for of, metric := range map[string]string{
		"retained/readers": "reads/s", "retained/writer": "x-ping", "retained/writer/network=1ms": "x-ping",
		"retained/half-writes/processes=2": "ops/s", "retained/half-writes/processes=8": "ops/s",
	} {
		for _, side := range retainSides("rwlock") {
			if measured[of+" "+side+" "+metric] <= 0 {
				t.Errorf("%s: no %s of %s", of, metric, side)
			}
		}
	}
	for of, metric := range map[string]string{
		"retained/mutex": "ns/op", "retained/mutex/in-turns": "ops/s", "retained/mutex/contended": "ops/s",
	} {
		for _, side := range retainSides("mutex") {
			if measured[of+" "+side+" "+metric] <= 0 {
				t.Errorf("%s: no %s of %s", of, metric, side)
			}
		}
	}
	// Counts, and a time that leases bound, do not depend on the machine.
	plain, retain := measured["retained/readers rwlock cmds/read"], measured["retained/readers rwlock, Retain cmds/read"]
	if plain < 1.9 || retain > plain/4 {
		t.Errorf("commands per read: %v, with Retain %v", plain, retain)
	}
	if wait := measured["retained/frozen rwlock, Retain ms/wait-max"]; wait < 1000 || wait > 5500 {
		t.Errorf("a writer waits %v ms for a process that is frozen", wait)
	}
}
