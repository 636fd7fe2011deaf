package redlock

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper"
)

// Error is the error of a failed operation or of a lost lease, with the last answer of each server. Find it with errors.As.
// errors.Is matches the result (ErrNotAcquired, ErrUnavailable, ErrLost, ErrClosed, a context's error) and, where they caused
// it, the servers' errors.
type Error struct {
	Name    string
	Servers []ServerError // in the order of the keepers; empty if none was asked

	causes []error
}

// ServerError is the answer of one server.
type ServerError struct {
	Keeper string // the Keeper.ID
	// Err is nil if the server agreed. It is ErrNotAcquired if another holder has the server's part of the lock, ErrLost if
	// the server no longer knows the lease, ErrUnavailable if it did not answer, and otherwise why its answer does not count.
	Err error
}

func newError(name string, ids []string, answers, causes []error) *Error {
	e := &Error{Name: name, causes: causes}
	for i, err := range answers {
		e.Servers = append(e.Servers, ServerError{ids[i], err})
	}
	return e
}

// Error returns a text that names the lock, the causes, and the answer of each server.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lockkeeper: redlock %q", e.Name)
	for _, err := range e.causes { // ErrNotAcquired is the answer of a server, and of all together
		if err == lockkeeper.ErrNotAcquired || !e.isAnswer(err) {
			fmt.Fprintf(&b, ": %v", err)
		}
	}
	for i, s := range e.Servers {
		sep := ", "
		if i == 0 {
			sep = " ("
		}
		answer := "agreed"
		if s.Err != nil {
			answer = strings.TrimPrefix(s.Err.Error(), lockkeeper.ErrUnavailable.Error()+": ") // the rest implies it
		}
		fmt.Fprintf(&b, "%sserver %d: %s", sep, i+1, answer)
	}
	if len(e.Servers) > 0 {
		b.WriteString(")")
	}
	return b.String()
}

// isAnswer reports whether a cause is the answer of a server, so that its text is printed there.
func (e *Error) isAnswer(cause error) bool {
	for _, s := range e.Servers {
		if s.Err == cause {
			return true
		}
	}
	return false
}

// Unwrap returns the causes, for errors.Is and errors.As.
func (e *Error) Unwrap() []error { return e.causes }
