package otellockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/lockkeeper/lockkeeper/otellockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

func requireError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// telemetry is where the metrics and spans of a test go.
type telemetry struct {
	reader *metric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer *trace.TracerProvider
	opts   []otellockkeeper.Option
}

func newTelemetry() *telemetry {
	reader, spans := metric.NewManualReader(), tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	return &telemetry{reader, spans, tracer, []otellockkeeper.Option{
		otellockkeeper.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))),
		otellockkeeper.WithTracerProvider(tracer),
	}}
}

// keeper returns an instrumented keeper.
func (o *telemetry) keeper(t *testing.T, s *lockkeepertest.Server, opts *lockkeeper.Options, more ...otellockkeeper.Option) *lockkeeper.Keeper {
	t.Helper()
	if opts == nil {
		opts = new(lockkeeper.Options)
	}
	must(0, otellockkeeper.Instrument(opts, append(slices.Clone(o.opts), more...)...))
	return s.Keeper(t, opts)
}

// collect returns the metrics of all instruments.
func (o *telemetry) collect(t *testing.T) []metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	must(0, o.reader.Collect(context.Background(), &all))
	if len(all.ScopeMetrics) == 0 {
		return nil
	}
	if scope := all.ScopeMetrics[0].Scope; len(all.ScopeMetrics) > 1 || scope.Name != otellockkeeper.ScopeName || scope.Version == "" {
		t.Errorf("%d scopes, the first is %+v", len(all.ScopeMetrics), scope)
	}
	return all.ScopeMetrics[0].Metrics
}

// metrics returns the values of all series, without those that are 0, and the units of the instruments. The value of a histogram
// is "count, sum".
func (o *telemetry) metrics(t *testing.T) (values, units map[string]string) {
	t.Helper()
	values, units = map[string]string{}, map[string]string{}
	for _, m := range o.collect(t) {
		name := strings.TrimPrefix(m.Name, "lockkeeper.")
		units[name] = m.Unit
		put := func(set attribute.Set, format string, value ...any) {
			if v := fmt.Sprintf(format, value...); v != "0" {
				values[name+"{"+text(set.ToSlice(), ",")+"}"] = v
			}
		}
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, "%d", p.Value)
			}
		case metricdata.Gauge[int64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, "%d", p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, "%d, %.4gs", p.Count, p.Sum)
			}
		case metricdata.Histogram[int64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, "%d, %d", p.Count, p.Sum)
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				put(p.Attributes, "%.0f", p.Value)
			}
		default:
			t.Errorf("%s is a %T", m.Name, data)
		}
	}
	return values, units
}

