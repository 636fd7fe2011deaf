// Package election elects a leader: of all processes that call [Run] with the same lock, one leads at a time, and the others
// wait to take over.
//
//	m, err := mutex.New(k, "scheduler", nil)
//	…
//	err = election.Run(ctx, m, func(ctx context.Context, fence uint64) error {
//		return schedule(ctx, fence) // until ctx ends, which is when the process must stop leading
//	})
//
// The lock is of a kind that one holder has at a time, but not a mutex with Linger; see [Locker]. With a lock of
// [github.com/lockkeeper/lockkeeper/mutex] any candidate may take over; with [github.com/lockkeeper/lockkeeper/fair] it is the one
// that has waited longest; and with [github.com/lockkeeper/lockkeeper/redlock] elections go on while a minority of the servers is
// down. Package [github.com/lockkeeper/lockkeeper] documents leases and fences.
//
// # A term
//
// Run waits for the lock, which is called campaigning here, and then calls the caller's function, lead, in the same goroutine.
// A term begins with this call and ends when lead returns. Run releases the lock only then, so that the next leader does not
// start while the work of this one goes on. The context that Run passes to lead ends
//
//   - when the lease is lost: the process was paused, Redis did not answer for the TTL, or the lock was taken away,
//   - when the lease is released by somebody else, such as Keeper.Close,
//   - when the context of Run ends.
//
// What happens after lead has returned depends on the reason:
//
//	the lease was lost         Run campaigns again, whatever lead returned
//	Run's context has ended    the lock is released, and Run returns nil, or what else went wrong
//	lead returned nil          the lock is released, and Run returns nil: the work is done
//	lead returned ErrResign    the lock is released, and Run campaigns again after a pause
//	lead returned an error     the lock is released, and Run returns the error
//	lead panicked              the lock is released, and the panic continues
//
// So lead must return soon after its context has ended, and may be called again later in the same process. While it does not
// return, its process does not campaign, and after Options.LongStepDown a warning is logged. If the lease was lost, others can
// lead meanwhile. If the lease was not lost, because only Run's context ended, it is renewed until lead returns, and nobody
// else leads.
//
// # Two leaders
//
// At most one process has a lease whose Err method returns nil. But no lease prevents a process from being paused between its
// last check and its write, so a former leader may write after the next one has started. Pass the fence with each write, so
// that the store can reject it; the [guarantees] say how.
//
// If the leader crashes, the next one starts when its lease has expired, which takes the TTL of the lock at most (30 s by
// default). If it returns or its keeper is closed, the next one starts at once.
//
// # Outages
//
// While Redis does not answer or refuses, be it with an error that requires intervention, such as WRONGPASS while credentials are
// changed, or MISCONF while the disk is full, nobody is elected. The leader goes on until its deadline and then sees the loss;
// candidates keep campaigning without end, with a pause that grows from MinBackoff to MaxBackoff after each Lock that failed. When
// Redis is back, one is elected, after a pause of at most one and a half times MaxBackoff (7.5 s by default). The failures are
// logged, and Options.Retry learns of each and can end the candidacy.
//
// [guarantees]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/guarantees.md#what-a-store-must-do
package election
