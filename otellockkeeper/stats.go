package otellockkeeper

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper"
)

// Observe reports what a keeper is doing, its Stats, whenever the provider of WithMeterProvider collects metrics: those whose names are in
// the second list of the package comment. They have no attributes, so observe one keeper of a process. It does
// not block. Call stop before the keeper is dropped: until then the provider keeps it alive. After an error nothing is reported.
func Observe(k *lockkeeper.Keeper, opts ...Option) (stop func() error, err error) {
	if k == nil {
		return nil, errors.New("otellockkeeper: the keeper is nil")
	}
	var c config
	for _, opt := range opts {
		opt(&c)
	}
	m := c.meter()
	upDown := func(name, unit, description string) metric.Int64ObservableUpDownCounter {
		u, failed := m.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		err = errors.Join(err, failed)
		return u
	}
	unsent := upDown("lockkeeper.commands.unsent", "{command}", "Commands that wait for a connection.")
	inFlight := upDown("lockkeeper.pipelines.in_flight", "{pipeline}", "Pipelines that were sent and are not answered.")
	channels := upDown("lockkeeper.channels.wanted", "{channel}", "Channels on which messages are wanted.")
	unsubscribed := upDown("lockkeeper.channels.unsubscribed", "{channel}", "Of these, those without an acknowledged subscription.")
	silence, failed := m.Float64ObservableGauge("lockkeeper.server.silence", metric.WithUnit("s"),
		metric.WithDescription("For how long a server has answered nothing though it owes an answer."))
	err = errors.Join(err, failed)
	heard, failed := m.Float64ObservableGauge("lockkeeper.channels.silence", metric.WithUnit("s"),
		metric.WithDescription("For how long nothing has come on a connection with subscriptions that waiters use."))
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	r, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := k.Stats()
		o.ObserveInt64(unsent, int64(s.Unsent))
		o.ObserveInt64(inFlight, int64(s.InFlight))
		o.ObserveInt64(channels, int64(s.Channels))
		o.ObserveInt64(unsubscribed, int64(s.Unsubscribed))
		o.ObserveFloat64(silence, s.Silence.Seconds())
		o.ObserveFloat64(heard, s.SubscriptionSilence.Seconds())
		return nil
	}, unsent, inFlight, channels, unsubscribed, silence, heard)
	if err != nil {
		return nil, err
	}
	return r.Unregister, nil
}
