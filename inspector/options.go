package inspector

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// The defaults of Options.
const (
	defaultTitle    = "Locks"
	defaultMaxNames = 5000
	defaultInterval = time.Second
)

// Options are the settings of a handler. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// Authorize is called for every request. If it returns an error, the answer is 403 with its text. Default nil: every request
	// is allowed.
	//
	// Requests for scripts and styles are included. Authorize is called concurrently.
	Authorize func(r *http.Request) error

	// AllowBreak returns the name of the user who sends a request if that user may break locks, or else an error; see "Security" in
	// the package comment. It is called concurrently. Default nil: nobody may break locks.
	AllowBreak func(r *http.Request) (user string, err error)

	// Title is the heading of the pages, for example the name of the deployment. At most 100 bytes. Default "Locks".
	Title string

	// Server is what the pages say they show, beside the keeper's prefix. At most 200 bytes. Default the address of the keeper's
	// client, without user and password.
	Server string

	// MaxNames is the maximum number of names that are read for the list. From 1 to 100,000. Default 5,000.
	//
	// If there are more, the page says so; a search then reads only the names that match.
	MaxNames int

	// Interval is the least time between two reads of the list, and between two reads of the same name. From 1 s to 1 min.
	// Default 1 s.
	Interval time.Duration

	// Logger receives a line for each lock that is broken, and for each attempt that was refused. Default slog.Default().
	Logger *slog.Logger
}

func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Title == "" {
		c.Title = defaultTitle
	}
	if c.MaxNames == 0 {
		c.MaxNames = defaultMaxNames
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case len(c.Title) > 100:
		return c, server.Invalid("Title has %d bytes, the maximum is 100", len(c.Title))
	case len(c.Server) > 200:
		return c, server.Invalid("Server has %d bytes, the maximum is 200", len(c.Server))
	case c.MaxNames < 1 || c.MaxNames > 100_000:
		return c, server.Invalid("MaxNames %d is not between 1 and 100000", c.MaxNames)
	case c.Interval < time.Second || c.Interval > time.Minute:
		return c, server.Invalid("Interval %v is not between 1s and 1m0s", c.Interval)
	}
	return c, nil
}
