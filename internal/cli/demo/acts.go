package demo

import (
	"context"
	"path/filepath"
)

// newActs returns the acts in their order. Files that processes share are created in dir.
func newActs(s *server, dir string) ([]*play, error) {
	turns, err := newTurns(s.keeper)
	if err != nil {
		return nil, err
	}
	limit, err := newQuota(s)
	if err != nil {
		return nil, err
	}
	if err := createCounters(filepath.Join(dir, "counters")); err != nil {
		return nil, err
	}
	return []*play{turns.play, newLate(s), newCache(dir), limit}, nil
}

// parts are the values of --role for the workers of the acts. They run until ctx ends.
var parts = map[string]func(ctx context.Context, p *part) error{
	"turn":           takeTurns,
	"late":           writeLate,
	"cache-reader-0": readCache(0),
	"cache-reader-1": readCache(1),
	"cache-reader-2": readCache(2),
	"cache-writer":   writeCache,
	"quota":          callWithin,
}
