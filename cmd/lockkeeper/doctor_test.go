package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// examination is what doctor --json has written, read as another program would.
type examination struct {
	*testing.T
	Status, URL, Kind, Prefix string
	Checks                    []struct {
		Check, Status, Detail, Advice, Docs string
		ACLRules                            string `json:"acl_rules"`
		Nodes                               []string
		Values                              map[string]float64
	}
}

// examine runs doctor, which must end in time and with the code.
func examine(t *testing.T, code int, args ...string) *examination {
	t.Helper()
	c := command(t, append([]string{"doctor", "--json"}, args...)...)
	start, limit := time.Now(), 10*time.Second
	if i := slices.Index(args, "--timeout"); i >= 0 {
		limit, _ = time.ParseDuration(args[i+1])
	}
	c.ends(code)
	if d := time.Since(start); d > limit+time.Second { // for the process itself
		t.Errorf("it took %v", d)
	}
	r := &examination{T: t}
	if err := json.Unmarshal(c.out.Bytes(), r); err != nil {
		t.Fatalf("%v\n%s%s", err, c.out.String(), c.err.String())
	}
	return r
}

// wantCheck wants a check to have come out with a status, and what was seen, advised or is missing to contain texts.
func (r *examination) wantCheck(check, status string, texts ...string) {
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
	r.Errorf("no %s of %s with %q, but %q", check, status, texts, seen)
}

// wantAllOKExcept wants every check but those to be ok.
func (r *examination) wantAllOKExcept(others ...string) {
	r.Helper()
	for _, c := range r.Checks {
		if c.Status != "ok" && !slices.Contains(others, c.Check) {
			r.Errorf("%s: %s: %s", c.Check, c.Status, c.Detail)
		}
	}
}

// empty wants no key to be left.
func empty(t *testing.T, servers ...*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		if keys := s.Client().Keys(ctx, "*").Val(); len(keys) > 0 {
			t.Errorf("left: %q", keys)
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

// goodServer is a server that is set as docs/operations.md has it.
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
		want := strings.Fields("connection version role eviction memory persistence replicas idle-timeout permissions pubsub scripts clock latency client-timeouts lock")
		if !slices.Equal(checks, want) {
			t.Errorf("the checks are %q, want %q", checks, want)
		}
		empty(t, s)
	}
	if after := s.Client().ConfigGet(ctx, "*").Val(); !maps.Equal(before, after) {
		t.Error("the settings were changed")
	}
	c := command(t, "doctor")
	c.Env = append(c.Env, "REDIS_URL="+url)
	c.ends(0)
	for _, line := range []string{"ok       eviction        noeviction\n", "errors: 0, warnings: 0, unknown: 0, ok: 15\n"} {
		if !strings.Contains(c.out.String(), line) {
			t.Errorf("no %q in\n%s", line, c.out.String())
		}
	}
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
		others   []string // that suffer, too
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
			empty(t, s)
		})
	}
}

func TestDoctorReportsFullMemory(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const ballast = 100 // MB, beside which the buffers of connections weigh nothing
	do(t, s, "debug", "populate", ballast, "ballast", 1_000_000)
	used, err := strconv.ParseFloat(s.Client().InfoMap(ctx, "memory").Item("Memory", "used_memory"), 64)
	if err != nil {
		t.Fatal(err)
	}
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
			t.Errorf("%d keys, want the %d of before", n, ballast)
		}
	}
}

func TestDoctorReportsUnwritableDisk(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--save", "3600 1")
	if err := os.RemoveAll(s.Dir); err != nil {
		t.Fatal(err)
	}
	do(t, s, "bgsave")
	eventually(t, "the snapshot fails", func() bool {
		return s.Client().InfoMap(ctx, "persistence").Item("Persistence", "rdb_last_bgsave_status") == "err"
	})
	r := examine(t, 2, "--redis", "redis://"+s.Addr, "--timeout", "3s")
	r.wantCheck("persistence", "error", "MISCONF")
	r.wantCheck("lock", "error", "MISCONF")
}

