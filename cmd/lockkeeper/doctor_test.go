package main

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// doctorFinding is a finding of doctor --json, decoded by its documented names.
type doctorFinding struct {
	Check, Status, Detail, Advice string
	ACLRules                      string `json:"acl_rules"`
	Nodes                         []string
}

type doctorReport struct {
	*testing.T
	Status, URL, Kind, Prefix string
	Checks                    []doctorFinding
}

// examine runs doctor --json, which must end in time and with the exit code.
func examine(t *testing.T, code int, url string, args ...string) *doctorReport {
	t.Helper()
	limit := time.Minute // a busy machine can take longer than the default of 10 s
	if i := slices.Index(args, "--timeout"); i >= 0 {
		limit, _ = time.ParseDuration(args[i+1])
	} else {
		args = append(args, "--timeout", limit.String())
	}
	start := time.Now()
	c := command(t, append([]string{"doctor", "--json", "--redis", url}, args...)...).ends(code)
	d := time.Since(start)
	check.That(t, d <= limit+10*time.Second, "it took %v", d) // which a busy machine can take to start and end the process
	r := &doctorReport{T: t}
	c.decode(r)
	return r
}

// want returns the finding of the check with the status, and with all texts in its detail, advice and ACL rules.
func (r *doctorReport) want(check, status string, texts ...string) (found doctorFinding) {
	r.Helper()
	var seen []string
	for _, c := range r.Checks {
		all := strings.Join([]string{c.Detail, c.Advice, c.ACLRules}, " | ")
		if c.Check != check {
			continue
		}
		if c.Status == status && !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(all, s) }) {
			return c
		}
		seen = append(seen, c.Status+": "+all)
	}
	r.Errorf("no %s with status %s and %q; got %q", check, status, texts, seen)
	return found
}

// wantAllOKExcept requires that all checks except those given are ok.
func (r *doctorReport) wantAllOKExcept(others ...string) {
	r.Helper()
	for _, c := range r.Checks {
		check.That(r, c.Status == "ok" || slices.Contains(others, c.Check), "%s: %s: %s", c.Check, c.Status, c.Detail)
	}
}

// wantNoKeys requires that the servers have no keys, at the latest when the key has expired by which a keeper checks a connection: one that is
// closed meanwhile does not delete it.
func wantNoKeys(t *testing.T, servers ...redistest.Client) {
	t.Helper()
	for _, rdb := range servers {
		var keys []string
		eventually(t, "there are no keys", func() bool {
			keys = rdb.Keys(ctx, "*").Val()
			return !slices.ContainsFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":connection") })
		})
		check.That(t, len(keys) == 0, "keys were not deleted: %q", keys)
	}
}

func do(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	err := s.Client().Do(ctx, args...).Err()
	must.That(t, err == nil, "%v: %v", args, err)
}

func set(t *testing.T, s *redistest.Server, name, value string) {
	t.Helper()
	do(t, s, "config", "set", name, value)
}

// goodServer starts a server with the settings that docs/operations.md recommends.
func goodServer(t *testing.T, args ...string) (*redistest.Server, string) {
	s := redistest.Start(t, append([]string{"--appendonly", "yes"}, args...)...)
	return s, "redis://" + s.Addr
}

func TestDoctorAcceptsGoodServer(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	before := s.Client().ConfigGet(ctx, "*").Val()
	for _, prefix := range []string{"lock:", "", "app:{x}:"} {
		r := examine(t, 0, url, "--prefix", prefix)
		r.wantAllOKExcept()
		check.That(t, r.Status == "ok" && r.Kind == "server" && r.Prefix == prefix && r.URL == url, "%+v", r)
		r.want("version", "ok", "Redis "+s.Client().InfoMap(ctx, "server").Item("Server", "redis_version"))
		r.want("scripts", "ok", "scripts can be loaded")
		r.want("lock", "ok", "handed over 5 times")
		checks := ""
		for _, c := range r.Checks {
			checks += c.Check + " "
		}
		if checks != "connection version role eviction memory persistence replicas "+
			"permissions pubsub scripts foreign-keys clock latency client-timeouts lock " {
			t.Errorf("the checks are %s", checks)
		}
		wantNoKeys(t, s.Client())
	}
	after := s.Client().ConfigGet(ctx, "*").Val()
	check.That(t, maps.Equal(before, after), "the settings were changed")
	c := command(t, "doctor")
	c.Env = append(c.Env, "REDIS_URL="+url)
	c.ends(0).prints("ok       eviction        noeviction\n", "errors: 0, warnings: 0, unknown: 0, ok: 15\n")
}