// require checks the values of all series of the named instruments, or of all instruments if there are no names.
func (o *telemetry) require(t *testing.T, names []string, want map[string]string) {
	t.Helper()
	got, _ := o.metrics(t)
	maps.DeleteFunc(got, func(series, _ string) bool {
		name, _, _ := strings.Cut(series, "{")
		return names != nil && !slices.Contains(names, name)
	})
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// inBubble runs a test with virtual time, in which nothing takes time but waiting.
func inBubble(t *testing.T, f func(t *testing.T, s *lockkeepertest.Server, o *telemetry)) {
	synctest.Test(t, func(t *testing.T) { f(t, lockkeepertest.New(t), newTelemetry()) })
}

func TestMetricsOfLocksAndWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		var r lockkeepertest.Recorder
		k := o.keeper(t, s, &lockkeeper.Options{Hooks: r.Hooks()}) // which are called as well
		l := must(mutex.New(k, "a", nil))
		lease := must(l.Lock(t.Context()))
		_, err := l.TryLock(t.Context())
		requireError(t, err, lockkeeper.ErrNotAcquired)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = l.Lock(ctx)
		requireError(t, err, context.DeadlineExceeded)
		done := make(chan *lockkeeper.Lease)
		go func() { done <- must(l.Lock(context.Background())) }()
		time.Sleep(17 * time.Second) // 20 s of a ttl of 30 s, with renewals after 10 s and 20 s
		o.require(t, nil, map[string]string{
			"leases.held{kind=mutex}":                          "1",
			"requests.waiting{kind=mutex}":                     "1",
			"acquire.duration{kind=mutex,result=acquired}":     "1, 0s",
			"acquire.duration{kind=mutex,result=not_acquired}": "1, 0s",
			"acquire.duration{kind=mutex,result=canceled}":     "1, 3s",
			"renewals{kind=mutex}":                             "2",
		})
		must(0, lease.Release(t.Context()))
		must(0, (<-done).Release(t.Context()))
		for _, hook := range []string{"AcquireStart", "AcquireDone", "Released"} {
			r.Require(t, hook, "a")
		}
		o.require(t, nil, map[string]string{
			"acquire.duration{kind=mutex,result=acquired}":     "2, 17s",
			"acquire.duration{kind=mutex,result=not_acquired}": "1, 0s",
			"acquire.duration{kind=mutex,result=canceled}":     "1, 3s",
			"lease.duration{end=released,kind=mutex}":          "2, 20s",
			"renewals{kind=mutex}":                             "2",
			"wakeups{kind=mutex,result=received}":              "1",
		})
		_, units := o.metrics(t)
		for name, want := range map[string]string{
			"acquire.duration": "s", "lease.duration": "s", "leases.held": "{lease}", "requests.waiting": "{request}",
			"renewals": "{renewal}", "wakeups": "{message}",
		} {
			if units[name] != want {
				t.Errorf("the unit of %s is %q", name, units[name])
			}
		}
	})
}

// TestCountersStartAtZero: the first loss is an increase.
func TestCountersStartAtZero(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		k := o.keeper(t, s, nil)
		must(0, must(mutex.New(k, "a", nil)).Do(t.Context(), func(context.Context, uint64) error { return nil }))
		n := map[string]int{}
		for _, m := range o.collect(t) {
			if data, ok := m.Data.(metricdata.Sum[int64]); ok {
				n[m.Name] = len(data.DataPoints)
			}
		}
		for name, want := range map[string]int{
			"lockkeeper.leases.lost": 8, "lockkeeper.leases.leaked": 1,
			"lockkeeper.renewals": 1, "lockkeeper.wakeups": 2,
		} {
			if n[name] != want {
				t.Errorf("%s has %d series, not %d", name, n[name], want)
			}
		}
	})
}

// TestReasonsOfLosses: one lease is lost in each way.
func TestReasonsOfLosses(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		k := o.keeper(t, s, nil)
		lose := func(name string, opts *fair.Options, fault func()) {
			t.Helper()
			lease := must(must(fair.New(k, name, opts)).Lock(t.Context()))
			fault()
			<-lease.Done()
			synctest.Wait() // for the hook, which is called after that
			s.Restore()
		}
		lose("gone", nil, func() { s.LoseLease(t, "gone") })
		lose("fixed", &fair.Options{NoRenewal: true}, func() {})
		lose("lifetime", &fair.Options{TTL: 2 * time.Second, MaxLifetime: 10 * time.Second}, func() {})
		lose("unavailable", &fair.Options{TTL: 60 * time.Second}, s.Unreachable)
		lose("broken", nil, func() {
			time.Sleep(time.Minute) // it has been renewed, so its keeper is subscribed
			operator := admin.BreakOptions{All: true, Reason: "no majority of the servers: server unavailable"}
			must(admin.Break(t.Context(), s.Keeper(t, nil), fair.Kind, "broken", &operator))
		})
		o.require(t, []string{"leases.lost", "leases.held", "requests.waiting"}, map[string]string{
			"leases.lost{kind=fair,reason=gone}":         "1",
			"leases.lost{kind=fair,reason=not_renewed}":  "1",
			"leases.lost{kind=fair,reason=max_lifetime}": "1",
			"leases.lost{kind=fair,reason=unavailable}":  "1",
			"leases.lost{kind=fair,reason=broken}":       "1",
		})
	})
}

