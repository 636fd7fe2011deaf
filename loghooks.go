package lockkeeper

import (
	"errors"
	"log/slog"
)

// LogHooks returns hooks that log each acquisition and each end of a lease to l, with the context of the call. For debugging:
//
//	opts := &lockkeeper.Options{Hooks: lockkeeper.LogHooks(slog.Default(), slog.LevelDebug)}
//
// Acquired, refused (ErrNotAcquired), queued, released and limit changed are logged at level, and what went wrong one level of
// severity higher (level + 4): not acquired for another reason, lost and leaked. Attributes are those of the [Event] that apply: kind, name, mode, request, token, fence,
// took or held, position, limit, err, and inside for a lease that was granted inside the process. A token is a secret to those who may
// write to Redis but not read it; see SECURITY.md of the repository. Where l is not enabled for the level, an event costs one call of Enabled.
//
// The keeper's own warnings go to Options.Logger and do not depend on these hooks.
func LogHooks(l *slog.Logger, level slog.Level) Hooks {
	const higher = slog.LevelWarn - slog.LevelInfo
	log := func(message string, level slog.Level, duration string) func(Event) {
		return func(e Event) {
			if l.Enabled(e.Context, level) {
				l.LogAttrs(e.Context, level, message, e.attrs(duration)...)
			}
		}
	}
	const refusal = "lock not acquired"
	acquired, refused, failed := log("lock acquired", level, "took"), log(refusal, level, "took"), log(refusal, level+higher, "took")
	return Hooks{
		AcquireDone: func(e Event) {
			switch {
			case e.Err == nil:
				acquired(e)
			case errors.Is(e.Err, ErrNotAcquired):
				refused(e)
			default:
				failed(e)
			}
		},
		Queued:       log("lock queued for", level, ""),
		Released:     log("lock released", level, "held"),
		Lost:         log("lock lost", level+higher, "held"),
		Leaked:       log("lock leaked", level+higher, "held"),
		LimitChanged: log("lock limit changed", level, ""),
	}
}

// attrs returns the fields that apply, with the duration under that key.
func (e Event) attrs(duration string) []slog.Attr {
	attrs := make([]slog.Attr, 0, 10)
	text := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	text("kind", string(e.Kind))
	text("name", e.Name)
	text("mode", e.Mode)
	attrs = append(attrs, slog.Uint64("request", e.Request))
	text("token", e.Token)
	if e.Fence > 0 {
		attrs = append(attrs, slog.Uint64("fence", e.Fence))
	}
	switch {
	case duration != "":
		attrs = append(attrs, slog.Duration(duration, e.Duration))
	case e.Limit > 0:
		attrs = append(attrs, slog.Int("limit", e.Limit))
	default:
		attrs = append(attrs, slog.Int("position", e.Position))
	}
	if e.Local {
		attrs = append(attrs, slog.Bool("inside", true))
	}
	text("reason", string(e.Reason))
	if e.Err != nil {
		attrs = append(attrs, slog.Any("err", e.Err))
	}
	return attrs
}
