package doctor

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

func TestDoctorChecksDocumentedACL(t *testing.T) {
	rules := redistest.DocumentedUser(t, "../../../docs/operations.md")
	keys := must.Get(protocol.KeysOf("lock:", "x", "mutex", false))(t)
	checked := map[string]bool{}
	for _, c := range usedCommands(&keys, "lock:x", "{lock:x}:wake:doctor") {
		checked[c.rule()] = true
	}
	for _, r := range rules {
		check.That(t, !strings.HasPrefix(r, "+") || checked[r], "%s is not checked", r)
		delete(checked, r)
	}
	check.That(t, len(checked) == 0, "not documented: %v", checked)
}

func TestDoctorACLProbesChangeNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	keys := must.Get(protocol.KeysOf("lock:", "x", "mutex", false))(t)
	rdb := s.Client()
	for _, c := range usedCommands(&keys, "lock:x", "{lock:x}:wake:doctor") {
		args := c.args
		if c.harmless != nil {
			args = c.harmless
		}
		if len(args) == 0 {
			continue
		}
		_ = rdb.Do(ctx, args...).Err() // most of these commands fail
		n := rdb.InfoMap(ctx, "persistence").Item("Persistence", "rdb_changes_since_last_save")
		must.That(t, n == "0", "%q made %s changes", args, n)
	}
}

func TestDoctorReportsFlushedScriptCache(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	d := must.Get(newDoctor(&redisurl.Target{Server: &redis.Options{Addr: s.Addr}}, "lock:", 10*time.Second))(t)
	defer d.close()
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	nodes := d.connect(limited)
	nodes[0].checkScripts(limited)
	must.OK(t, s.Client().ScriptFlush(ctx).Err())
	nodes[0].recheckScripts(limited)
	f := d.findings[len(d.findings)-1]
	check.That(t, f.Check == "scripts" && f.Status == statusWarning && strings.Contains(f.Detail, "flushed during"), "%+v", f)
}

func TestDoctorReportsHighLatency(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes")
	n := faultnet.New(faultnet.TCP)
	n.Delay(maxMedianLatency)
	d := must.Get(newDoctor(&redisurl.Target{Server: &redis.Options{Addr: s.Addr, Dialer: n.Dial}}, "lock:", 10*time.Second))(t)
	defer d.close()
	found := d.examine(ctx)
	for _, f := range found.Checks {
		if f.Check == "latency" && f.Status != statusWarning || f.Check != "latency" && f.Status != statusOK {
			t.Errorf("%s: %v: %s", f.Check, f.Status, f.Detail)
		}
		// Users who have only installed the command have no docs folder.
		want := "https://github.com/lockkeeper/lockkeeper/blob/main/docs/operations.md#" + docsSection[f.Check]
		check.That(t, f.Docs == want, "%s points to %s, want %s", f.Check, f.Docs, want)
	}
	for _, c := range []struct {
		times []time.Duration
		want  status
	}{
		{[]time.Duration{1e6, 1e6, 1e6}, statusOK},
		{[]time.Duration{maxMedianLatency, maxMedianLatency, maxMedianLatency}, statusOK},
		{[]time.Duration{1e6, maxMedianLatency + 1, maxMedianLatency + 1}, statusWarning},
		{[]time.Duration{1e6, 1e6, maxP99Latency + 1}, statusWarning},
		{[]time.Duration{1e6, 1e6, protocol.DefaultHeartbeatInterval}, statusError},
	} {
		got := evaluateLatency(c.times)
		check.That(t, got.Status == c.want, "%v: %v, want %v", c.times, got, c.want)
	}
}

func TestDoctorChecksMinimumVersion(t *testing.T) {
	for _, c := range []struct {
		version string
		want    status
	}{
		{"6.0.20", statusError}, {"6.2.0", statusError}, {"6.2.14", statusError},
		{"7.0.0", statusOK}, {"7.0.15", statusOK}, {"10.0.1", statusOK}, {"unstable", statusUnknown},
	} {
		f := serverInfo{info: map[string]string{"redis_version": c.version}}
		got := f.version()
		if got.Status != c.want || got.Status == statusError && !strings.Contains(got.Advice, "Redis 7.0 or later") {
			t.Errorf("%s: %+v, want %v", c.version, got, c.want)
		}
	}
}

