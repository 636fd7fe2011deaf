package connect_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// The texts are those of Redis 6.0, 7.0 and Valkey 8.
func TestHintNamesTheRuleThatIsMissing(t *testing.T) {
	for text, want := range map[string]string{
		"NOPERM this user has no permissions to run the 'scan' command or its subcommand":          "+scan ",
		"NOPERM this user has no permissions to run the 'scan' command":                            "+scan ",
		"NOPERM User locks has no permissions to run the 'config|get' command":                     "+config|get ",
		"NOPERM this user has no permissions to access one of the keys used as arguments":          "",
		"lockkeeper: list locks: NOPERM User default has no permissions to run the 'scan' command": "+scan ",
		"it works": "",
	} {
		hint := connect.Hint(errors.New(text), false)
		if want == "" && hint != "" || !strings.Contains(hint, want) {
			t.Errorf("%s: %q", text, hint)
		}
	}
}

func TestHintOfDeployments(t *testing.T) {
	for _, c := range []struct {
		err  error
		tls  bool
		want string
	}{
		{server.Chain(lockkeeper.ErrUnavailable, context.DeadlineExceeded), true, "use redis:// instead of rediss://"},
		{server.Chain(server.ErrNoAnswer, context.DeadlineExceeded), true, "use redis:// instead of rediss://"},
		{server.Chain(lockkeeper.ErrUnavailable, context.DeadlineExceeded), false, ""},
		{server.Chain(lockkeeper.ErrNotAcquired, context.DeadlineExceeded), true, ""},
		{fmt.Errorf("mutex: %w: %w", client.ErrClusterNode, errors.New("MOVED 1 a:1")), false, "redis+cluster://"},
		{errors.New("ERR This instance has cluster support disabled"), false, "redis:// URL"},
	} {
		hint := connect.Hint(c.err, c.tls)
		if c.want == "" && hint != "" || !strings.Contains(hint, c.want) {
			t.Errorf("%v, TLS %t: %q, want %q", c.err, c.tls, hint, c.want)
		}
	}
}

// With TLS 1.3 a connection may break before the client reads that its certificate is missing.
func TestHintOfConnectionThatTheServerCloses(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ECONNRESET, syscall.EPIPE} {
		err := fmt.Errorf("list locks: %w", &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", errno)})
		if hint := connect.Hint(err, true); !strings.Contains(hint, "--cert and --key") {
			t.Errorf("%v over TLS: %q", err, hint)
		}
		if hint := connect.Hint(err, false); hint != "" {
			t.Errorf("%v: %q", err, hint)
		}
	}
}