// TestJobs: a job that another process has run is not a lock that was not acquired, and both know when it has succeeded.
func TestJobs(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		do := func(o *telemetry) once.Result {
			t.Helper()
			return must(must(once.New(o.keeper(t, s, nil), "nightly", time.Hour, nil)).Do(t.Context(), func(context.Context, uint64) error {
				time.Sleep(10 * time.Minute)
				return nil
			}))
		}
		started := time.Now().Unix()
		if r := do(o); r.Outcome != once.Ran {
			t.Errorf("%v", r)
		}
		o.require(t, []string{"acquire.duration", "job.success.timestamp"}, map[string]string{
			"acquire.duration{kind=once,result=acquired}": "1, 0s",
			"job.success.timestamp{kind=once}":            fmt.Sprint(started),
		})
		time.Sleep(20 * time.Minute)
		other := newTelemetry()
		if r := do(other); r.Outcome != once.Done {
			t.Errorf("%v", r)
		}
		other.require(t, nil, map[string]string{
			"acquire.duration{kind=once,result=skipped}": "1, 0s",
			"job.success.timestamp{kind=once}":           fmt.Sprint(started),
		})
		if _, units := o.metrics(t); units["job.success.timestamp"] != "s" {
			t.Error(units)
		}
	})
}

func TestErrorsAndRateLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		k := o.keeper(t, s, &lockkeeper.Options{Retry: lockkeeper.RetryPolicy{MaxElapsed: time.Second}})
		limiter := must(ratelimit.New(k, "api", 2, time.Minute, nil))
		for range 3 {
			must(limiter.Allow(t.Context()))
		}
		both := must(ratelimit.NewConcurrent(k, "both", 2, time.Minute, 1, nil))
		lease := must(both.TryAcquire(t.Context()))
		o.require(t, []string{"leases.held"}, map[string]string{"leases.held{kind=ratelimit}": "1"}) // that of both
		must(0, lease.Release(t.Context()))
		s.Unreachable()
		m := must(mutex.New(k, "a", nil))
		_, err := m.Lock(t.Context())
		requireError(t, err, lockkeeper.ErrUnavailable)
		s.Restore()
		_ = k.Close()
		_, err = m.Lock(t.Context())
		requireError(t, err, lockkeeper.ErrClosed)
		got, _ := o.metrics(t)
		for _, series := range []string{
			"acquire.duration{kind=ratelimit,result=acquired}",
			"acquire.duration{kind=ratelimit,result=rejected}",
			"acquire.duration{error.type=unavailable,kind=mutex,result=error}",
			"acquire.duration{error.type=closed,kind=mutex,result=error}",
		} {
			if got[series] == "" {
				t.Errorf("no %s in %v", series, got)
			}
		}
		o.require(t, []string{"leases.held", "requests.waiting"}, nil)
	})
}

func TestModesAndConversions(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		ctx := context.Background()
		requireHeld := func(mode string) {
			t.Helper()
			o.require(t, []string{"leases.held"}, map[string]string{"leases.held{kind=rwlock,mode=" + mode + "}": "1"})
		}
		requireSpan := func(mode string) {
			t.Helper()
			if got := text(o.last(t, "lockkeeper.acquire").Attributes(), " "); !strings.HasPrefix(got, "kind=rwlock name=a mode="+mode+" ") {
				t.Errorf("%s, want mode %s", got, mode)
			}
		}
		l := must(rwlock.New(o.keeper(t, s, nil), "a", nil))
		lease := must(l.RLock(ctx))
		requireHeld("read")
		requireSpan("read")
		must(0, l.Upgrade(ctx, lease))
		requireHeld("write")
		requireSpan("write")
		must(0, l.Downgrade(ctx, lease))
		requireHeld("read")
		must(0, lease.Release(ctx))
		o.require(t, []string{"leases.held", "requests.waiting"}, nil)

		lease = must(l.Lock(ctx))
		time.Sleep(20 * time.Second)
		s.SlowAnswers(3 * time.Second)
		brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		must(0, l.Downgrade(brief, lease)) // which is in doubt
		requireHeld("read")
		s.Restore()
		time.Sleep(12 * time.Second)
		must(0, lease.Release(ctx))
		o.require(t, []string{"leases.held", "requests.waiting"}, nil)
	})
}

