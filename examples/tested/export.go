// Package tested is code that uses a lock, and tests of it that lose the lock on purpose. docs/testing-your-code.md explains
// them.
//
//	go test -v ./examples/tested
package tested

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
)

const (
	lockName = "export"
	pages    = 100
	perPage  = time.Second // what the work on a page takes
)

// Exporter exports pages to a store, in one process at a time.
type Exporter struct {
	name  string
	lock  *fair.Lock
	store *Store
}

// NewExporter returns an exporter that uses a keeper.
func NewExporter(name string, k *lockkeeper.Keeper, store *Store) (*Exporter, error) {
	lock, err := fair.New(k, lockName, nil)
	if err != nil {
		return nil, err
	}
	return &Exporter{name, lock, store}, nil
}

// Run exports all pages that are missing. If it loses the lock or is late, it waits for the lock and goes on where the store
// is.
func (e *Exporter) Run(ctx context.Context) error {
	for {
		err := e.lock.Do(ctx, e.export)
		if !errors.Is(err, lockkeeper.ErrLost) && !errors.Is(err, ErrStale) {
			return err
		}
	}
}

func (e *Exporter) export(ctx context.Context, fence uint64) error {
	for {
		page, err := e.store.Pages(fence)
		if err != nil || page == pages {
			return err
		}
		select {
		case <-time.After(perPage): // the work
		case <-ctx.Done(): // the lock is lost, or the caller has given up
			return context.Cause(ctx)
		}
		if err := e.store.Add(fence, e.name); err != nil {
			return err
		}
	}
}

// ErrStale is returned by a Store to whom a later holder of the lock has been before.
var ErrStale = errors.New("stale fence")

// Store has who exported each page. It refuses late holders of the lock.
type Store struct {
	mu    sync.Mutex
	fence uint64 // the largest it has seen
	by    []string
}

// Pages returns how many pages there are.
func (s *Store) Pages(fence uint64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.by), s.raise(fence)
}

// Add adds a page.
func (s *Store) Add(fence uint64, by string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.raise(fence); err != nil {
		return err
	}
	s.by = append(s.by, by)
	return nil
}

// By returns who exported a page.
func (s *Store) By(page int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by[page]
}

func (s *Store) raise(fence uint64) error {
	if fence < s.fence {
		return fmt.Errorf("%w %d after %d", ErrStale, fence, s.fence)
	}
	s.fence = fence
	return nil
}
