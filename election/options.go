package election

import (
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// The defaults of Options.
const (
	defaultMinBackoff    = 100 * time.Millisecond
	defaultMaxBackoff    = 5 * time.Second
	defaultWatchInterval = 2 * time.Second
	defaultLongStepDown  = 10 * time.Second
)

// Options are the settings of an election. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// MinBackoff and MaxBackoff are the first and the longest pause before Run campaigns again; each pause is varied at random by up
	// to half. From 1 ms to 1 h. MinBackoff defaults to 100 ms, or to MaxBackoff if that is shorter; MaxBackoff to 5 s, or to
	// MinBackoff if that is longer.
	//
	// There is a pause after a Lock that failed, after a lost lease, and after ErrResign. After a term that lasted for at least
	// MaxBackoff the pauses start at MinBackoff again.
	MinBackoff, MaxBackoff time.Duration

	// Retry is called with each error of Lock after which Run can go on, and reports whether it does; else Run returns the error.
	// Default: Run goes on after all.
	//
	// It is not called with ErrClosed and ErrInvalid, which every Lock would return, nor after the end of Run's context. The
	// errors that require intervention are those that match neither ErrUnavailable nor ErrNotAcquired.
	Retry func(err error) bool

	// WatchInterval is how often Watch asks the server who leads. From 10 ms to 1 h. Default 2 s.
	//
	// Watch also asks when this process starts or stops leading.
	WatchInterval time.Duration

	// LongStepDown is how long lead may go on after its context has ended before a warning is logged. From 10 ms to 1 h. Default
	// 10 s.
	LongStepDown time.Duration

	// Logger receives warnings: a campaign failed, leadership was lost, lead does not return. Default slog.Default().
	//
	// It receives an error if a campaign failed for a reason that requires intervention. Of campaigns that fail in a row, one is
	// logged a minute, and each change from one level to the other.
	Logger *slog.Logger
}

// withDefaults returns the options with defaults filled in. The error is ErrInvalid.
func (o *Options) withDefaults() (Options, error) {
	var all Options
	if o != nil {
		all = *o
	}
	for _, x := range []struct {
		option       string
		value, least time.Duration
	}{
		{"MinBackoff", all.MinBackoff, time.Millisecond},
		{"MaxBackoff", all.MaxBackoff, time.Millisecond},
		{"WatchInterval", all.WatchInterval, 10 * time.Millisecond},
		{"LongStepDown", all.LongStepDown, 10 * time.Millisecond},
	} {
		if x.value != 0 && (x.value < x.least || x.value > time.Hour) {
			return Options{}, server.Invalid("%s %v is not between %v and %v", x.option, x.value, x.least, time.Hour)
		}
	}
	if all.MinBackoff == 0 && all.MaxBackoff == 0 {
		all.MinBackoff, all.MaxBackoff = defaultMinBackoff, defaultMaxBackoff
	}
	if all.MinBackoff == 0 {
		all.MinBackoff = min(defaultMinBackoff, all.MaxBackoff)
	}
	if all.MaxBackoff == 0 {
		all.MaxBackoff = max(defaultMaxBackoff, all.MinBackoff)
	}
	if all.WatchInterval == 0 {
		all.WatchInterval = defaultWatchInterval
	}
	if all.LongStepDown == 0 {
		all.LongStepDown = defaultLongStepDown
	}
	if all.Logger == nil {
		all.Logger = slog.Default()
	}
	if all.MaxBackoff < all.MinBackoff {
		return Options{}, server.Invalid("MaxBackoff %v is shorter than MinBackoff %v", all.MaxBackoff, all.MinBackoff)
	}
	return all, nil
}