// On Valkey, INFO has other fields than on Redis, and HELLO has the version of Valkey.
func TestDoctorOnValkey(t *testing.T) {
	for _, c := range []struct{ mode, role, want string }{
		{"standalone", "master", "ok: primary"},
		{"standalone", "slave", "error: this is a replica"},
		{"cluster", "master", "error: this is a node of a cluster"},
		{"sentinel", "", "error: this is a Sentinel"},
	} {
		info := "# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:" + c.mode + "\r\n"
		hello := map[any]any{"server": "valkey", "version": "8.0.1", "proto": int64(3), "mode": c.mode}
		if c.role != "" {
			info += "# Replication\r\nrole:" + c.role + "\r\n"
			hello["role"] = strings.Replace(c.role, "slave", "replica", 1)
		}
		fromInfo, fromHello := serverInfo{info: infoFields(info)}, serverInfo{info: map[string]string{}}
		fromHello.hello(hello)
		for f, version := range map[*serverInfo]string{&fromInfo: "Valkey 8.0.1, compatible with Redis 7.2.4", &fromHello: "Valkey 8.0.1"} {
			if got := f.version(); got.Status != statusOK || got.Detail != version {
				t.Errorf("%+v, want %s", got, version)
			}
			if got := f.role("server"); got.Status.String()+": "+got.Detail != c.want {
				t.Errorf("%s %s: %+v, want %s", c.mode, c.role, got, c.want)
			}
		}
	}
}

func TestDoctorChecksAreDocumented(t *testing.T) {
	text := must.Get(os.ReadFile("../../../docs/operations.md"))(t)
	for _, check := range checks {
		if !strings.Contains("\n"+checksHelp, "\n  "+check+" ") {
			t.Errorf("the help does not describe %s", check)
		}
		title := docsSection[check]
		if title == "" || !strings.Contains(string(text), "\n## "+strings.ToUpper(title[:1])+title[1:]+"\n") {
			t.Errorf("%s links to %q, which is not a section", check, title)
		}
	}
	if len(checks) != len(docsSection) {
		t.Errorf("%d checks, %d links", len(checks), len(docsSection))
	}
}

func TestClockOffsetJudged(t *testing.T) {
	const e = 10 * time.Millisecond
	for _, c := range []struct {
		samples []clockSample
		want    status
	}{
		{[]clockSample{{0, e}, {5 * time.Millisecond, e}}, statusOK},
		{[]clockSample{{900 * time.Millisecond, e}}, statusOK},
		{[]clockSample{{1005 * time.Millisecond, e}}, statusOK}, // within the uncertainty
		{[]clockSample{{1100 * time.Millisecond, e}}, statusWarning},
		{[]clockSample{{-1100 * time.Millisecond, e}}, statusWarning},
		{[]clockSample{{0, e}, {50 * time.Millisecond, e}}, statusWarning}, // a jump
		{[]clockSample{{0, e}, {50 * time.Millisecond, 5 * e}}, statusOK},
	} {
		got := evaluateClock(c.samples, time.Now())
		check.That(t, got.Status == c.want, "%v: %v, want %v", c.samples, got, c.want)
	}
	for _, c := range []struct {
		at     int64
		want   status
		detail string
	}{
		{1, statusWarning, "not set: it is at 1970-01-01 00:00:01, 20783d20h behind this machine, ± 10.00 ms; range 0.00 ms"},
		{protocol.UnsetClock - 1, statusWarning, "not set: it is at 1998-07-09 16:00:00, "},
		{protocol.LastClock, statusError, "wrong: it is at 2083-10-05 22:13:20, 20767d2h ahead of this machine, "},
		{1_795_723_606, statusWarning, "2.0s ahead of this machine, ± 10.00 ms; range 0.00 ms"},
		{1_795_723_604, statusOK, "0.00 ms ahead of this machine, ± 10.00 ms; range 0.00 ms"},
	} {
		at := time.Unix(c.at, 0).UTC()
		got := evaluateClock([]clockSample{{at.Sub(time.Unix(1_795_723_604, 0)), e}}, at)
		check.That(t, got.Status == c.want && strings.HasPrefix(got.Detail, c.detail), "%v: %v %q, want %v %q", at, got.Status, got.Detail, c.want, c.detail)
	}
}
