package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"syscall"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// inspects starts the command inspect, and returns it with the URL that it prints.
func inspects(t *testing.T, args ...string) (*testCommand, string) {
	t.Helper()
	_, url := server(t)
	c := command(t, append([]string{"inspect", "--redis", url}, args...)...)
	c.Stdout = nil
	out := must.Get(c.StdoutPipe())(t)
	c.starts()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil { // else the command writes to c.err
		t.Fatalf("%v: %s", err, c.err.String())
	}
	return c, strings.TrimSpace(line)
}

// page returns the status of a page and its text. The client must not be blocked by an open stream.
func page(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	r := must.Get(client.Get(url))(t)
	defer func() { _ = r.Body.Close() }()
	body := must.Get(io.ReadAll(r.Body))(t)
	return r.StatusCode, string(body)
}

func TestInspectServesUntilInterrupted(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		c, url := inspects(t, "--addr", "127.0.0.1:0")
		if status, body := page(t, http.DefaultClient, url); status != 200 || !strings.Contains(body, "<h1") {
			t.Errorf("%d %s", status, body)
		}
		if status, body := page(t, http.DefaultClient, url+"break?kind=fair&name=x&what=all"); status != 403 || !strings.Contains(body, "read-only") {
			t.Errorf("%d %s", status, body)
		}
		r := must.Get(http.Get(url + "events?of=list"))(t) // a page that is open
		defer func() { _ = r.Body.Close() }()
		c.isEndedBy(sig)
	}
}

func TestInspectWithBreakNeedsToken(t *testing.T) {
	t.Parallel()
	c, url := inspects(t, "--break", "--addr", "127.0.0.1:0")
	root, token, found := strings.Cut(url, "?token=")
	must.That(t, found && len(token) >= 20, "the URL is %s", url)
	browser := &http.Client{Jar: must.Get(cookiejar.New(nil))(t)}
	for _, visit := range []struct {
		url    string
		status int
	}{{root, 403}, {url, 200}, {root + "break?kind=fair&name=x&what=all", 409}} {
		status, body := page(t, browser, visit.url)
		check.That(t, status == visit.status && !strings.Contains(body, token), "%s: %d %s", visit.url, status, body)
	}
	c.isEndedBy(syscall.SIGINT)
}

func TestInspectAddresses(t *testing.T) {
	t.Parallel()
	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()
	command(t, "inspect", "--addr", taken.Addr().String()).ends(exit.Usage, "in use")
	_, url := inspects(t, "--allow-remote", "--addr", "0.0.0.0:0")
	check.That(t, strings.Contains(url, "?token="), "no token in %s", url)
}
