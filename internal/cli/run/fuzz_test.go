package run

import (
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/spf13/cobra"
)

// dials reports whether a client of the URL would connect before it is used.
func dials(raw string) bool {
	plain, err := url.QueryUnescape(raw)
	return err == nil && strings.Contains(plain, "min_idle_conns")
}

// FuzzRunArguments checks that any command line of run either gives a lock with valid options, or a usage error. It only creates
// the lock: nothing is run, and no connection is made.
func FuzzRunArguments(f *testing.F) {
	for _, s := range []string{
		"x\n--\ntrue",
		"--kind=write\n--ttl=1m\n--wait=1s\nx\n--\ntrue\n--kind",
		"--kind\nread\n--max-lifetime\n1h\nx\n--\ntrue",
		"--kind\nsemaphore\n--limit\n3\n--permits\n4\nx\n--\ntrue",
		"--kind\nsemaphore\n--limit\n3\n--per\n1s\n--at-once\n2\nx\n--\ntrue",
		"--kind\nredlock\n--redis\nredis://a\n--redis\nredis://b\n--redis\nredis://c\nx\n--\ntrue",
		"--max-lifetime\n1ns\nx\n--\ntrue",
		"--prefix\n}\nx\n--\ntrue",
		"--redis\nredis://h?pool_size=-1\nx\n--\ntrue",
		"a}{b\n--\ntrue",
		"\n--\n",
		"--\n--",
		"--help",
		"--kind=\x00\nx\n--\ntrue",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if dials(line) {
			return
		}
		c := Command()
		created := false
		c.RunE = func(c *cobra.Command, args []string) error {
			flags := c.Flags()
			text := func(name string) string { return flags.Lookup(name).Value.String() }
			duration := func(name string) time.Duration { return must.Get(flags.GetDuration(name))(t) }
			count := func(name string) int { return must.Get(flags.GetInt(name))(t) }
			o := options{
				kind: text("kind"), ttl: duration("ttl"), maxLifetime: duration("max-lifetime"),
				limit: count("limit"), per: duration("per"), atOnce: count("at-once"), permits: count("permits"),
			}
			if err := o.validateKind(flags.Changed); err != nil {
				return err
			}
			conns, err := (&connect.Flags{URLs: must.Get(flags.GetStringArray("redis"))(t), Prefix: text("prefix")}).OpenAll()
			if err != nil {
				return err
			}
			var ks []*lockkeeper.Keeper
			for _, conn := range conns {
				defer conn.Close()
				ks = append(ks, conn.Keeper)
			}
			if _, err := o.newLock(ks, args[0]); err != nil {
				return err
			}
			created = true
			switch {
			case args[0] == "" || len(args[0]) > 1024 || len(args) < 2:
				t.Errorf("a lock was created from %q", args)
			case o.ttl < 10*time.Millisecond && o.ttl != 0, o.maxLifetime < 0:
				t.Errorf("a lock with TTL %v and maximum lifetime %v was created", o.ttl, o.maxLifetime)
			case o.kind == "semaphore" && (o.limit < 1 || o.permits < 1 || o.permits > o.limit || o.per < 0 || o.atOnce < 0):
				t.Errorf("a semaphore with --permits %d --limit %d --at-once %d --per %v was created", o.permits, o.limit, o.atOnce, o.per)
			}
			return nil
		}
		wrong := false
		c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { wrong = true; return err })
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		c.SetArgs(strings.Split(line, "\n"))
		err := c.Execute()
		var own *exit.Error
		usage := errors.As(err, &own) && own.Code == exit.Usage
		if err != nil && (created || !wrong && !usage && !errors.Is(err, lockkeeper.ErrInvalid)) {
			t.Errorf("%q: %v", line, err)
		}
	})
}