func TestDoctorChecksReplicas(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t, "--repl-ping-replica-period", "1", "--min-replicas-max-lag", "1")
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 "+strconv.Itoa(s.Port))
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(s.Client().Info(ctx, "replication").Val(), "state=online")
	})
	r := examine(t, 1, "--redis", url)
	r.wantAllOKExcept("replicas")
	r.wantCheck("replicas", "warning", "continues to grant", "min-replicas-to-write 1")
	set(t, s, "min-replicas-to-write", "1")
	eventually(t, "the replica counts", func() bool {
		return s.Client().InfoMap(ctx, "replication").Item("Replication", "min_slaves_good_slaves") == "1"
	})
	examine(t, 0, "--redis", url).wantCheck("replicas", "ok", "min-replicas-to-write: 1")

	r = examine(t, 2, "--redis", "redis://"+replica.Addr)
	r.wantCheck("role", "error", fmt.Sprintf("a replica of 127.0.0.1:%d", s.Port), "primary")
	r.wantCheck("lock", "unknown", "replica")

	replica.Freeze()
	eventually(t, "the replica is missed", func() bool {
		return s.Client().InfoMap(ctx, "replication").Item("Replication", "min_slaves_good_slaves") == "0"
	})
	examine(t, 2, "--redis", url, "--timeout", "3s").wantCheck("replicas", "error", "NOREPLICAS")
	empty(t, s)
}

// documentedRules is the rules that docs/operations.md gives a user, with its name and password.
func documentedRules(t *testing.T) (user, password string, rules []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```\nACL SETUSER ")
	block, _, found := strings.Cut(rest, "```")
	f := strings.Fields(block)
	if !found || len(f) < 3 {
		t.Fatal("no ACL SETUSER in docs/operations.md")
	}
	return f[0], strings.TrimPrefix(f[2], ">"), f[1:]
}

func TestDoctorReportsMissingPermissions(t *testing.T) {
	t.Parallel()
	s, _ := goodServer(t)
	user, password, rules := documentedRules(t)
	url := fmt.Sprintf("redis://%s:%s@%s", user, password, s.Addr)
	reading := []string{"+info", "+config|get", "+script|load"}
	for how, dry := range map[string][]string{"DRYRUN": {"+acl|dryrun"}, "sending": nil} {
		for _, c := range []struct {
			name   string
			rules  []string
			code   int
			status string // of permissions
			says   string
			others []string
		}{
			{"all", reading, 0, "ok", how, nil},
			{"no_reading", nil, 0, "ok", how, []string{"eviction", "memory", "persistence", "replicas", "idle-timeout"}},
			{"no_zmscore", append([]string{"-zmscore"}, reading...), 2, "error", "+zmscore", []string{"lock"}},
			{"no_set", append([]string{"-set"}, reading...), 2, "error", "+set", []string{"lock"}},
			{"no_scripts", append([]string{"-eval", "-evalsha"}, reading...), 2, "", "", []string{"permissions", "scripts", "lock"}},
			{"no_publish", append([]string{"-publish"}, reading...), 1, "warning", "+publish", []string{"pubsub", "lock"}},
			{"no_channels", append([]string{"resetchannels"}, reading...), 1, "warning", "&lock:*", []string{"pubsub", "lock"}},
			{"no_tagged_keys", append([]string{"resetkeys", "~lock:*"}, reading...), 2, "error", "~{lock:*", []string{"scripts", "lock"}},
			{"no_plain_keys", append([]string{"resetkeys", "~{lock:*"}, reading...), 2, "error", "~lock:*", nil},
			{"no_ping", append([]string{"-ping"}, reading...), 2, "error", "+ping", []string{"latency"}},
		} {
			t.Run(how+"/"+c.name, func(t *testing.T) {
				do(t, s, "acl", "deluser", user)
				args := []any{"acl", "setuser", user}
				for _, r := range slices.Concat(rules, dry, c.rules) {
					args = append(args, r)
				}
				do(t, s, args...)
				r := examine(t, c.code, "--redis", url)
				r.wantAllOKExcept(append(c.others, "permissions")...)
				for _, o := range c.others {
					for _, f := range r.Checks {
						if f.Check == o && f.Status == "ok" {
							t.Errorf("%s is ok: %s", o, f.Detail)
						}
					}
				}
				if c.status != "" {
					r.wantCheck("permissions", c.status, c.says)
				}
				if c.name == "all" {
					r.wantCheck("permissions", "ok", "+wait, which is needed for Options.ReplicaAck")
					for _, f := range r.Checks {
						if strings.Contains(f.Detail, "not +info") {
							t.Errorf("it may: %+v", f)
						}
					}
				}
				if c.name == "no_reading" {
					r.wantCheck("permissions", "ok", "+info, which is needed for ReplicaAck.Majority and redlock.Options.MinUptime")
					r.wantCheck("eviction", "unknown", "+info")
					r.wantCheck("idle-timeout", "unknown", "+config|get")
					r.wantCheck("version", "ok")
				}
				if strings.HasSuffix(c.name, "_keys") { // it has the other pattern, and may run scripts
					for _, f := range r.Checks {
						if f.ACLRules != "" && f.ACLRules != c.says {
							t.Errorf("%s: only %s is missing, but acl_rules is %q", f.Check, c.says, f.ACLRules)
						}
					}
				}
				if c.name == "no_publish" {
					r.wantCheck("lock", "warning", "only 0 wake-ups")
				}
				empty(t, s)
			})
		}
	}
}

