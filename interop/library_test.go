package interop

import (
	"context"
	"errors"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// language is how the clients of a language are run, and a file that is there once interop/install has run.
type language struct {
	name      string
	command   []string
	env       string
	installed string
}

var (
	python = language{"Python", []string{"python3", "python/client.py"}, "PYTHONPATH=python/packages", "python/packages/redis"}
	node   = language{"Node", []string{"node", "node/client.mjs"}, "", "node/node_modules/ioredis"}
	java   = language{"Java", []string{"java", "-XX:TieredStopAtLevel=1", "-Dslf4j.internal.verbosity=ERROR", "-cp", "java/target/classes:java/target/lib/*", "Client"}, "", "java/target/classes/Client.class"}
)

// library is a lock of another library.
type library struct {
	language
	name   string
	prefix string // which it puts before names

	// What it does otherwise than the others.
	releasesAnything bool // its release deletes the key, whoever's token is there
	silentRelease    bool // its release does not say that there was nothing to release
	sleeps           bool // its waiters are woken by its own releases only, or when they have slept for 2 s
}

var libraries = []library{
	{language: python, name: "redis-py"},
	{language: python, name: "python-redis-lock", prefix: "lock:", sleeps: true},
	{language: python, name: "pottery", prefix: "redlock:"},
	{language: node, name: "node-redlock 5"},
	{language: node, name: "node-redlock 4"},
	{language: node, name: "redis-semaphore", prefix: "mutex:", silentRelease: true},
	{language: java, name: "Spring RedisLockRegistry", prefix: "registry:"},
	{language: java, name: "ShedLock", prefix: "job-lock:default:", releasesAnything: true, silentRelease: true},
	{language: java, name: "ShedLock with safeUpdate", prefix: "job-lock:default:", silentRelease: true},
}

// world is a server, and a name that is one key for both libraries.
type world struct {
	*testing.T
	library
	s   *redistest.Server
	rdb *redis.Client
	ctx context.Context
	key string
}

// lockName is the name of the lock for the other library.
const lockName = "orders:42"

func newWorld(t *testing.T, l library) *world {
	if _, err := os.Stat(l.installed); err != nil {
		if os.Getenv("LOCKKEEPER_NEED_INTEROP") != "" {
			t.Fatalf("the libraries of %s are not installed: %v", l.language.name, err)
		}
		t.Skipf("the libraries of %s are not installed; make interop does it", l.language.name)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	s := redistest.Start(t)
	return &world{T: t, library: l, s: s, rdb: s.Client(), ctx: ctx, key: l.prefix + lockName}
}

func (w *world) must(err error) {
	if err != nil {
		w.Helper()
		w.Fatal(err)
	}
}

// keeper is one of ours, with connections of its own.
func (w *world) keeper(opts *lockkeeper.Options) *lockkeeper.Keeper {
	w.Helper()
	k := must.Get(lockkeeper.New(w.s.Client(), opts))(w)
	w.Cleanup(func() { _ = k.Close() })
	return k
}

// mutex is ours, with a keeper of its own.
func (w *world) mutex(opts *lockkeeper.Options) *mutex.Mutex {
	w.Helper()
	return must.Get(mutex.New(w.keeper(opts), w.key, &mutex.Options{TTL: ttl}))(w)
}

// value is the token in the key, or "".
func (w *world) value() string {
	w.Helper()
	v, err := w.rdb.Get(w.ctx, w.key).Result()
	if !errors.Is(err, redis.Nil) {
		w.must(err)
	}
	return v
}

// process is a client.
type process struct {
	w     *world
	child *redistest.Child
}

// start starts a client of the other library.
func (w *world) start() *process {
	w.Helper()
	args := append(w.command[1:len(w.command):len(w.command)], w.library.name, w.s.Addr, lockName)
	cmd := exec.Command(w.command[0], args...)
	cmd.Env = append(os.Environ(), w.env)
	return &process{w, redistest.StartCommand(w.T, cmd)}
}

// startOurs starts a client of this library.
func (w *world) startOurs() *process {
	w.Helper()
	return &process{w, redistest.StartChild(w.T, "LOCKKEEPER_INTEROP_CLIENT="+w.s.Addr+" "+w.key)}
}

func (p *process) send(command string) {
	p.w.Helper()
	p.child.WriteLine(command)
}

// answer waits for the answer to the last command and checks how it begins.
func (p *process) answer(want string) {
	p.w.Helper()
	select {
	case line, ok := <-p.child.Lines:
		if !ok || !strings.HasPrefix(line, want) {
			p.w.Fatalf("the client of %s answered %q, want %q", p.w.library.name, line, want)
		}
	case <-p.w.ctx.Done():
		p.w.Fatalf("the client of %s has not answered %q in time", p.w.library.name, want)
	}
}

func (p *process) ask(command, want string) {
	p.w.Helper()
	p.send(command)
	p.answer(want)
}
