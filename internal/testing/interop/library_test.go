package interop

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// ttl is long enough for a loaded machine. No test waits for it to pass.
const ttl = 10 * time.Second

// lockName is the name of the lock in all libraries.
const lockName = "orders:42"

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
	golang = language{"Go", []string{"go/client"}, "", "go/client"} // its source is in bench
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
	{language: golang, name: "redsync"},
	{language: golang, name: "redislock"},
	{language: java, name: "Spring RedisLockRegistry", prefix: "registry:"},
	{language: java, name: "ShedLock", prefix: "job-lock:default:", releasesAnything: true, silentRelease: true},
	{language: java, name: "ShedLock with safeUpdate", prefix: "job-lock:default:", silentRelease: true},
}

// world is a server, and a name that is one key for both libraries.
type world struct {
	*testing.T
	library
	s   *redistest.Server
	rdb redistest.Client
	ctx context.Context
	key string
}

var buildClient sync.Once // that of Go, since this library may have changed since interop/install

func newWorld(t *testing.T, l library) *world {
	if _, err := os.Stat(l.installed); err != nil {
		must.That(t, os.Getenv("LOCKKEEPER_NEED_INTEROP") == "", "the libraries of %s are not installed: %v", l.language.name, err)
		t.Skipf("the libraries of %s are not installed; make interop does it", l.language.name)
	}
	buildClient.Do(func() {
		out, err := exec.Command("go", "build", "-C", "../../../bench", "-o", "../internal/testing/interop/go/client", "./interopclient").CombinedOutput()
		must.That(t, err == nil, "%v: %s", err, out)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	s := redistest.Start(t)
	return &world{T: t, library: l, s: s, rdb: s.Client(), ctx: ctx, key: l.prefix + lockName}
}

// keeper is one of ours, with connections of its own.
func (w *world) keeper(opts *lockkeeper.Options) *lockkeeper.Keeper {
	w.Helper()
	return keepers.New(w, w.s.Client(), opts)
}

// mutex is ours, with a keeper of its own. Others do not say that they release a lock, so heartbeats find out; that they are
// quick does not matter to what is tested, only to how long it takes.
func (w *world) mutex(hooks lockkeeper.Hooks) *mutex.Mutex {
	w.Helper()
	k := w.keeper(&lockkeeper.Options{
		Prefix: w.prefix, NoPrefix: w.prefix == "", Hooks: hooks,
		HeartbeatInterval: 10 * time.Millisecond, HeartbeatTimeout: 5 * time.Second,
	})
	return must.Get(mutex.New(k, lockName, &mutex.Options{TTL: ttl}))(w)
}

// value is the token in the key, or "".
func (w *world) value() string {
	w.Helper()
	v, err := w.rdb.Get(w.ctx, w.key).Result()
	if !errors.Is(err, redis.Nil) {
		must.OK(w, err)
	}
	return v
}

func (w *world) requireValue(want string) {
	w.Helper()
	v := w.value()
	check.That(w, v == want, "the key holds %q, want %q", v, want)
}

// process is a client.
type process struct {
	w     *world
	child *redistest.Child
}

// start starts a client of the other library.
func (w *world) start() *process {
	w.Helper()
	return w.startClient(w.language, w.library.name, lockName)
}

// startOurs starts a client of this library.
func (w *world) startOurs() *process {
	w.Helper()
	return w.startClient(golang, "lockkeeper", w.key)
}

func (w *world) startClient(l language, library, name string) *process {
	w.Helper()
	args := append(l.command[1:len(l.command):len(l.command)], library, w.s.Addr, name)
	cmd := exec.Command(l.command[0], args...)
	cmd.Env = append(os.Environ(), l.env)
	return &process{w, redistest.StartCommand(w.T, cmd)}
}

func (p *process) send(command string) {
	p.w.Helper()
	p.child.WriteLine(command)
}

// answer waits for the answer to the last command and checks how it begins.
func (p *process) answer(want string) {
	p.w.Helper()
	select {
	case line := <-p.child.Lines:
		must.That(p.w, strings.HasPrefix(line, want), "the client of %s answered %q, want %q", p.w.library.name, line, want)
	case <-p.w.ctx.Done():
		p.w.Fatalf("the client of %s has not answered %q in time", p.w.library.name, want)
	}
}

func (p *process) ask(command, want string) {
	p.w.Helper()
	p.send(command)
	p.answer(want)
}
