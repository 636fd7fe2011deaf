package otellockkeeper_test

import (
	"context"
	"testing"
	"time"

	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/otellockkeeper"
)

// BenchmarkHooks is what the instrumentation adds to an acquisition with its release: three calls of hooks, without the lock.
func BenchmarkHooks(b *testing.B) {
	meters := otellockkeeper.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())))
	for _, c := range []struct {
		name string
		opts []otellockkeeper.Option
	}{
		{"noop", []otellockkeeper.Option{otellockkeeper.WithMeterProvider(metricnoop.NewMeterProvider()), otellockkeeper.WithTracerProvider(tracenoop.NewTracerProvider())}},
		{"metrics", []otellockkeeper.Option{meters, otellockkeeper.WithTracerProvider(tracenoop.NewTracerProvider())}},
		{"metrics,named", []otellockkeeper.Option{meters, otellockkeeper.WithTracerProvider(tracenoop.NewTracerProvider()),
			otellockkeeper.WithName(func(lockkeeper.Kind, string) string { return "invoices:*" })}},
		{"metrics,unsampled", []otellockkeeper.Option{meters, otellockkeeper.WithTracerProvider(trace.NewTracerProvider(trace.WithSampler(trace.NeverSample())))}},
		{"metrics,sampled", []otellockkeeper.Option{meters, otellockkeeper.WithTracerProvider(trace.NewTracerProvider(trace.WithSampler(trace.AlwaysSample())))}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var o lockkeeper.Options
			if err := otellockkeeper.Instrument(&o, c.opts...); err != nil {
				b.Fatal(err)
			}
			e := lockkeeper.Event{Context: context.Background(), Kind: "mutex", Name: "invoices:2026-11"}
			b.ReportAllocs()
			for b.Loop() {
				e.Request++
				e.Duration, e.Token, e.Fence = 0, "", 0
				o.Hooks.AcquireStart(e)
				e.Duration, e.Token, e.Fence = time.Millisecond, "5e5b3f1c-3c2e-4a7a-9f0e-2d1f6f9f6c1a:1:30000", e.Request
				o.Hooks.AcquireDone(e)
				o.Hooks.Released(e)
			}
		})
	}
}