func TestDoctorReportsWrongSettings(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	for name, c := range map[string]struct {
		settings     []string
		code         int
		check        string
		status, says string
		other        string // another check that fails
	}{
		"evicting":          {[]string{"maxmemory-policy", "volatile-ttl", "maxmemory", "100mb"}, 2, "eviction", "error", "can be evicted", ""},
		"evicting_later":    {[]string{"maxmemory-policy", "allkeys-lru"}, 1, "eviction", "warning", "noeviction", ""},
		"nothing_kept":      {[]string{"appendonly", "no"}, 1, "persistence", "warning", "no snapshots", ""},
		"snapshots":         {[]string{"appendonly", "no", "save", "3600 1"}, 1, "persistence", "warning", "snapshots: 3600 1", ""},
		"written_some_time": {[]string{"appendfsync", "no"}, 1, "persistence", "warning", "power loss", ""},
		"written_at_once":   {[]string{"appendfsync", "always"}, 0, "persistence", "ok", "always", ""},
		"no_replicas":       {[]string{"min-replicas-to-write", "1"}, 2, "replicas", "error", "NOREPLICAS", "lock"},
	} {
		t.Run(name, func(t *testing.T) {
			for setting := range slices.Chunk(c.settings, 2) {
				was := s.Client().ConfigGet(ctx, setting[0]).Val()[setting[0]]
				set(t, s, setting[0], setting[1])
				t.Cleanup(func() { set(t, s, setting[0], was) })
			}
			r := examine(t, c.code, url, "--timeout", "6s")
			r.wantAllOKExcept(c.other, c.check)
			r.want(c.check, c.status, c.says)
			if c.other != "" {
				r.want(c.other, "error")
			}
			wantNoKeys(t, s.Client())
		})
	}
}

func TestDoctorReportsFullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const ballast = 100 // MB, so that the buffers of connections do not matter
	do(t, s, "debug", "populate", ballast, "ballast", 1_000_000)
	used := must.Get(strconv.ParseFloat(s.Client().InfoMap(ctx, "memory").Item("Memory", "used_memory"), 64))(t)
	for _, c := range []struct {
		share        float64
		code         int
		memory, says string
		lock         string
	}{
		{0.5, 1, "ok", "5", "ok"}, // persistence is a warning here
		{0.94, 1, "warning", "9", "ok"},
		{2, 2, "error", "OOM", "error"},
	} {
		set(t, s, "maxmemory", strconv.FormatInt(int64(used/c.share), 10))
		r := examine(t, c.code, "redis://"+s.Addr)
		r.wantAllOKExcept("memory", "lock", "persistence")
		r.want("memory", c.memory, c.says)
		r.want("lock", c.lock)
		n := s.Client().DBSize(ctx).Val()
		check.That(t, n == ballast, "%d keys, want %d as before", n, ballast)
	}
}

func TestDoctorReportsUnwritableDisk(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--save", "3600 1")
	must.OK(t, os.RemoveAll(s.Dir))
	do(t, s, "bgsave")
	eventually(t, "the snapshot fails", func() bool {
		return s.Client().InfoMap(ctx, "persistence").Item("Persistence", "rdb_last_bgsave_status") == "err"
	})
	r := examine(t, 2, "redis://"+s.Addr, "--timeout", "3s")
	r.want("persistence", "error", "MISCONF")
	r.want("lock", "error", "MISCONF")
}

func TestDoctorReportsClockOffset(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t) // which says little of itself
	m.SetTime(time.Now().Add(-time.Hour))
	r := examine(t, 1, "redis://"+m.Addr())
	r.want("clock", "warning", "NTP")
	r.want("eviction", "unknown")
	r.want("permissions", "ok", "by sending the commands")
	r.want("lock", "ok")
}

func TestDoctorReportsUnsuitableTimeouts(t *testing.T) {
	t.Parallel()
	_, url := goodServer(t)
	examine(t, 1, url+"?read_timeout=-1").want("client-timeouts", "warning", "no read_timeout")
	examine(t, 1, url+"?read_timeout=20s").want("client-timeouts", "warning", "20s")
	examine(t, 1, url+"?dial_timeout=20s").want("client-timeouts", "warning", "20s")
	examine(t, 0, url+"?read_timeout=2s").want("client-timeouts", "ok", "2s")
}

func TestDoctorReportsLibrariesThatDeleteLocks(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	do(t, s, "debug", "populate", 5000, "ballast")
	examine(t, 0, url).want("foreign-keys", "ok", "no key of a library")
	do(t, s, "rpush", "lock-signal:job\x1b", "1")
	do(t, s, "set", "job-lock:default:report", "ADDED:2026-11-23T01:02:03Z@host:uuid")
	do(t, s, "set", "job-lock:mine", "5e1f:1:30000.6000")
	examine(t, 1, url).want("foreign-keys", "warning", `"lock-signal:job\x1b" is of python-redis-lock`, "reset_all()")
	examine(t, 0, url, "--prefix", "billing:").want("foreign-keys", "ok")
	r := examine(t, 1, url, "--prefix", "job-lock:")
	r.want("foreign-keys", "warning", "job-lock:default:report is of ShedLock", "safeUpdate(true)")
	r = examine(t, 1, url, "--prefix", "") // both
	r.want("foreign-keys", "warning", "python-redis-lock")
	r.want("foreign-keys", "warning", "ShedLock")
	do(t, s, "del", "job-lock:default:report")
	examine(t, 0, url, "--prefix", "job-lock:").want("foreign-keys", "ok") // the other one is a mutex
}
