package inspector

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	maxLists = 8   // patterns that the list is searched for at the server at one time
	maxLocks = 100 // names whose pages are open at one time, or were lately

	listTimeout = time.Minute // of reading the list
	lockTimeout = 10 * time.Second
)

// errBusy means that too many different things are looked at.
var errBusy = errors.New("too many different locks or searches are open at the moment; close some pages, or try again later")

// watches are the watches of a handler.
type watches struct {
	source source
	opts   Options
	ctx    context.Context
	cancel context.CancelFunc

	listPace *pace // lists are read in turn

	mu    sync.Mutex
	work  sync.WaitGroup // goroutines; Add is called with mu held, and not once closed
	lists map[string]*watch[listing]
	locks map[lockID]*watch[lockState]
}

func newWatches(s source, opts Options) *watches {
	ctx, cancel := context.WithCancel(context.Background())
	return &watches{
		source: s, opts: opts, ctx: ctx, cancel: cancel, listPace: newPace(opts.Interval),
		lists: map[string]*watch[listing]{}, locks: map[lockID]*watch[lockState]{},
	}
}

// close ends all looks and waits for the goroutines.
func (ws *watches) close() {
	ws.mu.Lock()
	ws.cancel()
	ws.mu.Unlock()
	ws.work.Wait()
}

// start runs f in a goroutine, unless the watches are closed.
func (ws *watches) start(f func()) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.ctx.Err() == nil {
		ws.work.Go(f)
	}
}

// list returns the watch of the list of names that match a pattern.
func (ws *watches) list(pattern string) (*watch[listing], error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return find(ws.lists, pattern, maxLists, func() *watch[listing] {
		return newWatch(ws, ws.listPace, listTimeout, func(ctx context.Context) (listing, error) {
			return ws.source.list(ctx, pattern, ws.opts.MaxNames)
		})
	})
}

// lock returns the watch of one lock.
func (ws *watches) lock(id lockID) (*watch[lockState], error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return find(ws.locks, id, maxLocks, func() *watch[lockState] {
		var history []sample
		return newWatch(ws, newPace(ws.opts.Interval), lockTimeout, func(ctx context.Context) (lockState, error) {
			i, err := ws.source.inspect(ctx, id)
			if err != nil {
				return lockState{}, err
			}
			if i.Limits != nil {
				history = withSample(history, sample{time.Now(), i.Limits.Used, i.Limits.Limit})
			}
			return lockState{i, history}, nil
		})
	})
}

func newWatch[T any](ws *watches, p *pace, timeout time.Duration, look func(context.Context) (T, error)) *watch[T] {
	return &watch[T]{
		ctx: ws.ctx, look: look, timeout: timeout, interval: ws.opts.Interval, pace: p, started: ws.start,
		used: time.Now(), changed: make(chan struct{}),
	}
}

// find returns the watch of a key. If there is none it adds one, in place of the one that has not been used for the longest
// time if there are too many.
func find[K comparable, T any](all map[K]*watch[T], key K, limit int, add func() *watch[T]) (*watch[T], error) {
	if w := all[key]; w != nil {
		return w, nil
	}
	if len(all) >= limit {
		var oldest *K
		var used time.Time
		for k, w := range all {
			if since, idle := w.idle(); idle && (oldest == nil || since.Before(used)) {
				oldest, used = &k, since
			}
		}
		if oldest == nil {
			return nil, errBusy
		}
		delete(all, *oldest)
	}
	all[key] = add()
	return all[key], nil
}