func TestDoctorTimeoutWhenUnresponsive(t *testing.T) {
	t.Parallel()
	locked, _ := goodServer(t)
	set(t, locked, "requirepass", "secret")
	frozen, frozenURL := goodServer(t)
	frozen.Freeze()
	loading, loadingURL := goodServer(t)
	do(t, loading, "debug", "populate", 100_000)
	set(t, loading, "loading-process-events-interval-bytes", "1024")
	set(t, loading, "key-load-delay", "1000") // µs
	go loading.Client().Do(ctx, "debug", "reload")
	eventually(t, "it is loading", func() bool { return redis.IsLoadingError(loading.Client().Get(ctx, "x").Err()) })
	busy, busyURL := goodServer(t, "--busy-reply-threshold", "10")
	go busy.Client().Eval(ctx, "while true do end", nil)
	eventually(t, "it is busy", func() bool { return redis.HasErrorPrefix(busy.Client().Get(ctx, "x").Err(), "BUSY") })
	for _, c := range []struct{ name, url, says string }{
		{"refused", "redis://127.0.0.1:1", "refused"},
		{"wrong_password", "redis://:wrong@" + locked.Addr, "password"},
		{"no_password", "redis://" + locked.Addr, "password"},
		{"frozen", frozenURL, "no answer within 1s"},
		{"loading", loadingURL, "LOADING"},
		{"busy", busyURL, "BUSY"},
		{"no_sentinel", "redis+sentinel://127.0.0.1:1?master_name=main", "check the URL"},
		{"no_cluster", "redis+cluster://127.0.0.1:1", "refused"},
		{"cluster_without_password", "redis+cluster://" + locked.Addr, "NOAUTH"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := examine(t, 69, "--redis", c.url, "--timeout", "2s")
			r.wantCheck("connection", "error", c.says)
			if r.Status != "error" {
				t.Errorf("status %s", r.Status)
			}
		})
	}
	c := command(t, "doctor", "--redis", "redis://:wrong@"+locked.Addr)
	c.ends(69)
	if strings.Contains(c.out.String()+c.err.String(), "wrong@") {
		t.Error("the password was shown")
	}
}

func TestInterruptedDoctorCleansUp(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	do(t, s, "acl", "setuser", "default", "-publish") // then a hand-off takes a heartbeat
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c := command(t, "doctor", "--redis", url)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it holds its lock", func() bool { return len(s.Client().Keys(ctx, "*:holders").Val()) > 0 })
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		c.waits(128 + int(sig))
		if c.out.Len() > 0 {
			t.Errorf("%v: it still wrote %q", sig, c.out.String())
		}
		empty(t, s)
	}
}

func TestDoctorTimeoutWhenServerFreezes(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	// When it measures, everything before has been asked.
	watch := s.Client()
	go func() {
		for watch.InfoMap(ctx, "commandstats").Item("Commandstats", "cmdstat_time") == "" {
			time.Sleep(time.Millisecond)
		}
		s.Freeze()
	}()
	r := examine(t, 2, "--redis", url, "--timeout", "2s")
	r.wantCheck("version", "ok")
	r.wantCheck("lock", "error")
}

