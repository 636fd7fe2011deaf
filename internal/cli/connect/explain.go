package connect

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"syscall"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// Explain adds to an error of a command what to do about it. It replaces one that does not say what is wrong: if a Sentinel answers
// but does not know the name of the primary, go-redis says that it is unreachable, in several lines.
func Explain(err error, c *cobra.Command) error {
	if errors.Is(err, redis.Nil) {
		text := strings.ReplaceAll(exit.Message(err), "\n", "; ")
		return &exit.Error{Code: exit.Unreachable, Err: fmt.Errorf("a Sentinel has no primary of this name; correct master_name in the URL (%s)", text)}
	}
	if hint := Hint(err, usesTLS(c)); hint != "" {
		return fmt.Errorf("%w: %s", err, hint)
	}
	return err
}

// usesTLS reports whether the deployment of a command, or any of several, is reached by TLS.
func usesTLS(c *cobra.Command) bool {
	urls, err := c.Flags().GetStringArray("redis")
	if err != nil {
		return false
	}
	for _, raw := range append(urls, "")[:max(len(urls), 1)] {
		if t, err := redisurl.Parse(raw, redisurl.Credentials{}); err == nil && t.TLS() {
			return true
		}
	}
	return false
}

// noPermission is what Redis says about a command that the user may not run, in all versions from 6.0 on.
var noPermission = regexp.MustCompile(`NOPERM .*? (?:to run|can't run) the '([a-z0-9_|-]+)' command`)

// Hint says what to do about an error of a server; "" if the error says enough.
func Hint(err error, tls bool) string {
	text := err.Error()
	var unknown x509.UnknownAuthorityError
	switch command := noPermission.FindStringSubmatch(text); {
	case (errors.Is(err, io.EOF) || strings.HasSuffix(text, "EOF")) && tls:
		return "the server closed the connection; if this port does not expect TLS, use redis:// instead of rediss://"
	case errors.Is(err, io.EOF), strings.HasSuffix(text, "EOF"):
		return "the server closed the connection; if this port expects TLS, use rediss:// instead of redis://"
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "this port does not speak TLS; use redis:// instead of rediss://"
	case errors.As(err, &unknown), strings.Contains(text, "certificate signed by unknown authority"):
		return "give the certificate of its authority by --cacert"
	case strings.Contains(text, "tls: certificate required"), strings.Contains(text, "tls: bad certificate"):
		return "the server requires a client certificate that it knows; give it by --cert and --key"
	case tls && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)):
		// With TLS 1.3 a client learns only after the handshake that its certificate is missing, and a write may meet the closed connection first.
		return "the server closed the connection; if it requires a client certificate, give it by --cert and --key"
	case tls && !errors.Is(err, lockkeeper.ErrNotAcquired) && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)):
		// A server of Redis takes the first message of TLS for the beginning of a command, whose rest it awaits.
		return "the server has not answered with TLS; if this port does not expect it, use redis:// instead of rediss://"
	case errors.Is(err, client.ErrClusterNode):
		return "use a redis+cluster:// URL"
	case strings.Contains(text, "cluster support disabled"):
		return "this server is not part of a cluster: use a redis:// URL"
	case redis.HasErrorPrefix(err, "READONLY"), redis.HasErrorPrefix(err, "MASTERDOWN"):
		return "this is a replica; if it stays one, use the URL of the primary, or one that finds it: redis+sentinel:// or redis+cluster://"
	case strings.Contains(text, "NOAUTH"):
		return "give the password in the URL, by --password-file or in REDIS_PASSWORD"
	case command != nil:
		return fmt.Sprintf("add the rule +%s to the user, and see \"Permissions\" in the documentation of operations for all that are needed", command[1])
	}
	return ""
}
