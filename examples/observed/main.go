// Command observed is a service that locks, waits and now and then loses a lease, and shows what its locks do at /metrics.
//
//	go run .                                        # with an embedded server
//	go run . -redis redis://127.0.0.1:6379
//	curl http://127.0.0.1:9464/metrics
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
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
	url := flag.String("redis", "", "URL of a Redis server, as redis://127.0.0.1:6379; default: an embedded one")
	listen := flag.String("listen", "127.0.0.1:9464", "where /metrics is")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *url, *listen, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "observed:", err)
		os.Exit(1)
	}
}

// run is the service. It returns nil when ctx has ended, and otherwise why it cannot go on.
func run(ctx context.Context, url, listen string, out io.Writer) error {
	if url == "" {
		server := miniredis.NewMiniRedis()
		if err := server.Start(); err != nil {
			return err
		}
		defer server.Close()
		server.ClockTTL(true) // leases end
		url = "redis://" + server.Addr()
	}
	opts, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	client := redis.NewClient(opts)
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("no Redis at %s: %w", opts.Addr, err)
	}
	keeper, metrics, err := observe(client, &lockkeeper.Options{LongWait: 10 * time.Second})
	if err != nil {
		return err
	}
	defer keeper.Close()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	pages := http.NewServeMux()
	pages.Handle("/metrics", metrics)
	server := &http.Server{Handler: pages}
	fmt.Fprintf(out, "metrics: http://%s/metrics\n", l.Addr())

	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	ended := make(chan error, 5) // all of them
	start := func(f func() error) {
		all.Go(func() {
			ended <- f()
			cancel() // the first that ends, ends the others
		})
	}
	start(func() error { return server.Serve(l) })
	for range 3 { // workers that wait for each other
		start(func() error { return work(ctx, keeper, fair.Options{}, 100*time.Millisecond) })
	}
	start(func() error { // loses each lease
		return work(ctx, keeper, fair.Options{TTL: time.Second, NoRenewal: true}, 2*time.Second)
	})
	<-ctx.Done()
	_ = server.Close()
	all.Wait()
	for range cap(ended) {
		if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
	return nil
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
	if err != nil {
		return nil, nil, err
	}
	if _, err := otellockkeeper.Observe(keeper, otellockkeeper.WithMeterProvider(provider)); err != nil { // until the process ends
		return nil, nil, errors.Join(err, keeper.Close())
	}
	return keeper, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), nil
}

// work locks the invoices again and again, and works on them for a time, until ctx ends, after which it returns nil.
func work(ctx context.Context, keeper *lockkeeper.Keeper, opts fair.Options, d time.Duration) error {
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
	if ctx.Err() != nil {
		return nil
	}
	return err
}