func TestDoctorOnEmbeddedServer(t *testing.T) {
	t.Parallel()
	rdb, url := server(t)
	r := examine(t, 0, "--redis", url)
	r.wantAllOKExcept("version", "role", "eviction", "memory", "persistence", "replicas", "idle-timeout")
	r.wantCheck("eviction", "unknown")
	r.wantCheck("permissions", "ok", "by sending the commands")
	r.wantCheck("lock", "ok")
	if keys := rdb.Keys(ctx, "*").Val(); len(keys) > 0 {
		t.Errorf("left: %q", keys)
	}
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

func TestDoctorOnCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	var all []*redistest.Server
	for i, p := range c.Primaries {
		all = append(all, p, c.Replicas[i][0])
		set(t, p, "appendonly", "yes")
		set(t, p, "min-replicas-to-write", "1")
	}
	eventually(t, "replicas are in step", func() bool {
		return !slices.ContainsFunc(c.Primaries, func(p *redistest.Server) bool {
			return p.Client().InfoMap(ctx, "replication").Item("Replication", "min_slaves_good_slaves") != "1"
		})
	})
	url := "redis+cluster://" + c.Primaries[0].Addr + "?addr=" + c.Primaries[1].Addr
	r := examine(t, 0, "--redis", url)
	r.wantAllOKExcept()
	r.wantCheck("cluster", "ok", "16384 of 16384")
	r.wantCheck("pubsub", "ok", "sharded")
	empty(t, all...)
	for _, f := range r.Checks { // each primary was asked, and those that say the same are one
		if f.Check == "eviction" && len(f.Nodes) != 3 {
			t.Errorf("eviction of %q", f.Nodes)
		}
	}
	examine(t, 0, "--redis", url, "--prefix", "app:{x}:").wantAllOKExcept() // all its keys are in one slot

	set(t, c.Primaries[1], "maxmemory-policy", "allkeys-lru")
	set(t, c.Primaries[2], "min-replicas-to-write", "0")
	do(t, c.Primaries[2], "acl", "setuser", "default", "-ssubscribe")
	r = examine(t, 1, "--redis", url)
	for _, f := range r.Checks {
		if f.Check == "eviction" && f.Status == "warning" && !slices.Equal(f.Nodes, []string{c.Primaries[1].Addr}) {
			t.Errorf("eviction of %q", f.Nodes)
		}
	}
	r.wantCheck("eviction", "ok")
	r.wantCheck("eviction", "warning")
	r.wantCheck("replicas", "warning")
	r.wantCheck("permissions", "warning", "+ssubscribe")
	r.wantCheck("pubsub", "warning", "+ssubscribe")

	examine(t, 2, "--redis", "redis://"+c.Primaries[0].Addr).wantCheck("role", "error", "redis+cluster://")
	do(t, c.Primaries[0], "cluster", "delslots", 0)
	examine(t, 2, "--redis", url, "--timeout", "5s").wantCheck("cluster", "error", "16383 of 16384")
	_, single := goodServer(t)
	examine(t, 69, "--redis", strings.Replace(single, "redis://", "redis+cluster://", 1)).wantCheck("connection", "error", "redis:// URL")
}

func TestDoctorOnSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, 1)
	set(t, s.Primary, "appendonly", "yes")
	set(t, s.Primary, "min-replicas-to-write", "1")
	eventually(t, "the replica counts", func() bool {
		return s.Primary.Client().InfoMap(ctx, "replication").Item("Replication", "min_slaves_good_slaves") == "1"
	})
	url := "redis+sentinel://" + s.Addrs[0] + "?addr=" + s.Addrs[1] + "&addr=" + s.Addrs[2] + "&master_name="
	r := examine(t, 0, "--redis", url+"main")
	r.wantAllOKExcept()
	r.wantCheck("sentinel", "ok", "quorum", s.Primary.Addr)
	empty(t, s.Primary)
	examine(t, 1, "--redis", url+"main&addr=127.0.0.1:1").wantCheck("sentinel", "warning", "refused")
	examine(t, 69, "--redis", url+"other", "--timeout", "3s").wantCheck("sentinel", "error", `"other"`, "master_name")
	examine(t, 2, "--redis", "redis://"+s.Addrs[0], "--timeout", "3s").wantCheck("role", "error", "redis+sentinel://")
	for _, addr := range s.Addrs[1:] {
		w := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
		_ = w.Do(ctx, "shutdown", "nosave").Err() // it closes the connection instead of answering
		_ = w.Close()
	}
	eventually(t, "the quorum is missed", func() bool {
		w := redis.NewSentinelClient(&redis.Options{Addr: s.Addrs[0]})
		defer func() { _ = w.Close() }()
		return redis.HasErrorPrefix(w.CkQuorum(ctx, "main").Err(), "NOQUORUM")
	})
	examine(t, 2, "--redis", url+"main").wantCheck("sentinel", "error", "NOQUORUM")
}

func TestDoctorUsageErrors(t *testing.T) {
	for _, c := range []struct {
		says string
		args []string
	}{
		{"no arguments", []string{"x"}},
		{"shorter than 1s", []string{"--timeout", "999ms"}},
		{"supported forms", []string{"--redis", "http://x"}},
		{"Prefix", []string{"--prefix", "a}b"}},
		{"unknown flag", []string{"--fix"}},
	} {
		command(t, append([]string{"doctor"}, c.args...)...).ends(64, c.says)
	}
}

// TestDoctorReportsMissingCommands: by trying, where the server cannot be asked what a user may do.
func TestDoctorReportsMissingCommands(t *testing.T) {
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	m.Server().SetPreHook(func(c *miniserver.Peer, command string, args ...string) bool {
		if command == "ZMSCORE" {
			c.WriteError("ERR unknown command 'zmscore', with args beginning with: " + strings.Join(args, " "))
			return true
		}
		return false
	})
	r := examine(t, 2, "--redis", "redis://"+m.Addr())
	r.wantCheck("permissions", "error", "+zmscore")
}
