package lockkeeper

import (
	"context"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
)

// WithNote returns a context whose acquisitions have a note for people, such as the id of the job that needs the lock. It is
// shown beside the lock's holders and waiters: [Holder.Note] and [Waiter.Note], lockkeeper show, the pages of package
// inspector. Everybody who can read the server's keys can read it.
//
// A note has at most 64 bytes and no characters that cannot be printed; with any other, an acquisition fails with [ErrInvalid].
// It is a part of the token, at 4 bytes for 3, and costs no command. A lease keeps its note when it is converted. One that callers of a
// process share (option Linger) has the note of the first of them.
func WithNote(ctx context.Context, note string) context.Context { return keeper.WithNote(ctx, note) }
