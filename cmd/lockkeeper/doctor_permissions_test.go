package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestDoctorReportsMissingPermissions(t *testing.T) {
	t.Parallel()
	t.Run("DRYRUN", func(t *testing.T) { testMissingPermissions(t, "+acl|dryrun") })
	t.Run("sending", func(t *testing.T) { testMissingPermissions(t) })
}

func testMissingPermissions(t *testing.T, dry ...string) {
	t.Parallel()
	_, how, _ := strings.Cut(t.Name(), "/")
	s, _ := goodServer(t)
	rules := redistest.DocumentedUser(t, "../../docs/operations.md")
	user, password := rules[0], strings.TrimPrefix(rules[2], ">")
	const reading = "+info +config|get +script|load +scan "
	for name, c := range map[string]struct {
		rules  string
		code   int
		status string // of permissions
		says   string
		others string // checks that fail as well
	}{
		"all":            {reading, 0, "ok", how, ""},
		"no_reading":     {"", 0, "ok", how, "eviction memory persistence replicas foreign-keys"},
		"no_config":      {"+info +script|load +scan ", 0, "ok", how, "persistence"},
		"no_set":         {reading + "-set", 2, "error", "+set", "lock"},
		"no_scripts":     {reading + "-eval -evalsha", 2, "error", "", "scripts lock"},
		"no_publish":     {reading + "-publish", 1, "warning", "+publish", "pubsub lock"},
		"no_channels":    {reading + "resetchannels", 1, "warning", "&lock:*", "pubsub lock"},
		"no_tagged_keys": {reading + "resetkeys ~lock:*", 2, "error", "~{lock:*", "scripts lock"},
		"no_plain_keys":  {reading + "resetkeys ~{lock:*", 2, "error", "~lock:*", ""},
		"NoPrefix":       {reading + "resetkeys resetchannels ~* &*", 0, "ok", how, ""}, // as documented for this option
		"no_ping":        {reading + "-ping", 2, "error", "+ping", "latency"},
	} {
		t.Run(name, func(t *testing.T) {
			do(t, s, "acl", "deluser", user)
			args := []any{"acl", "setuser"}
			for _, r := range slices.Concat(rules, dry, strings.Fields(c.rules)) {
				args = append(args, r)
			}
			do(t, s, args...)
			flags := []string{"--prefix", "lock:"}
			if name == "NoPrefix" {
				flags[1] = ""
			}
			r := examine(t, c.code, fmt.Sprintf("redis://%s:%s@%s", user, password, s.Addr), flags...)
			others := strings.Fields(c.others)
			r.wantAllOKExcept(append(others, "permissions")...)
			for _, f := range r.Checks {
				check.That(t, !slices.Contains(others, f.Check) || f.Status != "ok", "%s is ok: %s", f.Check, f.Detail)
				if strings.HasSuffix(name, "_keys") && f.ACLRules != "" && f.ACLRules != c.says { // the other pattern and scripts are permitted
					t.Errorf("%s: only %s is missing, but acl_rules is %q", f.Check, c.says, f.ACLRules)
				}
				check.That(t, name != "all" || !strings.Contains(f.Detail, "not +info"), "+info is reported as missing: %+v", f)
			}
			r.want("permissions", c.status, c.says)
			switch name {
			case "all":
				r.want("permissions", "ok", "+wait, which is needed for Options.ReplicaAck")
			case "no_reading":
				r.want("permissions", "ok", "+info, which is needed for ReplicaAck.Majority and redlock.Options.MinUptime")
				r.want("eviction", "unknown", "+info")
				r.want("foreign-keys", "unknown", "+scan")
			case "no_publish":
				r.want("lock", "warning", "only 0 wake-ups")
			}
			wantNoKeys(t, s.Client())
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
	examine(t, 2, "redis://"+m.Addr()).want("permissions", "error", "+zmscore")
}
