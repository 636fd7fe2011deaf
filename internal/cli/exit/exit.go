// Package exit defines the exit codes of the lockkeeper command and the error that carries one.
package exit

import (
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// Exit codes of lockkeeper itself, from sysexits(3). The exit code of a child is passed on unchanged. As in a shell, a child
// that was killed by a signal gives 128 plus the signal number, and a command that cannot be run gives 126, or 127 if it was
// not found.
const (
	NotFound    = 1  // of show and break: there is nothing of this name
	Usage       = 64 // the command line is wrong
	Unreachable = 69 // Redis does not answer or refuses
	NotAcquired = 75 // the lock is held, or the permits are taken
	Lost        = 76 // the lock was lost while the command ran
)

// Error ends the program with an exit code.
type Error struct {
	Code int
	Err  error // printed to standard error; nil prints nothing
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Usagef returns an error with the exit code [Usage].
func Usagef(format string, args ...any) error { return &Error{Usage, fmt.Errorf(format, args...)} }

// Message returns the text of err without the library's prefix, because the command prints its own name in front of it. It is safe to
// write to a terminal.
func Message(err error) string { return strings.TrimPrefix(output.Message(err), "lockkeeper: ") }
