// Package otellockkeeper reports metrics and traces of the locks of a keeper to OpenTelemetry.
//
//	opts := &lockkeeper.Options{}
//	if err := otellockkeeper.Instrument(opts); err != nil {
//		return err
//	}
//	keeper, err := lockkeeper.New(client, opts)
//
// Metrics describe this process, not all processes that share a lock. Their names, types, units and attributes are as follows.
// The attributes kind, mode, result, end, reason and name have the prefix lockkeeper, as in lockkeeper.kind; error.type is the
// attribute of that name in OpenTelemetry.
//
//	lockkeeper.acquire.duration  histogram, s    kind, mode, result, error.type
//	lockkeeper.lease.duration    histogram, s    kind, mode, end = released, lost
//	lockkeeper.leases.held       up-down counter kind, mode
//	lockkeeper.requests.waiting  up-down counter kind, mode
//	lockkeeper.leases.lost       counter         kind, reason
//	lockkeeper.leases.leaked     counter         kind
//	lockkeeper.renewals          counter         kind
//	lockkeeper.wakeups           counter         kind, result = received, lost (which has no kind)
//	lockkeeper.job.success.timestamp
//	                             gauge, s        kind
//	lockkeeper.limit             gauge           kind, name; only with WithName
//	lockkeeper.queue.position    histogram       kind, mode; only with WithQueuePosition
//
// Observe adds what one keeper does at the moment; see [lockkeeper.Stats]. These have no attributes.
//
//	lockkeeper.commands.unsent        up-down counter
//	lockkeeper.pipelines.in_flight    up-down counter
//	lockkeeper.server.silence         gauge, s
//	lockkeeper.channels.wanted        up-down counter
//	lockkeeper.channels.unsubscribed  up-down counter
//
// The result is acquired, not_acquired (TryLock found the lock held elsewhere), canceled (the context ended), rejected (by a
// rate limit), skipped (a job of package once has succeeded already or is running) or error. Spans have the name of the lock as an
// attribute, metrics only with WithName. The reason is a [lockkeeper.LossReason], or _OTHER.
//
// The last success of a job is a Unix time: when the run started that was the last to succeed. Each process reports what it knows by
// its own calls of Do, whichever process ran the job, so the maximum over all processes is what to look at.
//
// Each acquisition is a span, lockkeeper.acquire, that is a child of the caller's span and ends when the call returns. A lease that
// is lost adds the event lockkeeper.lost to the span of the call that acquired it, if that has not ended. Acquisitions that are
// granted at once inside the process have no span.
package otellockkeeper

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"weak"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper"
)

// ScopeName is the name of the instrumentation scope of all metrics and spans.
const ScopeName = "github.com/lockkeeper/lockkeeper/otellockkeeper"

// version returns the version of this module in the program, for the scope. It is "(devel)" in a program that replaces the module by a
// directory, and where the program says nothing of its modules.
var version = sync.OnceValue(func() string {
	const devel = "(devel)"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return devel
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == ScopeName {
			for m.Replace != nil {
				m = m.Replace
			}
			return cmp.Or(m.Version, devel)
		}
	}
	return devel
})

// Option is an argument of Instrument, and of Observe.
type Option func(*config)

type config struct {
	meters   metric.MeterProvider
	tracers  trace.TracerProvider
	name     func(kind lockkeeper.Kind, name string) string
	position bool
}

// meter returns where metrics go.
func (c *config) meter() metric.Meter {
	meters := c.meters
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	return meters.Meter(ScopeName, metric.WithInstrumentationVersion(version()))
}

// WithMeterProvider sets where metrics go. Default: the global provider, otel.GetMeterProvider().
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithTracerProvider sets where spans go. Default: the global provider, otel.GetTracerProvider().
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithName adds the attribute lockkeeper.name to metrics, with what f returns; an empty value adds no attribute. f is called on each
// event, concurrently, and must not block.
//
// Each value makes series of its own, and the SDK keeps at most 2,000 of a metric by default, so f must map names to few values, for
// example "invoices:2026-11" to "invoices:*".
func WithName(f func(kind lockkeeper.Kind, name string) string) Option {
	return func(c *config) { c.name = f }
}

// WithQueuePosition adds the histogram lockkeeper.queue.position: how many requests were ahead when a request was queued.
func WithQueuePosition() Option { return func(c *config) { c.position = true } }

