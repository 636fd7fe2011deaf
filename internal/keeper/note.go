package keeper

import (
	"context"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

type noteKey struct{}

// WithNote returns a context whose acquisitions have this note. See WithNote in package lockkeeper.
func WithNote(ctx context.Context, note string) context.Context {
	return context.WithValue(ctx, noteKey{}, note)
}

// NoteOf returns the note of a context, "" if it has none. The error is ErrInvalid.
func NoteOf(ctx context.Context) (string, error) {
	note, _ := ctx.Value(noteKey{}).(string)
	if err := protocol.CheckNote(note); err != nil {
		return "", server.Invalid("%w", err)
	}
	return note, nil
}
