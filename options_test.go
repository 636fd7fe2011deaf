package lockkeeper_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// TestNonsenseIsRefused: the error says which option it is, and what its value was.
func TestNonsenseIsRefused(t *testing.T) {
	retry := func(p lockkeeper.RetryPolicy) lockkeeper.Options { return lockkeeper.Options{Retry: p} }
	for _, c := range []struct {
		options lockkeeper.Options
		says    []string
	}{
		{lockkeeper.Options{Prefix: "a}"}, []string{"Prefix", "a}"}},
		{lockkeeper.Options{Prefix: "a{}"}, []string{"Prefix", "a{}"}},
		{lockkeeper.Options{Prefix: strings.Repeat("long", 257)}, []string{"Prefix", "longlong", "1028"}},
		{lockkeeper.Options{Prefix: "mine:", BareNames: true}, []string{"Prefix", "mine:", "BareNames"}},
		{lockkeeper.Options{Heartbeat: -time.Second}, []string{"Heartbeat ", "-1s"}},
		{lockkeeper.Options{Heartbeat: 1}, []string{"Heartbeat ", "1ns"}},
		{lockkeeper.Options{Heartbeat: 9 * time.Millisecond}, []string{"Heartbeat ", "9ms", "10ms"}},
		{lockkeeper.Options{Heartbeat: 61 * time.Minute}, []string{"Heartbeat ", "1h1m0s", "1h0m0s"}},
		{lockkeeper.Options{Heartbeat: 1<<63 - 1}, []string{"Heartbeat ", "2562047h"}},
		{lockkeeper.Options{Heartbeat: 10 * time.Millisecond, HeartbeatLifetime: -1}, []string{"HeartbeatLifetime", "-1ns"}},
		{lockkeeper.Options{Heartbeat: time.Minute, HeartbeatLifetime: 25 * time.Hour}, []string{"HeartbeatLifetime", "25h0m0s"}},
		{
			lockkeeper.Options{Heartbeat: time.Second, HeartbeatLifetime: 1999 * time.Millisecond},
			[]string{"HeartbeatLifetime", "1.999s", "Heartbeats of 1s"},
		},
		{lockkeeper.Options{Acknowledge: lockkeeper.Acknowledgement{Replicas: -1}}, []string{"Acknowledge.Replicas", "-1"}},
		{
			lockkeeper.Options{Acknowledge: lockkeeper.Acknowledgement{Replicas: 1, Within: time.Microsecond}},
			[]string{"Acknowledge.Within", "1µs", "1ms"},
		},
		{lockkeeper.Options{Acknowledge: lockkeeper.Acknowledgement{Within: time.Second}}, []string{"Acknowledge.Within", "1s"}},
		{lockkeeper.Options{Idle: -1}, []string{"Idle", "-1ns"}},
		{lockkeeper.Options{Idle: time.Second}, []string{"Idle", "1s", "1m0s"}},
		{lockkeeper.Options{Idle: 366 * 24 * time.Hour}, []string{"Idle", "8784h"}},
		{retry(lockkeeper.RetryPolicy{Min: -1}), []string{"Retry.Min", "-1ns"}},
		{retry(lockkeeper.RetryPolicy{Min: 1}), []string{"Retry.Min", "1ns"}},
		{retry(lockkeeper.RetryPolicy{Min: 2 * time.Hour}), []string{"Retry.Min", "2h0m0s"}},
		{retry(lockkeeper.RetryPolicy{Max: -1}), []string{"Retry.Max", "-1ns"}},
		{retry(lockkeeper.RetryPolicy{Min: time.Millisecond, Max: time.Microsecond}), []string{"Retry.Max", "1µs"}},
		{retry(lockkeeper.RetryPolicy{Max: 2 * time.Hour}), []string{"Retry.Max", "2h0m0s"}},
		{retry(lockkeeper.RetryPolicy{Min: time.Second, Max: time.Millisecond}), []string{"Retry.Max", "1ms", "Retry.Min", "1s"}},
	} {
		t.Run(fmt.Sprintf("%.20s %v", c.says[0], c.says[1]), func(t *testing.T) {
			k, err := lockkeeper.New(noServer(t), &c.options)
			if k != nil || !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Fatalf("%v, %v", k, err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("the error does not say %q: %v", s, err)
				}
			}
		})
	}
}

func TestWhatMakesSenseIsTaken(t *testing.T) {
	for _, o := range []*lockkeeper.Options{
		nil,
		{},
		{BareNames: true},
		{Prefix: "{app}:"},
		{Prefix: strings.Repeat("p", 1024)},
		{Heartbeat: 10 * time.Millisecond},
		{Heartbeat: time.Hour},
		{HeartbeatLifetime: 30 * time.Millisecond},
		{HeartbeatLifetime: 3 * time.Hour},
		{Heartbeat: time.Second, HeartbeatLifetime: 2 * time.Second},
		{Idle: time.Minute},
		{Acknowledge: lockkeeper.Acknowledgement{Replicas: 2, Majority: true, Fsync: true, Within: time.Millisecond}},
		{Idle: 365 * 24 * time.Hour},
		{Retry: lockkeeper.RetryPolicy{Min: time.Minute}}, // longer than the default of Max, which follows
		{Retry: lockkeeper.RetryPolicy{Max: time.Millisecond}},
		{Retry: lockkeeper.RetryPolicy{Min: time.Second, Max: time.Second}},
		{Retry: lockkeeper.RetryPolicy{GiveUp: -1}},
		{Retry: lockkeeper.RetryPolicy{GiveUp: 1}},
	} {
		t.Run(fmt.Sprintf("%.80s", fmt.Sprintf("%+v", o)), func(t *testing.T) {
			k, err := lockkeeper.New(noServer(t), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNewCopiesItsOptions: they are the caller's, and stay as they were.
func TestNewCopiesItsOptions(t *testing.T) {
	var o lockkeeper.Options
	k, err := lockkeeper.New(noServer(t), &o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	if !reflect.ValueOf(o).IsZero() {
		t.Errorf("they have become %+v", o)
	}
}

func TestTheErrorNamesTheOptionThatWasSet(t *testing.T) {
	for want, o := range map[string]lockkeeper.Options{
		"HeartbeatLifetime -1ns":    {HeartbeatLifetime: -1},
		"HeartbeatLifetime 19ms":    {HeartbeatLifetime: 19 * time.Millisecond},
		"HeartbeatLifetime 25h0m0s": {HeartbeatLifetime: 25 * time.Hour},
		"Retry.Max 500":             {Retry: lockkeeper.RetryPolicy{Max: 500 * time.Microsecond}},
	} {
		if _, err := lockkeeper.New(noServer(t), &o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got: %v", want, err)
		}
	}
	for _, d := range []time.Duration{20 * time.Millisecond, 24 * time.Hour} { // what the bounds allow
		if _, err := lockkeeper.New(noServer(t), &lockkeeper.Options{HeartbeatLifetime: d}); err != nil {
			t.Error(err)
		}
	}
}