// TestSharedLeasesAreCountedOut: callers that share a lease (Linger) are counted once each, also when it is lost.
func TestSharedLeasesAreCountedOut(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		k := o.keeper(t, s, nil)
		l := must(rwlock.New(k, "a", &rwlock.Options{Linger: time.Second}))
		read := func(n int) (leases []*lockkeeper.Lease) {
			for range n {
				leases = append(leases, must(l.RLock(t.Context())))
			}
			return leases
		}
		leases := read(5)
		o.require(t, []string{"leases.held"}, map[string]string{"leases.held{kind=rwlock,mode=read}": "5"})
		must(0, leases[0].Release(t.Context()))
		o.require(t, []string{"leases.held"}, map[string]string{"leases.held{kind=rwlock,mode=read}": "4"})
		s.LoseLease(t, "a")
		<-leases[1].Done()
		synctest.Wait()
		o.require(t, []string{"leases.held", "leases.lost"}, map[string]string{"leases.lost{kind=rwlock,reason=gone}": "1"})
		if values, _ := o.metrics(t); !strings.HasPrefix(values["lease.duration{end=lost,kind=rwlock,mode=read}"], "1, ") {
			t.Errorf("no duration of the lease that was lost: %v", values)
		}
		for _, lease := range leases[1:] {
			requireError(t, lease.Release(t.Context()), lockkeeper.ErrLost)
		}
		o.require(t, []string{"leases.held", "requests.waiting"}, nil)
	})
}

// TestOtherKindsAreCountedOut: also of several keepers, whose values add up.
func TestOtherKindsAreCountedOut(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		k := o.keeper(t, s, nil)
		lease := must(must(semaphore.New(k, "s", 3, nil)).AcquireN(t.Context(), 2))
		red := must(redlock.New([]*lockkeeper.Keeper{k, lockkeepertest.New(t).Keeper(t, nil), lockkeepertest.New(t).Keeper(t, nil)}, "r", nil))
		majority := must(red.Lock(t.Context()))
		first := must(must(mutex.New(k, "m", nil)).Lock(t.Context()))
		adopted := must(must(mutex.New(o.keeper(t, s, nil), "m", nil)).Adopt(t.Context(), first.Token()))
		second := must(must(mutex.New(o.keeper(t, s, nil), "n", nil)).Lock(t.Context()))
		o.require(t, []string{"leases.held"}, map[string]string{
			"leases.held{kind=semaphore}": "1", "leases.held{kind=redlock}": "1", "leases.held{kind=mutex}": "2", // the adopted one is not
		})
		for _, l := range []interface{ Release(context.Context) error }{lease, majority, adopted, second} {
			must(0, l.Release(t.Context()))
		}
		<-first.Done()
		synctest.Wait()
		o.require(t, []string{"leases.held", "requests.waiting"}, nil)
	})
}

func TestNamesAreOptIn(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		template := func(kind lockkeeper.Kind, name string) string {
			before, _, found := strings.Cut(name, ":")
			if !found {
				return ""
			}
			return before + ":*"
		}
		k := o.keeper(t, s, nil, otellockkeeper.WithName(template), otellockkeeper.WithQueuePosition())
		for _, name := range []string{"invoices:1", "invoices:2", "other"} {
			must(0, must(mutex.New(k, name, nil)).Do(t.Context(), func(context.Context, uint64) error { return nil }))
		}
		sem := must(semaphore.New(k, "encoders:1", 3, nil))
		lease := must(sem.AcquireN(t.Context(), 2))
		for range 2 {
			go func() {
				l := must(sem.AcquireN(context.Background(), 2))
				must(0, l.Release(context.Background()))
			}()
			synctest.Wait()
		}
		must(0, sem.SetLimit(t.Context(), 4))
		must(0, lease.Release(t.Context()))
		time.Sleep(time.Second)
		o.require(t, []string{"acquire.duration", "limit", "queue.position"}, map[string]string{
			"acquire.duration{kind=mutex,name=invoices:*,result=acquired}":     "2, 0s",
			"acquire.duration{kind=mutex,result=acquired}":                     "1, 0s",
			"acquire.duration{kind=semaphore,name=encoders:*,result=acquired}": "3, 0s",
			"limit{kind=semaphore,name=encoders:*}":                            "4",
			"queue.position{kind=semaphore,name=encoders:*}":                   "2, 1",
		})
	})
}

