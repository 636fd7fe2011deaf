package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// The conditions that callers tell apart. Package lockkeeper shows them to users and documents them.
var (
	ErrNotAcquired = errors.New("not acquired")
	ErrUnavailable = errors.New("server unavailable")
	ErrLost        = errors.New("lease lost")
	ErrReleased    = errors.New("lease released")
	ErrClosed      = errors.New("keeper closed")
	ErrInvalid     = errors.New("invalid argument")
	ErrConflict    = errors.New("another upgrade is waiting")
	ErrAboveLimit  = errors.New("more permits than the limit in force")
)

// Invalid reports an argument that breaks a rule; the text names the option, the value and the rule.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("lockkeeper: %w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// ErrNoAnswer means that no answer arrived.
var ErrNoAnswer = Chain(ErrUnavailable, errors.New("no answer"))

// unavailable marks an error of a request with ErrUnavailable if the same request may succeed later without anybody
// changing anything: Redis gave no answer, or one that says that it cannot serve at present.
func unavailable(err error) error {
	if !transport.Retryable(err) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return Chain(ErrUnavailable, err)
}

// causes is an error that has several, on one line: errors.Join puts each on a line of its own, which breaks logs.
type causes struct {
	list []error
	sep  string
}

func (c *causes) Error() string {
	var b strings.Builder
	for i, err := range c.list {
		if i > 0 {
			b.WriteString(c.sep)
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap lets errors.Is and errors.As find every cause.
func (c *causes) Unwrap() []error { return c.list }

// Chain returns an error with its causes, outermost first. errors.Is and errors.As find all of them.
func Chain(list ...error) error { return &causes{list, ": "} }

// join is several errors that did not cause each other; those that are nil do not count.
func join(list ...error) error {
	list = slices.DeleteFunc(list, func(err error) bool { return err == nil })
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return &causes{list, "; "}
}

// lockError is an error of an operation on one lock. Its text is made only when somebody reads it: a refused try is an
// ordinary answer and must be cheap.
type lockError struct {
	kind, name string
	causes
	inline [2]error // where the causes lie if they are no more, which spares an allocation
}

func (f *lockError) Error() string {
	return fmt.Sprintf("lockkeeper: %s %q: %s", f.kind, f.name, f.causes.Error())
}

// fail makes an error of this lock out of what caused it. The lock is named once, also if a cause names it.
func (l *Lock) fail(list ...error) error {
	f := &lockError{kind: l.spec.Scripts.Kind, name: l.spec.Name, causes: causes{sep: ": "}}
	f.list = f.inline[:0]
	for _, err := range list {
		if of, ok := err.(*lockError); ok && of.kind == f.kind && of.name == f.name {
			err = WithoutName(of)
		}
		if err != nil {
			f.list = append(f.list, err)
		}
	}
	return f
}

// WithoutName returns an error of a lock without the lock's kind and name, for use in an error that names the lock itself.
func WithoutName(err error) error {
	f, ok := err.(*lockError)
	switch {
	case !ok:
		return err
	case len(f.list) == 1:
		return f.list[0]
	}
	return &f.causes
}