// Instrument sets hooks in the options of a keeper. Hooks that are set already are called first. Call it before lockkeeper.New,
// and only once for the same options. After an error, the options are unchanged.
func Instrument(o *lockkeeper.Options, opts ...Option) error {
	var c config
	for _, opt := range opts {
		opt(&c)
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	t := &telemetry{config: c, tracer: c.tracers.Tracer(ScopeName, trace.WithInstrumentationVersion(version())), held: newHeld()}
	if err := t.createInstruments(c.meter()); err != nil {
		return err
	}
	h := &o.Hooks
	for _, add := range []struct {
		hook *func(lockkeeper.Event)
		f    func(lockkeeper.Event)
	}{
		{&h.AcquireStart, t.acquireStart},
		{&h.AcquireDone, t.acquireDone},
		{&h.Queued, t.queued},
		{&h.WakeupReceived, t.wakeupReceived},
		{&h.WakeupLost, t.wakeupLost},
		{&h.Renewed, t.renewed},
		{&h.Lost, t.lost},
		{&h.Released, t.released},
		{&h.LimitChanged, t.limitChanged},
		{&h.Leaked, t.leaked},
		{&h.Succeeded, t.succeeded},
	} {
		if before := *add.hook; before != nil {
			f := add.f
			*add.hook = func(e lockkeeper.Event) { before(e); f(e) }
		} else {
			*add.hook = add.f
		}
	}
	return nil
}

// telemetry is what the hooks of one call of Instrument share.
type telemetry struct {
	config
	tracer    trace.Tracer
	series    seriesTable
	held      *held
	positions positions

	acquireDuration, leaseDuration metric.Float64Histogram
	leasesLost, leasesLeaked       metric.Int64Counter
	renewalCount, wakeups          metric.Int64Counter
	limit                          metric.Int64Gauge
	lastSuccess                    metric.Float64Gauge
	queuePosition                  metric.Int64Histogram
}

func (t *telemetry) createInstruments(m metric.Meter) error {
	var failed error
	check := func(err error) { failed = errors.Join(failed, err) }
	histogram := func(name, description string, bounds ...float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		check(err)
		return h
	}
	upDown := func(name, unit, description string) metric.Int64ObservableUpDownCounter {
		c, err := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		check(err)
		return c
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		check(err)
		return c
	}
	t.acquireDuration = histogram("lockkeeper.acquire.duration", "How long calls such as Lock and TryLock took.",
		0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
	t.leaseDuration = histogram("lockkeeper.lease.duration", "How long leases were held.", 0.001, 0.01, 0.1, 1, 10, 30, 60, 300, 1800)
	held := upDown("lockkeeper.leases.held", "{lease}", "Leases that this process holds.")
	waiting := upDown("lockkeeper.requests.waiting", "{request}", "Calls of this process that have not returned yet.")
	t.leasesLost = counter("lockkeeper.leases.lost", "{lease}", "Leases that ended before their holder released them.")
	t.leasesLeaked = counter("lockkeeper.leases.leaked", "{lease}", "Leases that became unreachable without a release.")
	t.renewalCount = counter("lockkeeper.renewals", "{renewal}", "Renewals of leases.")
	t.wakeups = counter("lockkeeper.wakeups", "{message}", "Messages that grant leases, received or lost.")
	lastSuccess, err := m.Float64Gauge("lockkeeper.job.success.timestamp", metric.WithUnit("s"),
		metric.WithDescription("When the last run of a job that succeeded started, in Unix time."))
	check(err)
	t.lastSuccess = lastSuccess
	if t.name != nil {
		g, err := m.Int64Gauge("lockkeeper.limit", metric.WithUnit("{permit}"), metric.WithDescription("The limit in force of a semaphore or rate limit."))
		check(err)
		t.limit = g
	}
	if t.position {
		h, err := m.Int64Histogram("lockkeeper.queue.position", metric.WithUnit("{request}"),
			metric.WithDescription("Requests ahead when a request was queued."),
			metric.WithExplicitBucketBoundaries(0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
		check(err)
		t.queuePosition = h
	}
	if failed != nil {
		return failed
	}
	t.series.init = t.startAtZero
	t.wakeups.Add(context.Background(), 0, wakeupLost...)
	return t.observeGauges(m, held, waiting)
}

// startAtZero makes the counters of rare events visible before the first one, which would not be seen as an increase otherwise.
func (t *telemetry) startAtZero(s *series) {
	ctx := context.Background()
	for _, reason := range lossReasons() {
		t.leasesLost.Add(ctx, 0, s.lost(reason))
	}
	for _, counter := range []metric.Int64Counter{t.leasesLeaked, t.renewalCount} {
		counter.Add(ctx, 0, s.kind...)
	}
	t.wakeups.Add(ctx, 0, s.received...)
}

// observeGauges lets the provider ask for what is held and who waits. It does not keep t alive: when the keeper is gone, so is t,
// and the provider stops asking.
func (t *telemetry) observeGauges(m metric.Meter, held, waiting metric.Int64ObservableUpDownCounter) error {
	table := weak.Make(&t.series)
	registration, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		if table := table.Value(); table != nil {
			for _, s := range table.all() {
				o.ObserveInt64(held, s.held.Load(), s.lockObserve...)
				o.ObserveInt64(waiting, s.waiting.Load(), s.lockObserve...)
			}
		}
		return nil
	}, held, waiting)
	if err != nil {
		return err
	}
	runtime.AddCleanup(t, func(r metric.Registration) { _ = r.Unregister() }, registration)
	return nil
}

func (t *telemetry) of(e *lockkeeper.Event) *series {
	key := seriesKey{kind: e.Kind, mode: e.Mode}
	if t.name != nil {
		key.name = valid(t.name(e.Kind, e.Name))
	}
	return t.series.get(key)
}

func (t *telemetry) acquireStart(e lockkeeper.Event) {
	t.of(&e).waiting.Add(1)
}

func (t *telemetry) acquireDone(e lockkeeper.Event) {
	s, ctx := t.of(&e), e.Context
	o := outcomeOf(e.Kind, e.Err)
	s.waiting.Add(-1)
	if atOnce := e.Local && e.Duration == 0; !atOnce {
		position, wasQueued := t.positions.take(e.Request, e.Name)
		spanCtx, span := t.tracer.Start(ctx, "lockkeeper.acquire", trace.WithTimestamp(time.Now().Add(-e.Duration)))
		if span.IsRecording() {
			t.describe(span, &e, o)
			if wasQueued {
				span.SetAttributes(attribute.Int("lockkeeper.position", position))
			}
			ctx = spanCtx // the exemplar's
		}
		span.End()
	}
	t.acquireDuration.Record(ctx, e.Duration.Seconds(), s.acquired(o)...)
	if e.Err == nil && e.Token != "" && t.held.add(e.Token, s) {
		s.held.Add(1)
	}
}

func (t *telemetry) describe(span trace.Span, e *lockkeeper.Event, o outcome) {
	span.SetAttributes(append(lockAttributes(e), attribute.String("lockkeeper.result", o.result))...)
	if e.Fence != 0 {
		span.SetAttributes(attribute.Int64("lockkeeper.fence", int64(e.Fence)))
	}
	if o.errorType != "" {
		span.SetAttributes(attribute.String("error.type", o.errorType))
		span.SetStatus(codes.Error, valid(e.Err.Error()))
	}
}

// valid replaces bytes that are not UTF-8. With one such text OTLP refuses a whole batch, with the spans and metrics of others.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// lockAttributes are those of a span or of an event of a span.
func lockAttributes(e *lockkeeper.Event) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 4)
	list = append(list, attribute.String("lockkeeper.kind", string(e.Kind)), attribute.String("lockkeeper.name", valid(e.Name)))
	if e.Mode != "" {
		list = append(list, attribute.String("lockkeeper.mode", e.Mode))
	}
	return list
}

