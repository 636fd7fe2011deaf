package lockkeepertest

import (
	"context"
	"crypto/fips140"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

func init() { quiet.Redis() }

// background is the context of all commands: that of a test has ended when its cleanups run.
var background = context.Background()

// redisURL is the environment variable with the URL of a real server.
const redisURL = "LOCKKEEPERTEST_REDIS_URL"

// Server is a Redis server for one test and its subtests. It is safe for concurrent use.
type Server struct {
	*server
	kind string // "": any
}

// server is what all views of a Server share.
type server struct {
	bubble  bool                 // it is in a testing/synctest bubble
	mini    *miniredis.Miniredis // nil: a real server
	url     string               // "" in a bubble
	options redis.Options        // of clients
	admin   *redis.Client        // without faults
	look    *lockkeeper.Keeper   // of admin, without a prefix; it only looks

	mu        sync.Mutex // guards what follows
	prefixes  []string   // of the keepers
	processes []*process
	faults    faults // of all processes

	uses atomic.Uint64 // see process.keepers
}

// process is a client that stands for one process of the application.
type process struct {
	net *faultnet.Net
	rdb *redis.Client

	mu       sync.Mutex
	keepers  map[string]uint64 // the keepers' ids that the client has sent, with a number that is larger the later that was
	crashed  bool
	reported bool // a lease of it was reported as left behind
}

// lastUse returns a number that is larger the later the client has sent a keeper's id, or 0.
func (p *process) lastUse(id string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keepers[id]
}

// New starts a server, which is stopped when the test ends. The test then fails if it has left something behind: a lease that
// is held, a request that waits, or a goroutine of a keeper that was not closed. A lease that lingers for more than 2 s longer counts
// as held. What a crashed process leaves behind does not count. In a bubble of synctest, a keeper that was not closed also ends
// the test binary, with a panic about blocked goroutines after that failure.
//
// For a redlock, call New once for each of its servers.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{server: &server{bubble: inBubble(), prefixes: []string{protocol.DefaultPrefix}}}
	if address := os.Getenv(redisURL); address != "" && !s.bubble {
		s.claimDatabase(t, address)
	} else {
		s.startEmbedded(t)
	}
	var err error
	s.look, err = lockkeeper.New(s.admin, &lockkeeper.Options{NoPrefix: true, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	s.addTo(t)
	return s
}

// startEmbedded starts a server in this process.
func (s *Server) startEmbedded(t testing.TB) {
	t.Helper()
	s.mini = miniredis.NewMiniRedis()
	s.mini.ClockTTL(true)
	s.options.Addr = "127.0.0.1:1" // a name would be looked up outside of the bubble
	if !s.bubble {
		fips140.WithoutEnforcement(func() { must(t, s.mini.Start()) }) // because the server computes SHA-1, in goroutines that begin here
		s.options.Addr = s.mini.Addr()
		s.url = "redis://" + s.mini.Addr()
	}
	s.admin = s.newClient(s.dial)
}

// stop closes all clients and stops the server.
func (s *server) stop(t testing.TB) {
	t.Helper()
	if s.mini == nil {
		if err := s.admin.FlushDB(background).Err(); err != nil {
			t.Errorf("lockkeepertest: %v", err)
		}
	}
	for _, p := range s.processes {
		_ = p.rdb.Close()
	}
	_ = s.admin.Close()
	if s.bubble {
		time.Sleep(time.Minute) // goroutines of go-redis look once a second whether their pool was closed
	}
	if s.mini != nil {
		s.mini.Close()
	}
}

// claimDatabase takes an empty database of a real server.
func (s *Server) claimDatabase(t testing.TB, address string) {
	t.Helper()
	o, err := redis.ParseURL(address)
	must(t, err)
	const claim = `if redis.call('DBSIZE') > 0 then return 0 end redis.call('SET', KEYS[1], ARGV[1], 'EX', 3600) return 1`
	for ; s.admin == nil; o.DB++ {
		s.options = *o
		rdb := s.newClient(s.dial)
		got, err := rdb.Eval(background, claim, []string{claimKey}, t.Name()).Int()
		if err != nil {
			_ = rdb.Close()
			t.Fatalf("lockkeepertest: no empty database at %s, the server in %s (%v). If it is for tests only, FLUSHALL empties it", o.Addr, redisURL, err)
		}
		if got == 1 {
			s.admin = rdb
		} else {
			_ = rdb.Close()
		}
	}
	u, err := url.Parse(address)
	must(t, err)
	if db := strconv.Itoa(s.options.DB); u.Scheme == "unix" {
		q := u.Query()
		q.Set("db", db)
		u.RawQuery = q.Encode()
	} else {
		u.Path = "/" + db
	}
	s.url = u.String()
}

// claimKey is the key that marks a database of a real server as in use.
const claimKey = "lockkeepertest"

// dial connects to the server.
func (s *Server) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if s.bubble {
		return faultnet.Buffer(func(context.Context, string, string) (conn net.Conn, err error) {
			fips140.WithoutEnforcement(func() { conn, err = s.mini.Dial() })
			return conn, err
		})(ctx, network, addr)
	}
	o := s.options
	o.DialTimeout = 5 * time.Second
	return redis.NewDialer(&o)(ctx, network, addr)
}

// newClient returns a client with a dialer.
func (s *Server) newClient(dial faultnet.Dialer) *redis.Client {
	o, base := s.options, faultnet.Options(faultnet.New(dial), 0)
	o.Dialer, o.DialerRetries, o.MaintNotificationsConfig = dial, base.DialerRetries, base.MaintNotificationsConfig
	return redis.NewClient(&o)
}

// Client returns a new client of the server, which is closed when the server stops. The client stands for one process: a crash
// or a freeze affects everything that uses it. Give it to code under test that makes its own keeper. That code must close its
// keeper before the test ends.
func (s *Server) Client(t testing.TB) *redis.Client {
	t.Helper()
	return s.newProcess(t).rdb
}

// keeperID matches the id and the address of a keeper at the beginning of a token or at the end of a channel.
var keeperID = regexp.MustCompile(`[\n:]([0-9A-Za-z]{12})[0-9A-Za-z]{8}\.[0-9s]{1,4}[:\r]`)

func (s *Server) newProcess(t testing.TB) *process {
	t.Helper()
	s.check(t)
	p := &process{net: faultnet.New(s.dial), keepers: map[string]uint64{}}
	p.net.Watch(func(sent []byte) {
		for _, match := range keeperID.FindAllSubmatch(sent, -1) {
			id := string(match[1])
			p.mu.Lock()
			p.keepers[id] = s.uses.Add(1)
			p.mu.Unlock()
		}
	})
	p.rdb = s.newClient(p.net.Dial)
	if !s.bubble {
		p.rdb.AddHook(bubbleHook{s.server, t})
	}
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.faults.apply(p.net)
	s.mu.Unlock()
	return p
}

// Keeper returns a new keeper with a client of its own, so it stands for one process. Nil options mean the defaults; without a
// Logger, warnings are logged to the test. The keeper is closed when the test ends. If it still holds a lease then, the test
// fails.
func (s *Server) Keeper(t testing.TB, opts *lockkeeper.Options) *lockkeeper.Keeper {
	t.Helper()
	var o lockkeeper.Options
	if opts != nil {
		o = *opts
	}
	if o.Logger == nil {
		log := &testLog{w: t.Output()}
		t.Cleanup(log.close)
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	p := s.newProcess(t)
	o.Hooks = s.checking(t, o.Hooks)
	k, err := lockkeeper.New(p.rdb, &o)
	must(t, err)
	s.mu.Lock()
	switch {
	case o.NoPrefix:
		s.addPrefix("")
	case o.Prefix != "":
		s.addPrefix(o.Prefix)
	}
	s.mu.Unlock()
	t.Cleanup(func() {
		p.net.Restore()
		s.mu.Lock()
		if s.faults.unreachable {
			p.net.Cut() // or a release in progress waits for a reply for longer than Close does
		}
		s.mu.Unlock()
		s.reportHeld(t, p, k.ID())
		_ = k.Close() // its error is about what the test did to the server
		_ = p.rdb.Close()
	})
	return k
}

func (s *server) addPrefix(prefix string) {
	if !slices.Contains(s.prefixes, prefix) {
		s.prefixes = append(s.prefixes, prefix)
	}
}

// testLog writes to a test until it ends.
type testLog struct {
	mu     sync.Mutex
	w      io.Writer
	closed bool
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return len(p), nil
	}
	return l.w.Write(p)
}

func (l *testLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// URL returns the URL of the server, such as redis://127.0.0.1:40123, for programs that the test starts. Faults of processes
// and connections do not affect them. URL fails the test in a synctest bubble, where there are no sockets.
func (s *Server) URL(t testing.TB) string {
	t.Helper()
	if s.url == "" {
		t.Fatal("lockkeepertest: URL in a synctest bubble, where the server has no socket; use Client")
	}
	return s.url
}

// Kind returns a Server whose methods look for locks of one kind only, such as mutex.Kind. It is needed only if locks
// of several kinds have the same name. A redlock is a mutex to each of its servers. Kind panics if there is no such kind.
func (s *Server) Kind(kind lockkeeper.Kind) *Server {
	if !slices.ContainsFunc(lua.All, func(set *lua.Set) bool { return set.Kind == string(kind) }) {
		panic(fmt.Sprintf("lockkeepertest: there is no kind %q of locks", kind))
	}
	if string(kind) == lua.Redlock.Kind {
		return &Server{s.server, lua.Mutex.Kind}
	}
	return &Server{s.server, string(kind)}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatalf("lockkeepertest: %s", strings.TrimPrefix(err.Error(), "lockkeepertest: "))
	}
}
