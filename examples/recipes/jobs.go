package recipes

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/once"
)

func nightly(ctx context.Context, k *lockkeeper.Keeper) error {
	job, err := once.New(k, "nightly-report", 20*time.Hour, nil)
	if err != nil {
		return err
	}
	r, err := job.Do(ctx, makeReport)
	if err == nil {
		slog.Info("nightly report", "outcome", r.Outcome) // ran here, done or running elsewhere
	}
	return err
}

func lead(ctx context.Context, k *lockkeeper.Keeper) error {
	m, err := mutex.New(k, "scheduler", nil)
	if err != nil {
		return err
	}
	return election.Run(ctx, m, func(ctx context.Context, fence uint64) error {
		return schedule(ctx, fence) // until ctx ends: then another process may lead
	})
}
