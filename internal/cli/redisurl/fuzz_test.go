package redisurl

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

// dials reports whether a client of the URL would connect before it is used.
func dials(raw string) bool {
	plain, err := url.QueryUnescape(raw)
	return err == nil && strings.Contains(plain, "min_idle_conns")
}

// FuzzRedisURL checks that any input gives either a client or a usage error, which shows no password.
func FuzzRedisURL(f *testing.F) {
	for _, s := range [][2]string{
		{"redis", "127.0.0.1:6379/0"},
		{"rediss", "127.0.0.1:6379?skip_verify=true"},
		{"unix", "/tmp/redis.sock?db=1"},
		{"redis+sentinel", "127.0.0.1:26379?master_name=main&addr=127.0.0.2:26379"},
		{"redis+cluster", "127.0.0.1:7000?addr=127.0.0.2:7000"},
		{"redis", "127.0.0.1?pool_size=-1"},
		{"redis", "127.0.0.1?min_idle_conns=2&max_idle_conns=1&max_concurrent_dials=0"},
		{"redis+", "127.0.0.1"},
		{"", "%zz"},
		{"redis", "[::1"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, scheme, rest string) {
		if dials(rest) {
			return
		}
		for _, raw := range []string{scheme + "://" + rest, scheme + "://u:" + secret + "@" + rest, scheme + ":" + rest} {
			if raw == "" {
				continue
			}
			target, err := Parse(raw, Credentials{})
			if err == nil {
				_ = target.Client().Close()
				continue
			}
			var own *exit.Error
			check.That(t, errors.As(err, &own) && own.Code == exit.Usage && target == nil, "%q: %v", raw, err)
			check.That(t, !strings.Contains(err.Error(), secret), "%q: the password is shown: %v", raw, err)
		}
	})
}