func (t *telemetry) queued(e lockkeeper.Event) {
	if first := t.positions.put(e.Request, e.Name, e.Position); first && t.queuePosition != nil {
		t.queuePosition.Record(e.Context, int64(e.Position), t.of(&e).lockRecord...)
	}
}

func (t *telemetry) wakeupReceived(e lockkeeper.Event) {
	t.wakeups.Add(e.Context, 1, t.of(&e).received...)
}

func (t *telemetry) wakeupLost(e lockkeeper.Event) { t.wakeups.Add(e.Context, 1, wakeupLost...) }

func (t *telemetry) renewed(e lockkeeper.Event) { t.renewalCount.Add(e.Context, 1, t.of(&e).kind...) }

func (t *telemetry) leaked(e lockkeeper.Event) { t.leasesLeaked.Add(e.Context, 1, t.of(&e).kind...) }

func (t *telemetry) lost(e lockkeeper.Event) {
	s := t.of(&e)
	reason := reasonOf(&e)
	t.leasesLost.Add(e.Context, 1, s.lost(reason))
	t.leaseDuration.Record(e.Context, e.Duration.Seconds(), s.endLost...)
	s.held.Add(int64(-t.held.drop(e.Token, s)))
	if span := trace.SpanFromContext(e.Context); span.IsRecording() {
		list := append(lockAttributes(&e), attribute.String("lockkeeper.reason", reason), attribute.Int64("lockkeeper.fence", int64(e.Fence)))
		if e.Err != nil {
			list = append(list, attribute.String("error.message", valid(e.Err.Error())))
		}
		span.AddEvent("lockkeeper.lost", trace.WithAttributes(list...))
	}
}

func (t *telemetry) released(e lockkeeper.Event) {
	s := t.of(&e)
	t.leaseDuration.Record(e.Context, e.Duration.Seconds(), s.endReleased...)
	if t.held.remove(e.Token, s) {
		s.held.Add(-1)
	}
}

func (t *telemetry) succeeded(e lockkeeper.Event) {
	started := time.Now().Add(-e.Duration)
	t.lastSuccess.Record(e.Context, float64(started.UnixMilli())/1000, t.of(&e).kindRecord...)
}

func (t *telemetry) limitChanged(e lockkeeper.Event) {
	if t.limit == nil {
		return
	}
	if s := t.of(&e); s.key.name != "" {
		t.limit.Record(e.Context, int64(e.Limit), s.kindRecord...)
	}
}
