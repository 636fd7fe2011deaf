package inspector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
)

// fake is a source that shows what a test has put into it, and counts what it is asked for.
type fake struct {
	mu       sync.Mutex
	entries  []admin.LockSummary
	locks    map[lockID]*admin.LockState
	err      error         // of everything
	takes    time.Duration // each look
	lists    map[string]int
	inspects map[lockID]int
	active   int // lists in progress
	overlaps int // lists that began during another
	broken   []admin.BreakOptions
	nothing  bool // a break finds nothing to end
	oneNode  bool // of a Cluster
	process  lockkeeper.Stats
}

func newFake() *fake {
	return &fake{locks: map[lockID]*admin.LockState{}, lists: map[string]int{}, inspects: map[lockID]int{}}
}

func (f *fake) wait(ctx context.Context) error {
	f.mu.Lock()
	takes := f.takes
	f.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *fake) list(ctx context.Context, pattern string, limit int) (l listing, err error) {
	f.mu.Lock()
	f.lists[pattern]++
	f.active++
	if f.active > 1 {
		f.overlaps++
	}
	f.mu.Unlock()
	err = f.wait(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active--
	l.oneNode = f.oneNode
	for _, e := range f.entries {
		if pattern != "" && !protocol.MatchGlob(pattern, e.Name) {
			continue
		}
		if len(l.entries) == limit {
			l.more = true
			break
		}
		l.entries = append(l.entries, e)
	}
	return l, err
}

func (f *fake) Stats() lockkeeper.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.process
}

func (f *fake) inspect(ctx context.Context, id lockID) (*admin.LockState, error) {
	f.mu.Lock()
	f.inspects[id]++
	i := f.locks[id]
	f.mu.Unlock()
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	if i == nil {
		i = &admin.LockState{Kind: id.kind, Name: id.name}
	}
	return i, nil
}

func (f *fake) breakLock(_ context.Context, id lockID, opts admin.BreakOptions) (*admin.BreakResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = append(f.broken, opts)
	b := &admin.BreakResult{}
	if i := f.locks[id]; i != nil && !f.nothing {
		other := func(token string) bool { return !opts.All && token != opts.Token }
		b.Holders = slices.DeleteFunc(slices.Clone(i.Holders), func(h lockkeeper.Holder) bool { return other(h.Token) })
		b.Waiters = slices.DeleteFunc(slices.Clone(i.Waiters), func(w lockkeeper.Waiter) bool { return other(w.Token) })
	}
	b.Notified = len(b.Holders)
	return b, f.err
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// looks returns how often the list was read.
func (f *fake) looks() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, looks := range f.lists {
		n += looks
	}
	return n
}

func (f *fake) names(n int) {
	for i := range n {
		f.entries = append(f.entries, admin.LockSummary{Kind: "mutex", Name: fmt.Sprintf("name-%05d", i), Holders: 1, ExpiresIn: 20 * time.Second})
	}
}

// token is a token as a keeper makes it.
func token(keeper string, serial int) string { return fmt.Sprintf("%s:%d:30000.6000", keeper, serial) }

func (f *fake) queue(id lockID, n int) *admin.LockState {
	i := &admin.LockState{Kind: id.kind, Name: id.name, Fence: 1795741200000000}
	i.Holders = []lockkeeper.Holder{{
		Token: token("aaaaaaaa-holder", 1), Keeper: "aaaaaaaa-holder", Owner: "web-1:11 billing", Since: time.UnixMicro(1795741200000000),
		Fence: 1795741200000000, ExpiresIn: 15 * time.Second,
	}}
	for n := range n {
		i.Waiters = append(i.Waiters, lockkeeper.Waiter{
			Token: token("bbbbbbbb-waiter", n+2), Keeper: "bbbbbbbb-waiter", Owner: fmt.Sprintf("web-2:%d worker", n), WaitTime: time.Minute, Alive: true,
		})
	}
	f.set(func() { f.locks[id] = i })
	return i
}

// testHandler is a handler of a fake.
type testHandler struct {
	*testing.T
	*Handler
	log *strings.Builder
}

func serve(t *testing.T, f *fake, opts Options) *testHandler {
	t.Helper()
	log := &strings.Builder{}
	opts.Logger = slog.New(slog.NewTextHandler(log, nil))
	h := must.Get(newHandler(f, &opts))(t)
	t.Cleanup(h.Close)
	return &testHandler{t, h, log}
}

// get returns a page, which must have a status and contain some texts.
func (h *testHandler) get(url string, status int, says ...string) string {
	h.Helper()
	return h.do(httptest.NewRequest(http.MethodGet, url, nil), status, says...)
}

// post sends a form, as its page would.
func (h *testHandler) post(url, form string, status int, says ...string) string {
	h.Helper()
	return h.do(posted(url, form), status, says...)
}

func posted(url, form string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, url, strings.NewReader(form))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

// lacks checks that a page has none of the texts.
func (h *testHandler) lacks(page string, texts ...string) {
	h.Helper()
	for _, text := range texts {
		check.That(h, !strings.Contains(page, text), "%q in:\n%s", text, page)
	}
}

func (h *testHandler) do(r *http.Request, status int, says ...string) string {
	h.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	check.That(h, w.Code == status, "%s %s: %d, want %d: %s", r.Method, r.URL, w.Code, status, w.Body)
	for _, s := range says {
		check.That(h, strings.Contains(w.Body.String(), s), "%s %s has no %q:\n%s", r.Method, r.URL, s, w.Body)
	}
	return w.Body.String()
}

// browser receives an event stream.
type browser struct {
	header   http.Header
	got      quiet.Buffer
	deadline time.Time
	block    chan struct{} // if set, writes wait until it is closed or the deadline has passed
	cancel   context.CancelFunc
	done     chan struct{}
}

func (b *browser) Header() http.Header { return b.header }
func (b *browser) WriteHeader(int)     {}
func (b *browser) FlushError() error   { return nil }
func (b *browser) SetWriteDeadline(t time.Time) error {
	b.deadline = t
	return nil
}

func (b *browser) Write(p []byte) (int, error) {
	if b.block != nil {
		select {
		case <-b.block:
		case <-time.After(time.Until(b.deadline)):
			return 0, errors.New("the deadline has passed")
		}
	}
	return b.got.Write(p)
}

func (b *browser) text() string { return b.got.String() }

func (b *browser) events() int { return strings.Count("\n\n"+b.text(), "\n\ndata: ") }

// open opens an event stream.
func (h *testHandler) open(url string, block chan struct{}) *browser {
	ctx, cancel := context.WithCancel(context.Background())
	b := &browser{header: http.Header{}, cancel: cancel, done: make(chan struct{}), block: block}
	r := httptest.NewRequest(http.MethodGet, url, nil).WithContext(ctx)
	go func() {
		defer close(b.done)
		h.ServeHTTP(b, r)
	}()
	return b
}

func (b *browser) close() {
	b.cancel()
	<-b.done
}
