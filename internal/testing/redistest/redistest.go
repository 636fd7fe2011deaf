// Package redistest starts real Redis servers for tests and benchmarks, as processes on free loopback ports. They
// end with the test, or with the test binary if that is killed.
package redistest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// TB is the part of testing.TB that servers need. Programs can implement it themselves. As in a test, Fatal,
// Fatalf and Skipf must not return.
type TB interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(f func())
	TempDir() string
}

// must ends the test if there is an error.
func must(t TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Binary returns the path of the server to run: REDIS_SERVER if it is set, otherwise redis-server from PATH.
func Binary() (string, error) {
	if path := os.Getenv("REDIS_SERVER"); path != "" {
		return exec.LookPath(path)
	}
	return exec.LookPath("redis-server")
}

// RequireBinary returns the path of redis-server. Without one it skips the test, or fails it if
// LOCKKEEPER_NEED_REDIS is set, as in CI.
func RequireBinary(t TB) string {
	t.Helper()
	path, err := Binary()
	if err == nil {
		return path
	}
	if os.Getenv("LOCKKEEPER_NEED_REDIS") != "" {
		t.Fatalf("this test needs a redis-server: %v", err)
	}
	t.Skipf("no redis-server on PATH, so this test on a real server is not run: %v", err)
	return ""
}

// All reports whether everything is tested on real servers: with LOCKKEEPER_REAL=all, as by make versions. Otherwise what several
// primitives have in common is tested there with one of them.
func All() bool { return os.Getenv("LOCKKEEPER_REAL") == "all" }

// Server is one redis-server process.
type Server struct {
	Addr string
	Port int
	Dir  string

	t    TB
	args []string
	env  []string // besides that of this process

	mu   sync.Mutex
	cmd  *exec.Cmd
	out  *bytes.Buffer
	done chan struct{}
}

// Start starts a server without persistence. args are further options, such as "--maxmemory", "4mb".
func Start(t TB, args ...string) *Server {
	t.Helper()
	return StartWith(t, nil, args...)
}

// StartWith is Start with further variables in the environment of the server.
func StartWith(t TB, env []string, args ...string) *Server {
	t.Helper()
	RequireBinary(t)
	s := &Server{t: t, Dir: t.TempDir(), Port: FreePort(t), env: env}
	s.Addr = "127.0.0.1:" + strconv.Itoa(s.Port)
	s.args = append([]string{
		"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.Dir, "--save", "", "--appendonly", "no",
		"--enable-debug-command", "local", "--daemonize", "no",
		"--repl-diskless-sync-delay", "0", // otherwise a replica waits five seconds for others to sync with
	}, args...)
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

// Restart starts the process, again after Kill, and returns when it answers.
func (s *Server) Restart() {
	s.t.Helper()
	s.launch(s.args...)
	for range 1000 { // net.Dial, because go-redis logs every refused connection
		c, err := net.Dial("tcp", s.Addr)
		if err == nil {
			_ = c.Close()
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.Await("PONG", func(ctx context.Context, c Client) (string, error) { return c.Ping(ctx).Result() })
	// If another process has the port, this server ends.
	s.Await(strconv.Itoa(s.PID()), func(ctx context.Context, c Client) (string, error) {
		return field(c.Info(ctx, "server").Result())("process_id")
	})
}

func (s *Server) launch(args ...string) {
	s.t.Helper()
	cmd := exec.Command(RequireBinary(s.t), args...)
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(cmd.Environ(), s.env...)
	if err := start(cmd); err != nil {
		s.t.Fatalf("redis-server: %v", err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	s.mu.Lock()
	s.cmd, s.out, s.done = cmd, out, done
	s.mu.Unlock()
}

// Await repeats ask until its result is want.
func (s *Server) Await(want string, ask func(context.Context, Client) (string, error)) {
	s.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: time.Second, ReadTimeout: 2 * time.Second})
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		got, err := ask(ctx, c)
		if err == nil && got == want {
			return
		}
		select {
		case <-s.exited():
			s.t.Fatalf("redis-server at %s has ended:\n%s", s.Addr, s.output())
		case <-ctx.Done():
			s.t.Fatalf("redis-server at %s: %q, %v; want %q\n%s", s.Addr, got, err, want, s.output())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *Server) exited() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

func (s *Server) output() string {
	select {
	case <-s.exited():
		return s.out.String()
	default:
		return "(it is still running)"
	}
}

// Client is a *redis.Client without what names the types of clients: they would slow down the build of each package that has a
// Server or asks it something (see package client). Connect returns one with all methods. Functions that return a Client are not
// inlined, because their callers would then see the type in them.
type Client interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
	Process(ctx context.Context, cmd redis.Cmder) error
	AddHook(hook redis.Hook)
	PoolStats() *redis.PoolStats
	Close() error
}

// Client returns a client that is closed with the test.
//
//go:noinline
func (s *Server) Client() Client { return Connect(s) }

// Connect returns a client that is closed with the test.
func Connect(s *Server) *redis.Client { return connect(s.t, &redis.Options{Addr: s.Addr}) }

// At returns a client of the server at an address, such as an embedded one. It is closed with the test.
//
//go:noinline
func At(t TB, addr string) Client { return connect(t, &redis.Options{Addr: addr}) }

// On returns a client on a network that waits timeout for a reply. It is closed with the test.
//
//go:noinline
func On(t TB, n *faultnet.Net, timeout time.Duration) Client {
	return connect(t, faultnet.Options(n, timeout))
}

func connect(t TB, o *redis.Options) *redis.Client {
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// PID returns the process id.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cmd.Process.Pid
}

// Kill ends the process by SIGKILL and waits for its end.
func (s *Server) Kill() {
	_ = syscall.Kill(s.PID(), syscall.SIGKILL)
	<-s.exited()
}

// Freeze stops the process by SIGSTOP and returns when it has stopped.
func (s *Server) Freeze() {
	s.t.Helper()
	must(s.t, Freeze(s.PID()))
}

// Thaw continues a frozen process.
func (s *Server) Thaw() { _ = syscall.Kill(s.PID(), syscall.SIGCONT) }

// StartProcess starts a process that, on Linux, is killed when this one ends, however it ends.
func StartProcess(cmd *exec.Cmd) error { return start(cmd) }

// Freeze stops a process and returns when it has stopped: the signal takes effect with a delay.
func Freeze(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for range 500 {
		if stopped(pid) {
			return nil
		}
		time.Sleep(2 * time.Millisecond)
	}
	return fmt.Errorf("process %d did not stop", pid)
}

// IgnoreStarter makes goleak ignore the goroutine that starts processes, which never ends.
func IgnoreStarter() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/lockkeeper/lockkeeper/internal/testing/redistest.startAll")
}

// FreePort returns a loopback port that nothing listens on. It is outside the range from which systems choose
// ports for outgoing connections and for listeners on port 0. Otherwise a test elsewhere on the machine could get
// the port before the server starts, or while it is killed and restarted.
func FreePort(t TB) int {
	t.Helper()
	const first, last = 10_000, 32_000
	for range 1000 {
		port := first + rand.IntN(last-first)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		_ = l.Close()
		ports.Lock()
		taken := ports.taken[port]
		ports.taken[port] = true
		ports.Unlock()
		if !taken {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

var ports = struct {
	sync.Mutex
	taken map[int]bool
}{taken: map[int]bool{}}

// ScriptCalls returns what counts the scripts that the server has run.
func (s *Server) ScriptCalls(t TB) func() float64 {
	admin := s.Client()
	return func() (n float64) {
		t.Helper()
		stats := admin.InfoMap(context.Background(), "commandstats").Item("Commandstats", "cmdstat_evalsha")
		if _, err := fmt.Sscanf(stats, "calls=%g", &n); err != nil {
			t.Fatalf("%q: %v", stats, err)
		}
		return n
	}
}

// DocumentedUser returns what docs/operations.md, at this path, tells to give to ACL SETUSER: the name of the user and its rules.
func DocumentedUser(t TB, path string) (fields []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	_, rest, found := strings.Cut(string(text), "```\nACL SETUSER ")
	rule, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatalf("no ACL SETUSER in %s", path)
	}
	return strings.Fields(rule)
}
