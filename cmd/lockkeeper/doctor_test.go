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
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// doctorReport is the output of doctor --json, decoded by its documented names.
type doctorReport struct {
	*testing.T
	Status, URL, Kind, Prefix string
	Checks                    []struct {
		Check, Status, Detail, Advice, Docs string
		ACLRules                            string `json:"acl_rules"`
		Nodes                               []string
		Values                              map[string]float64
	}
}

// examine runs doctor --json, which must end in time and with the exit code.
func examine(t *testing.T, code int, args ...string) *doctorReport {
	t.Helper()
	limit := time.Minute // a busy machine can take longer than the default of 10 s
	if i := slices.Index(args, "--timeout"); i >= 0 {
		limit, _ = time.ParseDuration(args[i+1])
	} else {
		args = append(args, "--timeout", limit.String())
	}
	c := command(t, append([]string{"doctor", "--json"}, args...)...)
	start := time.Now()
	c.ends(code)
	if d := time.Since(start); d > limit+10*time.Second { // which a busy machine can take to start and end the process
		t.Errorf("it took %v", d)
	}
	r := &doctorReport{T: t}
	c.decode(r)
	return r
}

// wantCheck requires a finding of the check with the status, and with all texts in its detail, advice and ACL rules.
func (r *doctorReport) wantCheck(check, status string, texts ...string) {
	r.Helper()
	var seen []string
	for _, c := range r.Checks {
		all := strings.Join([]string{c.Detail, c.Advice, c.ACLRules}, " | ")
		if c.Check != check {
			continue
		}
		if c.Status == status && !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(all, s) }) {
			return
		}
		seen = append(seen, c.Status+": "+all)
	}
	r.Errorf("no %s with status %s and %q; got %q", check, status, texts, seen)
}

// wantAllOKExcept requires that all checks except those given are ok.
func (r *doctorReport) wantAllOKExcept(others ...string) {
	r.Helper()
	for _, c := range r.Checks {
		if c.Status != "ok" && !slices.Contains(others, c.Check) {
			r.Errorf("%s: %s: %s", c.Check, c.Status, c.Detail)
		}
	}
}

// wantNoKeys requires that the servers have no keys.
func wantNoKeys(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		if keys := s.Client().Keys(ctx, "*").Val(); len(keys) > 0 {
			t.Errorf("keys were not deleted: %q", keys)
		}
	}
}

func do(t *testing.T, s *redistest.Server, args ...any) {
	t.Helper()
	if err := s.Client().Do(ctx, args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
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
		r := examine(t, 0, "--redis", url, "--prefix", prefix)
		r.wantAllOKExcept()
		if r.Status != "ok" || r.Kind != "server" || r.Prefix != prefix || r.URL != url {
			t.Errorf("%+v", r)
		}
		r.wantCheck("version", "ok", "Redis "+s.Client().InfoMap(ctx, "server").Item("Server", "redis_version"))
		r.wantCheck("scripts", "ok", "scripts can be loaded")
		r.wantCheck("lock", "ok", "handed over 5 times")
		var checks []string
		for _, c := range r.Checks {
			checks = append(checks, c.Check)
			if !strings.HasPrefix(c.Docs, "https://github.com/lockkeeper/lockkeeper/blob/main/docs/operations.md#") {
				t.Errorf("%s points to %s", c.Check, c.Docs)
			}
		}
		want := strings.Fields("connection version role eviction memory persistence replicas idle-timeout permissions pubsub scripts foreign-keys clock latency client-timeouts lock")
		if !slices.Equal(checks, want) {
			t.Errorf("the checks are %q, want %q", checks, want)
		}
		wantNoKeys(t, s)
	}
	if after := s.Client().ConfigGet(ctx, "*").Val(); !maps.Equal(before, after) {
		t.Error("the settings were changed")
	}
	c := command(t, "doctor")
	c.Env = append(c.Env, "REDIS_URL="+url)
	c.ends(0)
	c.prints("ok       eviction        noeviction\n", "errors: 0, warnings: 0, unknown: 0, ok: 16\n")
}