// With one text that is not UTF-8, OTLP refuses a whole batch.
func TestTextsAreUTF8(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		k := o.keeper(t, s, nil, otellockkeeper.WithName(func(_ lockkeeper.Kind, name string) string { return name }))
		must(0, must(mutex.New(k, "a\xff", nil)).Do(t.Context(), func(context.Context, uint64) error { return nil }))
		if got := text(o.last(t, "lockkeeper.acquire").Attributes(), " "); !strings.HasPrefix(got, "kind=mutex name=a\uFFFD ") {
			t.Errorf("%q", got)
		}
		o.require(t, []string{"acquire.duration"}, map[string]string{"acquire.duration{kind=mutex,name=a\uFFFD,result=acquired}": "1, 0s"})
	})
}

func TestSpans(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		k := o.keeper(t, s, &lockkeeper.Options{Retry: lockkeeper.RetryPolicy{MaxElapsed: time.Second}})
		other := must(fair.New(s.Keeper(t, nil), "job", nil))
		held := must(other.Lock(t.Context()))
		ctx, caller := o.tracer.Tracer("test").Start(t.Context(), "caller")
		l := must(fair.New(k, "job", nil))
		start := time.Now()
		time.AfterFunc(5*time.Second, func() { must(0, held.Release(context.Background())) })
		lease := must(l.Lock(ctx))

		span := o.last(t, "lockkeeper.acquire")
		if span.Parent().SpanID() != caller.SpanContext().SpanID() {
			t.Error("the span is not a child of the caller's")
		}
		if !span.StartTime().Equal(start) || span.EndTime().Sub(start) != 5*time.Second {
			t.Errorf("%v to %v, started at %v", span.StartTime(), span.EndTime(), start)
		}
		want := fmt.Sprintf("kind=fair name=job result=acquired fence=%d position=0", lease.Fence())
		if got := text(span.Attributes(), " "); got != want {
			t.Errorf("%s, not %s", got, want)
		}
		o.requireExemplar(t, span)

		s.LoseLease(t, "job")
		<-lease.Done()
		synctest.Wait()
		caller.End()
		event := o.last(t, "caller").Events()[0]
		got := text(event.Attributes, " ")
		if event.Name != "lockkeeper.lost" || !strings.HasPrefix(got, "kind=fair name=job reason=gone fence=") ||
			!strings.Contains(got, " error.message=") {
			t.Errorf("%s %s", event.Name, got)
		}

		s.Unreachable()
		_, err := l.TryLock(t.Context())
		s.Restore()
		span = o.last(t, "lockkeeper.acquire")
		got = text(span.Attributes(), " ")
		status := trace.Status{Code: codes.Error, Description: err.Error()}
		if got != "kind=fair name=job result=error error.type=unavailable" || span.Status() != status {
			t.Errorf("%s, %v", got, span.Status())
		}
		if span.Parent().IsValid() {
			t.Error("a span without a caller's has a parent")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = l.Lock(ctx)
		requireError(t, err, context.Canceled)
		span = o.last(t, "lockkeeper.acquire")
		if got := text(span.Attributes(), " "); got != "kind=fair name=job result=canceled" || span.Status().Code != codes.Unset {
			t.Errorf("%s, %v", got, span.Status())
		}
	})
}

