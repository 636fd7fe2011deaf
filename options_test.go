package lockkeeper_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestInvalidOptionsRejected checks that the error names the option and its value.
func TestInvalidOptionsRejected(t *testing.T) {
	retry := func(p lockkeeper.RetryPolicy) lockkeeper.Options { return lockkeeper.Options{Retry: p} }
	ack := func(a lockkeeper.ReplicaAck) lockkeeper.Options { return lockkeeper.Options{ReplicaAck: a} }
	for _, c := range []struct {
		options lockkeeper.Options
		says    []string
	}{
		{lockkeeper.Options{Prefix: "a}"}, []string{"Prefix", "a}"}},
		{lockkeeper.Options{Prefix: "a{}"}, []string{"Prefix", "a{}"}},
		{lockkeeper.Options{Prefix: strings.Repeat("long", 257)}, []string{"Prefix", "longlong", "1028"}},
		{lockkeeper.Options{Prefix: "mine:", NoPrefix: true}, []string{"Prefix", "mine:", "NoPrefix"}},
		{lockkeeper.Options{HeartbeatInterval: -time.Second}, []string{"HeartbeatInterval ", "-1s"}},
		{lockkeeper.Options{HeartbeatInterval: 1}, []string{"HeartbeatInterval ", "1ns"}},
		{lockkeeper.Options{HeartbeatInterval: 9 * time.Millisecond}, []string{"HeartbeatInterval ", "9ms", "10ms"}},
		{lockkeeper.Options{HeartbeatInterval: 61 * time.Minute}, []string{"HeartbeatInterval ", "1h1m0s", "1h0m0s"}},
		{lockkeeper.Options{HeartbeatInterval: 1<<63 - 1}, []string{"HeartbeatInterval ", "2562047h"}},
		{lockkeeper.Options{HeartbeatInterval: 10 * time.Millisecond, HeartbeatTimeout: -1}, []string{"HeartbeatTimeout", "-1ns"}},
		{lockkeeper.Options{HeartbeatTimeout: 19 * time.Millisecond}, []string{"HeartbeatTimeout 19ms", ""}},
		{lockkeeper.Options{HeartbeatTimeout: 25 * time.Hour}, []string{"HeartbeatTimeout 25h0m0s", ""}},
		{lockkeeper.Options{HeartbeatInterval: time.Minute, HeartbeatTimeout: 25 * time.Hour}, []string{"HeartbeatTimeout", "25h0m0s"}},
		{
			lockkeeper.Options{HeartbeatInterval: time.Second, HeartbeatTimeout: 1999 * time.Millisecond},
			[]string{"HeartbeatTimeout", "1.999s", "twice the HeartbeatInterval of 1s"},
		},
		{ack(lockkeeper.ReplicaAck{Replicas: -1}), []string{"ReplicaAck.Replicas", "-1"}},
		{ack(lockkeeper.ReplicaAck{Replicas: 1, Timeout: time.Microsecond}), []string{"ReplicaAck.Timeout", "1µs", "1ms"}},
		{ack(lockkeeper.ReplicaAck{Timeout: time.Second}), []string{"ReplicaAck.Timeout", "1s"}},
		{lockkeeper.Options{MetadataTTL: -1}, []string{"MetadataTTL", "-1ns"}},
		{lockkeeper.Options{MetadataTTL: time.Second}, []string{"MetadataTTL", "1s", "1m0s"}},
		{lockkeeper.Options{MetadataTTL: 366 * 24 * time.Hour}, []string{"MetadataTTL", "8784h"}},
		{retry(lockkeeper.RetryPolicy{MinBackoff: -1}), []string{"Retry.MinBackoff", "-1ns"}},
		{retry(lockkeeper.RetryPolicy{MinBackoff: 1}), []string{"Retry.MinBackoff", "1ns"}},
		{retry(lockkeeper.RetryPolicy{MinBackoff: 2 * time.Hour}), []string{"Retry.MinBackoff", "2h0m0s"}},
		{retry(lockkeeper.RetryPolicy{MaxBackoff: -1}), []string{"Retry.MaxBackoff", "-1ns"}},
		{retry(lockkeeper.RetryPolicy{MinBackoff: time.Millisecond, MaxBackoff: time.Microsecond}), []string{"Retry.MaxBackoff", "1µs"}},
		{retry(lockkeeper.RetryPolicy{MaxBackoff: 2 * time.Hour}), []string{"Retry.MaxBackoff", "2h0m0s"}},
		{retry(lockkeeper.RetryPolicy{MinBackoff: time.Second, MaxBackoff: time.Millisecond}), []string{"Retry.MaxBackoff", "1ms", "Retry.MinBackoff", "1s"}},
	} {
		t.Run(fmt.Sprintf("%.20s %v", c.says[0], c.says[1]), func(t *testing.T) {
			k, err := lockkeeper.New(noServer(t), &c.options)
			must.That(t, k == nil && errors.Is(err, lockkeeper.ErrInvalid), "%v, %v", k, err)
			for _, s := range c.says {
				check.That(t, strings.Contains(err.Error(), s), "the error does not contain %q: %v", s, err)
			}
		})
	}
}

func TestValidOptionsAccepted(t *testing.T) {
	for _, o := range []*lockkeeper.Options{
		nil,
		{},
		{NoPrefix: true},
		{Prefix: "{app}:"},
		{Prefix: strings.Repeat("p", 1024)},
		{HeartbeatInterval: 10 * time.Millisecond},
		{HeartbeatInterval: time.Hour},
		{HeartbeatTimeout: 20 * time.Millisecond},
		{HeartbeatTimeout: 24 * time.Hour},
		{HeartbeatInterval: time.Second, HeartbeatTimeout: 2 * time.Second},
		{MetadataTTL: time.Minute},
		{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 2, Majority: true, Fsync: true, Timeout: time.Millisecond}},
		{MetadataTTL: 365 * 24 * time.Hour},
		{Retry: lockkeeper.RetryPolicy{MinBackoff: time.Minute}}, // longer than the default of MaxBackoff, which is raised to it
		{Retry: lockkeeper.RetryPolicy{MaxBackoff: time.Millisecond}},
		{Retry: lockkeeper.RetryPolicy{MinBackoff: time.Second, MaxBackoff: time.Second}},
		{Retry: lockkeeper.RetryPolicy{MaxElapsed: -1}},
		{Retry: lockkeeper.RetryPolicy{MaxElapsed: 1}},
	} {
		t.Run(fmt.Sprintf("%.80s", fmt.Sprintf("%+v", o)), func(t *testing.T) {
			var before lockkeeper.Options
			if o != nil {
				before = *o
			}
			k := must.Get(lockkeeper.New(noServer(t), o))(t)
			must.Report(t, k.Close())
			check.That(t, o == nil || reflect.DeepEqual(*o, before), "New has changed them to %+v", o)
		})
	}
}
