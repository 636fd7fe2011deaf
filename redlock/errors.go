package redlock

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper"
)

// Error is something that did not come about, or a lease that was lost, with what each server has said. errors.Is finds
// what follows from it (ErrNotAcquired, ErrUnavailable, ErrLost, ErrClosed, a context's error) and, if it follows from them, the errors
// of the servers; errors.As finds the Error.
type Error struct {
	Name    string
	Servers []ServerError // in the order of the keepers; empty if none was asked

	causes []error
}

// ServerError is what one server has said.
type ServerError struct {
	Keeper string // the Keeper.ID
	// Err is nil if the server agreed. It is ErrNotAcquired if another holds the server's part of the lock, ErrLost if the
	// server does not know the lease any more, ErrUnavailable if it has not answered, and otherwise why its answer does not
	// count.
	Err error
}

func newError(name string, ids []string, answers, causes []error) *Error {
	e := &Error{Name: name, causes: causes}
	for i, err := range answers {
		e.Servers = append(e.Servers, ServerError{ids[i], err})
	}
	return e
}

// Error names the lock, what happened, and what each server said.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lockkeeper: redlock %q", e.Name)
	for _, err := range e.causes {
		if !e.isAnswer(err) {
			fmt.Fprintf(&b, ": %v", err)
		}
	}
	for i, s := range e.Servers {
		sep := ", "
		if i == 0 {
			sep = " ("
		}
		said := "agreed"
		if s.Err != nil {
			said = strings.TrimPrefix(s.Err.Error(), lockkeeper.ErrUnavailable.Error()+": ") // what it is says so
		}
		fmt.Fprintf(&b, "%sserver %d: %s", sep, i+1, said)
	}
	if len(e.Servers) > 0 {
		b.WriteString(")")
	}
	return b.String()
}

// isAnswer says whether the text of a cause stands with its server.
func (e *Error) isAnswer(cause error) bool {
	for _, s := range e.Servers {
		if s.Err == cause {
			return true
		}
	}
	return false
}

// Unwrap lets errors.Is and errors.As find every cause.
func (e *Error) Unwrap() []error { return e.causes }