func text(list []attribute.KeyValue, separator string) string {
	var b []string
	for _, kv := range list {
		b = append(b, strings.TrimPrefix(string(kv.Key), "lockkeeper.")+"="+kv.Value.String())
	}
	return strings.Join(b, separator)
}

// last returns the span of a name that ended last.
func (o *telemetry) last(t *testing.T, name string) trace.ReadOnlySpan {
	t.Helper()
	for _, span := range slices.Backward(o.spans.Ended()) {
		if span.Name() == name {
			return span
		}
	}
	t.Fatalf("no span %s", name)
	return nil
}

// requireExemplar: the histogram of acquisitions leads to the span.
func (o *telemetry) requireExemplar(t *testing.T, span trace.ReadOnlySpan) {
	t.Helper()
	id := span.SpanContext().SpanID()
	for _, m := range o.collect(t) {
		if data, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "lockkeeper.acquire.duration" {
			for _, p := range data.DataPoints {
				for _, e := range p.Exemplars {
					if slices.Equal(e.SpanID, id[:]) {
						return
					}
				}
			}
		}
	}
	t.Error("no exemplar has the span")
}

func TestLostWakeupsAndLeaksAreCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, s *lockkeepertest.Server, o *telemetry) {
		opts := new(lockkeeper.Options)
		k := o.keeper(t, s, opts)
		other := must(mutex.New(s.Keeper(t, nil), "a", nil))
		held := must(other.Lock(t.Context()))
		done := make(chan *lockkeeper.Lease)
		go func() { done <- must(must(mutex.New(k, "a", nil)).Lock(context.Background())) }()
		s.RequireWaiting(t, "a", 1)
		s.LoseWakeups()
		must(0, held.Release(t.Context()))
		must(0, (<-done).Release(t.Context()))
		time.Sleep(10 * time.Second) // it is noticed afterwards
		s.Restore()
		opts.Hooks.Leaked(lockkeeper.Event{Context: t.Context(), Kind: "mutex"}) // the garbage collector is not to be waited for here
		o.require(t, []string{"wakeups", "leases.leaked"}, map[string]string{
			"wakeups{result=lost}": "1", "leases.leaked{kind=mutex}": "1",
		})
	})
}

// TestUnusedTelemetryIsCollected: a provider that lives longer than a keeper does not keep what belongs to it.
func TestUnusedTelemetryIsCollected(t *testing.T) {
	o := newTelemetry()
	func() {
		var opts lockkeeper.Options
		must(0, otellockkeeper.Instrument(&opts, o.opts...))
		opts.Hooks.AcquireStart(lockkeeper.Event{Context: t.Context(), Kind: "mutex"})
		o.require(t, []string{"requests.waiting"}, map[string]string{"requests.waiting{kind=mutex}": "1"})
	}()
	for range 100 {
		runtime.GC()
		if values, _ := o.metrics(t); len(values) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the hooks are gone, but their values remain")
}

// TestGaugesReturnToZero: many goroutines lock, give up and lose leases at the same time.
func TestGaugesReturnToZero(t *testing.T) {
	s, o := lockkeepertest.New(t), newTelemetry()
	k := o.keeper(t, s, nil)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			l := must(rwlock.New(k, fmt.Sprint(g%2), &rwlock.Options{Linger: 20 * time.Millisecond, TTL: 500 * time.Millisecond}))
			for i := range 40 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+i%7)*5*time.Millisecond)
				lock := l.RLock
				if (g+i)%5 == 0 {
					lock = l.Lock
				}
				if lease, err := lock(ctx); err == nil {
					if i%10 == 0 {
						s.Flush(t)
					}
					_ = lease.Release(context.Background())
				}
				cancel()
			}
		})
	}
	wg.Wait()
	_ = k.Close()
	// A Flush deletes tombstones as well, so a heartbeat that was under way may have queued cancelled requests again, until it lapses.
	s.Flush(t)
	o.require(t, []string{"leases.held", "requests.waiting"}, nil)
}
