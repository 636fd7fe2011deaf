// Package election elects a leader: of all processes that call Run with the same lock, one leads at a time, and the others
// wait to take over.
//
//	m, err := mutex.New(k, "scheduler", nil)
//	…
//	err = election.Run(ctx, m, func(ctx context.Context, fence uint64) error {
//		return schedule(ctx, fence) // until ctx ends, which is when the process must stop leading
//	})
//
// The lock may be of any kind that one holder has at a time. With [github.com/lockkeeper/lockkeeper/mutex] any candidate may
// take over, with [github.com/lockkeeper/lockkeeper/fair] the one that has waited longest, and with
// [github.com/lockkeeper/lockkeeper/redlock] the election survives the loss of a minority of servers.
//
// # A term
//
// Run waits for the lock, which is called campaigning here, and then calls its function, lead, in the same goroutine. The
// process leads until lead returns. Run releases the lock only then, so that the next leader does not start while the work of
// this one goes on. The context that lead gets ends
//
//   - when the lease is lost: the process was paused, Redis did not answer for the TTL, or the lock was taken away,
//   - when the lease is released by somebody else, such as Keeper.Close,
//   - when the context of Run ends.
//
// What happens after lead has returned depends on why it did:
//
//	the lease was lost         Run campaigns again, whatever lead returned
//	Run's context has ended    the lock is released, and Run returns the context's error
//	lead returned nil          the lock is released, and Run returns nil: the work is done
//	lead returned ErrResign    the lock is released, and Run campaigns again after a pause
//	lead returned an error     the lock is released, and Run returns the error
//	lead panicked              the lock is released, and the panic continues
//
// lead must therefore return soon after its context has ended, and may be called again later in the same process. A lead that
// does not return keeps its process from campaigning, and after Options.LongStepDown a warning is logged. Others are not
// kept from leading if the lease was lost. If it was not, because only Run's context ended, the lease is renewed until lead
// returns.
//
// # Two leaders
//
// At most one process has a lease that its Err method reports as held. But no lease prevents a process from being paused
// between its last check and its write, so a former leader may write after the next one has started. Pass the fence with each
// write, so that the store can reject it; docs/guarantees.md says how.
//
// If the leader crashes, the next one starts when its lease has expired, which takes the TTL of the lock at most (30 s by
// default). If it returns or its keeper is closed, the next one starts at once.
//
// # Outages
//
// While Redis does not answer, nobody is elected. The leader goes on until its deadline and then sees the loss; candidates
// keep campaigning, with a pause that grows from MinBackoff to MaxBackoff after each Lock that failed. When Redis is back,
// one is elected.
package election
