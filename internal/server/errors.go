package server

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// The errors that callers distinguish. Package lockkeeper exports and documents them.
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

// Invalid returns an ErrInvalid that is about no lock; others come from InvalidFor and Resource.Invalid. The text names the option or argument,
// its value and the violated rule, in one of these forms if one fits: "X 1 is not between 2 and 9", "X 1 is shorter than Y 2", "X is negative",
// "X is set together with Y; why", "the x is nil".
func Invalid(format string, args ...any) error {
	return OfLock("", "", ErrInvalid, fmt.Errorf(format, args...))
}

// InvalidFor returns an ErrInvalid about a lock that has no Resource yet.
func InvalidFor[K ~string](kind K, name, format string, args ...any) error {
	return OfLock(string(kind), name, Invalid(format, args...))
}

// IsNil reports whether x is nil or a nil pointer.
func IsNil(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// LossReason says why a lease was lost. Package lockkeeper documents the reasons.
type LossReason string

// The reasons that errors of this package and of package quorum have.
const (
	LossGone        LossReason = "gone"
	LossUnavailable LossReason = "unavailable"
	LossExpired     LossReason = "expired"
	LossNotRenewed  LossReason = "not_renewed"
	LossMaxLifetime LossReason = "max_lifetime"
	LossNoMajority  LossReason = "no_majority"
)

// loss is an error that says why a lease was lost. It stands behind ErrLost in a Chain.
type loss struct {
	reason LossReason
	text   string
}

func (l *loss) Error() string { return l.text }

// NewLoss returns an error that says why a lease was lost.
func NewLoss(reason LossReason, text string) error { return &loss{reason, text} }

// LossReasonOf returns why a lease was lost, by its error; "" if the error does not say.
func LossReasonOf(err error) LossReason {
	var l *loss
	switch {
	case errors.Is(err, ErrUnavailable):
		return LossUnavailable
	case errors.As(err, &l):
		return l.reason
	case transport.WrongType(err): // the key was overwritten
		return LossGone
	}
	return ""
}

// ErrNoAnswer means that no answer arrived.
var ErrNoAnswer = Chain(ErrUnavailable, errors.New("no answer"))

// Unavailable adds ErrUnavailable to the error of a request if the same request may succeed later without manual
// intervention: Redis did not answer, or answered that it cannot serve requests at present.
func Unavailable(err error) error {
	if !transport.Retryable(err) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return Chain(ErrUnavailable, err)
}

// causes is an error that wraps several errors. Its text is one line; that of errors.Join has one line for each, which does
// not suit logs.
type causes struct {
	list []error
	sep  string
}

// Error returns the texts of the errors on one line.
func (cs *causes) Error() string {
	var b strings.Builder
	for i, err := range cs.list {
		if i > 0 {
			b.WriteString(cs.sep)
		}
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap lets errors.Is and errors.As find every cause.
func (cs *causes) Unwrap() []error { return cs.list }

// Chain returns an error with its causes, outermost first. errors.Is and errors.As find all of them.
func Chain(list ...error) error { return &causes{list, ": "} }

// ContextError returns an error that matches ctx.Err() and the cause of ctx, or nil if ctx has not ended.
func ContextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || cause == nil || cause == err {
		return err
	}
	return Chain(err, cause)
}

// Join returns an error that wraps the errors that are not nil, none of which caused another. It returns nil if all are nil.
func Join(list ...error) error {
	list = slices.DeleteFunc(list, func(err error) bool { return err == nil })
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return &causes{list, "; "}
}
