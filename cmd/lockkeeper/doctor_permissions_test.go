package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestDoctorReportsMissingPermissions(t *testing.T) {
	t.Parallel()
	for how, dry := range map[string][]string{"DRYRUN": {"+acl|dryrun"}, "sending": nil} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			testMissingPermissions(t, how, dry)
		})
	}
}

func testMissingPermissions(t *testing.T, how string, dry []string) {
	s, _ := goodServer(t)
	rules := redistest.DocumentedUser(t, "../../docs/operations.md")
	user, password := rules[0], strings.TrimPrefix(rules[2], ">")
	url := fmt.Sprintf("redis://%s:%s@%s", user, password, s.Addr)
	reading := []string{"+info", "+config|get", "+script|load", "+scan"}
	for _, c := range []struct {
		name   string
		rules  []string
		code   int
		status string // of permissions
		says   string
		others []string
	}{
		{"all", reading, 0, "ok", how, nil},
		{"no_reading", nil, 0, "ok", how, []string{"eviction", "memory", "persistence", "replicas", "idle-timeout", "foreign-keys"}},
		{"no_zadd", append([]string{"-zadd"}, reading...), 2, "error", "+zadd", []string{"lock"}},
		{"no_set", append([]string{"-set"}, reading...), 2, "error", "+set", []string{"lock"}},
		{"no_scripts", append([]string{"-eval", "-evalsha"}, reading...), 2, "", "", []string{"permissions", "scripts", "lock"}},
		{"no_publish", append([]string{"-publish"}, reading...), 1, "warning", "+publish", []string{"pubsub", "lock"}},
		{"no_channels", append([]string{"resetchannels"}, reading...), 1, "warning", "&lock:*", []string{"pubsub", "lock"}},
		{"no_tagged_keys", append([]string{"resetkeys", "~lock:*"}, reading...), 2, "error", "~{lock:*", []string{"scripts", "lock"}},
		{"no_plain_keys", append([]string{"resetkeys", "~{lock:*"}, reading...), 2, "error", "~lock:*", nil},
		{"no_ping", append([]string{"-ping"}, reading...), 2, "error", "+ping", []string{"latency"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			do(t, s, "acl", "deluser", user)
			args := []any{"acl", "setuser"}
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
						t.Errorf("+info is reported as missing: %+v", f)
					}
				}
			}
			if c.name == "no_reading" {
				r.wantCheck("permissions", "ok", "+info, which is needed for ReplicaAck.Majority and redlock.Options.MinUptime")
				r.wantCheck("eviction", "unknown", "+info")
				r.wantCheck("idle-timeout", "unknown", "+config|get")
				r.wantCheck("foreign-keys", "unknown", "+scan")
				r.wantCheck("version", "ok")
			}
			if strings.HasSuffix(c.name, "_keys") { // the other pattern and scripts are permitted
				for _, f := range r.Checks {
					if f.ACLRules != "" && f.ACLRules != c.says {
						t.Errorf("%s: only %s is missing, but acl_rules is %q", f.Check, c.says, f.ACLRules)
					}
				}
			}
			if c.name == "no_publish" {
				r.wantCheck("lock", "warning", "only 0 wake-ups")
			}
			wantNoKeys(t, s)
		})
	}
}

// The embedded server has no ACL DRYRUN, so commands are sent.
func TestDoctorReportsMissingCommands(t *testing.T) {
	t.Parallel()
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
