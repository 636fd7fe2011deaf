package recipes

import (
	"context"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/ratelimit/httplimit"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

func encode(ctx context.Context, k *lockkeeper.Keeper) error {
	s, err := semaphore.New(k, "encoders", 10, nil) // ten at once, in all processes
	if err != nil {
		return err
	}
	return s.Do(ctx, work)
}

func callPartner(ctx context.Context, k *lockkeeper.Keeper) error {
	api, err := ratelimit.New(k, "partner", 10, time.Second+100*time.Millisecond, nil) // 100 ms: see ratelimit, The window
	if err != nil {
		return err
	}
	if err := api.Wait(ctx); err != nil {
		return err
	}
	return call(ctx)
}

func limitedClient(k *lockkeeper.Keeper) (*http.Client, error) {
	api, err := ratelimit.NewConcurrent(k, "partner", 10, time.Second+100*time.Millisecond, 3, nil) // three at once
	if err != nil {
		return nil, err
	}
	transport, err := httplimit.NewConcurrentTransport(api, http.DefaultTransport, nil)
	return &http.Client{Transport: transport}, err
}
