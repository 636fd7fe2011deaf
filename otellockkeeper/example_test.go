package otellockkeeper_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/otellockkeeper"
)

// Metrics and spans go to the global providers, or to others by options. Names of locks are mapped to few values.
func ExampleInstrument() {
	reader := metric.NewManualReader() // in a program, an exporter
	spans := tracetest.NewSpanRecorder()
	opts := &lockkeeper.Options{}
	err := otellockkeeper.Instrument(opts,
		otellockkeeper.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))),
		otellockkeeper.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans))),
		otellockkeeper.WithName(func(kind lockkeeper.Kind, name string) string {
			group, _, _ := strings.Cut(name, ":")
			return group + ":*"
		}),
	)
	if err != nil {
		log.Fatal(err)
	}

	server, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, opts)
	if err != nil {
		log.Fatal(err)
	}
	defer k.Close()

	ctx := context.Background()
	for _, name := range []string{"orders:42", "orders:43"} {
		m, err := mutex.New(k, name, nil)
		if err != nil {
			log.Fatal(err)
		}
		if err := m.Do(ctx, func(context.Context, uint64) error { return nil }); err != nil {
			log.Fatal(err)
		}
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if data, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "lockkeeper.acquire.duration" {
			for _, p := range data.DataPoints {
				name, _ := p.Attributes.Value("lockkeeper.name")
				fmt.Println(m.Name, name.AsString(), p.Count)
			}
		}
	}
	for _, span := range spans.Ended() {
		fmt.Println(span.Name())
	}
	// Output:
	// lockkeeper.acquire.duration orders:* 2
	// lockkeeper.acquire
	// lockkeeper.acquire
}
