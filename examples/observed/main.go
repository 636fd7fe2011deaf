// Command observed is a service that locks, waits and now and then loses a lease, and shows what its locks do at /metrics.
//
//	go run . -redis redis://127.0.0.1:6379
//	curl http://127.0.0.1:9464/metrics
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"log/slog"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/otellockkeeper"
)

func main() {
	url := flag.String("redis", "redis://127.0.0.1:6379", "the server's URL")
	listen := flag.String("listen", "127.0.0.1:9464", "where /metrics is")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	opts, err := redis.ParseURL(*url)
	if err != nil {
		log.Fatal(err)
	}
	client := redis.NewClient(opts)
	defer client.Close()
	keeper, metrics, err := observe(client, &lockkeeper.Options{LongWait: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer keeper.Close()
	http.Handle("/metrics", metrics)
	go func() { log.Fatal(http.ListenAndServe(*listen, nil)) }()
	for range 3 { // workers that wait for each other
		go work(ctx, keeper, fair.Options{}, 100*time.Millisecond)
	}
	work(ctx, keeper, fair.Options{TTL: time.Second, NoRenewal: true}, 2*time.Second) // loses each lease
}

// observe returns a keeper whose locks are measured, and the handler of the metrics.
func observe(client *redis.Client, opts *lockkeeper.Options) (*lockkeeper.Keeper, http.Handler, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, nil, err
	}
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	if err := otellockkeeper.Instrument(opts, otellockkeeper.WithMeterProvider(provider)); err != nil {
		return nil, nil, err
	}
	keeper, err := lockkeeper.New(client, opts)
	return keeper, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), err
}

// work locks the invoices again and again, and works on them for a time, until ctx ends.
func work(ctx context.Context, keeper *lockkeeper.Keeper, opts fair.Options, d time.Duration) {
	lock, err := fair.New(keeper, "invoices", &opts)
	for ; err == nil || errors.Is(err, lockkeeper.ErrLost); err = lock.Do(ctx, func(ctx context.Context, fence uint64) error {
		select {
		case <-time.After(d):
		case <-ctx.Done(): // the lease was lost
		}
		return nil
	}) {
		if err != nil {
			slog.Warn("work is repeated", "error", err)
		}
	}
}