func TestDoctorReportsWrongSettings(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	for _, c := range []struct {
		name     string
		settings []string
		code     int
		check    string
		status   string
		says     string
		others   []string // other checks that fail
	}{
		{"evicting", []string{"maxmemory-policy", "volatile-ttl", "maxmemory", "100mb"}, 2, "eviction", "error", "can be evicted", nil},
		{"evicting_later", []string{"maxmemory-policy", "allkeys-lru"}, 1, "eviction", "warning", "noeviction", nil},
		{"nothing_kept", []string{"appendonly", "no"}, 1, "persistence", "warning", "no snapshots", nil},
		{"snapshots", []string{"appendonly", "no", "save", "3600 1"}, 1, "persistence", "warning", "snapshots: 3600 1", nil},
		{"written_some_time", []string{"appendfsync", "no"}, 1, "persistence", "warning", "power loss", nil},
		{"written_at_once", []string{"appendfsync", "always"}, 0, "persistence", "ok", "always", nil},
		{"no_replicas", []string{"min-replicas-to-write", "1"}, 2, "replicas", "error", "NOREPLICAS", []string{"lock"}},
		{"closing_soon", []string{"timeout", "2"}, 1, "idle-timeout", "warning", "after 2s", nil},
		{"closing_late", []string{"timeout", "300"}, 0, "idle-timeout", "ok", "5m", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for i := 0; i < len(c.settings); i += 2 {
				name := c.settings[i]
				was := s.Client().ConfigGet(ctx, name).Val()[name]
				set(t, s, name, c.settings[i+1])
				t.Cleanup(func() { set(t, s, name, was) })
			}
			r := examine(t, c.code, "--redis", url, "--timeout", "3s")
			r.wantAllOKExcept(append(c.others, c.check)...)
			r.wantCheck(c.check, c.status, c.says)
			for _, o := range c.others {
				r.wantCheck(o, "error")
			}
			wantNoKeys(t, s)
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
		r := examine(t, c.code, "--redis", "redis://"+s.Addr)
		r.wantAllOKExcept("memory", "lock", "persistence")
		r.wantCheck("memory", c.memory, c.says)
		r.wantCheck("lock", c.lock)
		if n := s.Client().DBSize(ctx).Val(); n != ballast {
			t.Errorf("%d keys, want %d as before", n, ballast)
		}
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
	r := examine(t, 2, "--redis", "redis://"+s.Addr, "--timeout", "3s")
	r.wantCheck("persistence", "error", "MISCONF")
	r.wantCheck("lock", "error", "MISCONF")
}

func TestDoctorReportsClockOffset(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		m := miniredis.RunT(t)
		m.SetTime(time.Now().Add(by))
		examine(t, 1, "--redis", "redis://"+m.Addr()).wantCheck("clock", "warning", "NTP")
	}
}

func TestDoctorReportsUnsuitableTimeouts(t *testing.T) {
	t.Parallel()
	_, url := goodServer(t)
	examine(t, 1, "--redis", url+"?read_timeout=-1").wantCheck("client-timeouts", "warning", "no read_timeout")
	examine(t, 1, "--redis", url+"?read_timeout=20s").wantCheck("client-timeouts", "warning", "20s")
	examine(t, 1, "--redis", url+"?dial_timeout=20s").wantCheck("client-timeouts", "warning", "20s")
	examine(t, 0, "--redis", url+"?read_timeout=2s").wantCheck("client-timeouts", "ok", "2s")
}

func TestDoctorReportsLibrariesThatDeleteLocks(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	do(t, s, "debug", "populate", 5000, "ballast")
	examine(t, 0, "--redis", url).wantCheck("foreign-keys", "ok", "no key of a library")
	do(t, s, "rpush", "lock-signal:job\x1b", "1")
	do(t, s, "set", "job-lock:default:report", "ADDED:2026-11-23T01:02:03Z@host:uuid")
	do(t, s, "set", "job-lock:mine", "5e1f:1:30000.6000")
	examine(t, 1, "--redis", url).wantCheck("foreign-keys", "warning", `"lock-signal:job\x1b" is of python-redis-lock`, "reset_all()")
	examine(t, 0, "--redis", url, "--prefix", "billing:").wantCheck("foreign-keys", "ok")
	r := examine(t, 1, "--redis", url, "--prefix", "job-lock:")
	r.wantCheck("foreign-keys", "warning", "job-lock:default:report is of ShedLock", "safeUpdate(true)")
	r = examine(t, 1, "--redis", url, "--prefix", "") // both
	r.wantCheck("foreign-keys", "warning", "python-redis-lock")
	r.wantCheck("foreign-keys", "warning", "ShedLock")
	do(t, s, "del", "job-lock:default:report")
	examine(t, 0, "--redis", url, "--prefix", "job-lock:").wantCheck("foreign-keys", "ok") // the other one is a mutex
}
