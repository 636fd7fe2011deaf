package mutex_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func locker(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
	return mutex.New(k, name, nil)
}

func BenchmarkAcknowledged(b *testing.B) { benchmarks.Acknowledged(b, locker) }

func BenchmarkHandoff(b *testing.B) { benchmarks.Handoff(b, locker, 1, 64) }

func BenchmarkContended(b *testing.B) { benchmarks.Contended(b, locker, 8, 64) }

// sharedTurn returns a turn of a mutex whose lease callers of the process share.
func sharedTurn(b *testing.B) (x *benchmarks.Inside, turn func()) {
	x = benchmarks.NewInside(b)
	return x, x.Pair(must.Get(mutex.New(x.Keeper, "x", &mutex.Options{Linger: 20 * time.Millisecond}))(b).Lock)
}

// BenchmarkLinger is a turn that is granted inside the process, by one goroutine.
func BenchmarkLinger(b *testing.B) {
	x, turn := sharedTurn(b)
	x.ByOne(turn)
}

// BenchmarkLingerContended is the same with 8 goroutines for each processor that take turns.
func BenchmarkLingerContended(b *testing.B) {
	x, turn := sharedTurn(b)
	x.ByMany(8, turn)
}

// BenchmarkLingerTwoProcesses lets two processes always want the mutex, by one goroutine each: their turns in a second, and the smaller part.
func BenchmarkLingerTwoProcesses(b *testing.B) {
	for name, linger := range map[string]time.Duration{"0": 0, "10ms": 10 * time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			var loops []benchmarks.Loop
			for _, k := range benchmarks.Keepers(b, 2) {
				m := must.Get(mutex.New(k, "x", &mutex.Options{Linger: linger}))(b)
				loops = append(loops, benchmarks.Loop{Acquire: m.Lock, Callers: 1})
			}
			const d = 2 * time.Second
			for b.Loop() {
				did := benchmarks.Together(b, d, loops...)
				one, two := float64(did[0].Turns.Load()), float64(did[1].Turns.Load())
				b.ReportMetric((one+two)/d.Seconds(), "turns/s")
				b.ReportMetric(min(one, two)/(one+two)*100, "%smaller")
			}
		})
	}
}
