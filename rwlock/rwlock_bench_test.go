package rwlock_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

func reader(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	l, err := rwlock.New(k, name, nil)
	return benchmarks.Func(l.RLock), err
}

func writer(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return rwlock.New(k, name, nil)
}

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, writer, 1, 64) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, writer, 8, 64) }

func BenchmarkAdmit(b *testing.B) { benchmarks.Admit(b, 1000, writer, reader) }

// sharedRead returns a read of a lock whose read lease the readers of the process share.
func sharedRead(b *testing.B) (x *benchmarks.Inside, read func()) {
	x = benchmarks.NewInside(b)
	return x, x.Pair(must.Get(rwlock.New(x.Keeper, "x", &rwlock.Options{Linger: 20 * time.Millisecond}))(b).RLock)
}

// BenchmarkLinger is a read that is granted inside the process, by one goroutine.
func BenchmarkLinger(b *testing.B) {
	x, read := sharedRead(b)
	x.ByOne(read)
}

// BenchmarkLingerParallel is the same by as many goroutines as there are processors.
func BenchmarkLingerParallel(b *testing.B) {
	x, read := sharedRead(b)
	x.ByMany(1, read)
}

var sweptLingers = []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond}

// BenchmarkLingerBesideWriter lets 64 readers of one process read as fast as they can beside a writer of another one, every 100 ms: the reads in
// a second, and the writer's longest wait.
func BenchmarkLingerBesideWriter(b *testing.B) {
	for _, linger := range sweptLingers {
		b.Run(linger.String(), func(b *testing.B) {
			ks := benchmarks.Keepers(b, 2)
			l := must.Get(rwlock.New(ks[0], "x", &rwlock.Options{Linger: linger}))(b)
			w := must.Get(rwlock.New(ks[1], "x", nil))(b)
			const d = 2 * time.Second
			for b.Loop() {
				did := benchmarks.Together(b, d, benchmarks.Loop{Acquire: l.RLock, Callers: 64}, benchmarks.Loop{Acquire: w.Lock, Callers: 1, Pause: 100 * time.Millisecond})
				b.ReportMetric(float64(did[0].Turns.Load())/d.Seconds(), "reads/s")
				b.ReportMetric(float64(did[1].Longest.Load())/1e6, "ms_longest_wait")
			}
		})
	}
}

// BenchmarkLingerHalfWrites lets two processes read and write in turn, by four goroutines each, with the same rate without Linger.
func BenchmarkLingerHalfWrites(b *testing.B) {
	rate := func(b *testing.B, linger time.Duration) float64 {
		var loops []benchmarks.Loop
		for _, k := range benchmarks.Keepers(b, 2) {
			l := must.Get(rwlock.New(k, "x", &rwlock.Options{Linger: linger}))(b)
			loops = append(loops, benchmarks.Loop{Acquire: l.RLock, Callers: 2}, benchmarks.Loop{Acquire: l.Lock, Callers: 2})
		}
		const d = 2 * time.Second
		var all int64
		for _, did := range benchmarks.Together(b, d, loops...) {
			all += did.Turns.Load()
		}
		return float64(all) / d.Seconds()
	}
	for b.Loop() {
		without, with := rate(b, 0), rate(b, 10*time.Millisecond)
		b.ReportMetric(with, "turns/s")
		b.ReportMetric(with/without, "of_without")
	}
}
