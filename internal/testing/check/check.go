// Package check fails a test in which something is not as it should be, and lets it go on. Package must ends it.
package check

import (
	"cmp"
	"errors"
	"testing"
)

// That fails the test unless ok is set.
func That(t testing.TB, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// Is fails the test unless an error is the one that is wanted; nil: there must be none.
func Is(t testing.TB, err, want error, format string, args ...any) {
	if !errors.Is(err, want) {
		t.Helper()
		t.Errorf(format+": %v; want %v", append(args, err, want)...)
	}
}

// ErrorOf is the error of a call that returns something else besides.
func ErrorOf[T any](_ T, err error) error { return err }

// Between fails the test unless what it got lies between two bounds, both included.
func Between[T cmp.Ordered](t testing.TB, got, least, most T, what string) {
	t.Helper()
	That(t, got >= least && got <= most, "%s: %v, want from %v to %v", what, got, least, most)
}
