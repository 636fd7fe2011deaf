package admin_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// BenchmarkInspect measures Inspect of a rate limit with many permits that have not returned, and the CPU time of the server.
func BenchmarkInspect(b *testing.B) {
	for _, n := range []int{20_000, 200_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			s := redistest.Start(b)
			rdb := s.Client()
			k := must(lockkeeper.New(rdb, nil))
			defer k.Close()
			set := lua.RateLimit
			keys := must(protocol.KeysOf("lock:", "x", set.KeyKind, set.PlainKey))
			now := time.Now().UnixMicro()
			for from := 0; from < n; from += 1000 {
				var list []redis.Z
				for i := from; i < from+1000; i++ {
					list = append(list, redis.Z{Score: -float64(now + int64(i)), Member: fmt.Sprintf("@keeper:%d:300000.6000c1", i)})
				}
				must(rdb.ZAdd(background, keys.Lock, list...).Result())
			}
			limits := protocol.LimitsArg(0, n, time.Hour.Milliseconds())
			must(rdb.HSet(background, keys.Meta, "limits", limits+" "+limits, "seq", now+int64(n)).Result())
			before := worked(rdb)
			var took time.Duration
			for b.Loop() {
				began := time.Now()
				in := must(admin.Inspect(background, k, ratelimit.Kind, "x"))
				took += time.Since(began)
				if len(in.Holders) != n || in.Limits == nil || in.Limits.Used != n {
					b.Fatalf("%d holders, %+v", len(in.Holders), in.Limits)
				}
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*n), "ns/permit")
			b.ReportMetric((worked(rdb)-before)*1e9/float64(b.N*n), "server-ns/permit")
		})
	}
}

// worked returns for how many seconds of CPU time the server has run.
func worked(rdb *redis.Client) (seconds float64) {
	for line := range strings.Lines(must(rdb.Info(background, "cpu").Result())) {
		for _, name := range []string{"used_cpu_user:", "used_cpu_sys:"} {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), name); ok {
				seconds += must(strconv.ParseFloat(text, 64))
			}
		}
	}
	return seconds
}
