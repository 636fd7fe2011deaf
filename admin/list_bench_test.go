package admin_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// BenchmarkListBesideLocks measures how long a lock and its release take while nothing else happens, and while 100,000 names are
// listed again and again; how long a listing takes, and by how much the heap grows during it.
func BenchmarkListBesideLocks(b *testing.B) {
	const names = 100_000
	s := redistest.Start(b)
	rdb := s.Client()
	for from := 0; from < names; from += 1000 {
		pipe := rdb.Pipeline()
		for i := from; i < from+1000; i++ {
			pipe.Set(background, fmt.Sprint("lock:held:", i), "52fdfc07-2182-454f-963f-5f0f9a621d72:e:30000.6000", time.Hour)
		}
		if _, err := pipe.Exec(background); err != nil {
			b.Fatal(err)
		}
	}
	other := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer other.Close()
	locking, listing := must(lockkeeper.New(rdb, nil)), must(lockkeeper.New(other, nil))
	defer locking.Close()
	defer listing.Close()
	m := must(mutex.New(locking, "x", nil))
	latencies := func(until func(n int) bool) (list []time.Duration) {
		for n := 0; until(n); n++ {
			began := time.Now()
			if err := must(m.Lock(background)).Release(background); err != nil {
				b.Fatal(err)
			}
			list = append(list, time.Since(began))
		}
		slices.Sort(list)
		return list
	}
	report := func(list []time.Duration, what string) {
		b.ReportMetric(float64(list[len(list)/2].Microseconds()), "p50-µs-"+what)
		b.ReportMetric(float64(list[len(list)*99/100].Microseconds()), "p99-µs-"+what)
	}
	alone := latencies(func(n int) bool { return n < 5000 }) // reported later, since the loop resets what was
	for b.Loop() {
		done := make(chan uint64)
		began := time.Now()
		go func() {
			var before, now runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			n, grown := 0, uint64(0)
			for _, err := range admin.List(background, listing, nil) {
				if err != nil {
					b.Error(err)
				}
				if n++; n%10_000 == 0 {
					runtime.GC()
					runtime.ReadMemStats(&now)
					grown = max(grown, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
				}
			}
			if n < names {
				b.Errorf("%d names", n)
			}
			done <- grown
		}()
		var grown uint64
		list := latencies(func(int) bool {
			select {
			case grown = <-done:
				return false
			default:
				return true
			}
		})
		report(alone, "alone")
		report(list, "beside")
		b.ReportMetric(time.Since(began).Seconds(), "s/list")
		b.ReportMetric(float64(grown)/1024, "heap-KB")
	}
}
