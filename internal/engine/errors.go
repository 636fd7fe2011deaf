package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The conditions that callers tell apart. Package lockkeeper shows them to users and documents them.
var (
	ErrNotAcquired = errors.New("not acquired")
	ErrLost        = errors.New("lease lost")
	ErrReleased    = errors.New("lease released")
	ErrClosed      = errors.New("keeper closed")
	ErrInvalid     = errors.New("invalid argument")
	ErrConflict    = errors.New("another upgrade is waiting")
	ErrAbove       = errors.New("more permits than the limit in force")
)

// Invalid reports an argument that breaks a rule; the text names the option, the value and the rule.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("lockkeeper: %w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// failure is an error of an operation on one lock. Its text is made only when somebody reads it: a refused try is an
// ordinary answer and must be cheap.
type failure struct {
	kind, name string
	causes     []error
}

func (f *failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lockkeeper: %s %q", f.kind, f.name)
	for _, err := range f.causes {
		b.WriteString(": ")
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap lets errors.Is and errors.As find every cause.
func (f *failure) Unwrap() []error { return f.causes }

// fail makes an error of this lock out of what caused it.
func (l *Lock) fail(causes ...error) error {
	causes = slices.DeleteFunc(causes, func(err error) bool { return err == nil })
	return &failure{l.spec.Scripts.Kind, l.spec.Name, causes}
}
