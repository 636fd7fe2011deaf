// Package must ends a test when something fails that the test does not check, but needs.
package must

import (
	"context"
	"testing"
	"time"
)

// OK ends the test if there is an error. It may be called only in the goroutine of the test.
func OK(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Report fails the test if there is an error, and lets it go on.
func Report(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Error(err)
	}
}

// Get returns what a call has returned, or ends the test if it has failed:
//
//	k := must.Get(lockkeeper.New(rdb, nil))(t)
func Get[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return value
	}
}

// Within returns a context that ends after a while, so that calls which hang fail, or with the test.
func Within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// That ends the test unless ok is set. Package check lets it go on.
func That(t testing.TB, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// Receive returns what a channel yields, or nothing if it is closed, and ends the test if that takes too long.
func Receive[T any](t testing.TB, from <-chan T, within time.Duration, what string) (x T) {
	select {
	case x = <-from:
	case <-time.After(within):
		t.Helper()
		t.Fatalf("not within %v: %s", within, what)
	}
	return x
}
