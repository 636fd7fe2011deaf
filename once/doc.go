// Package once runs a job at most once per period over all processes: a report that every host's cron starts at two in
// the morning, of which one is enough.
//
//	o, err := once.New(k, "nightly-report", 20*time.Hour, nil)
//	…
//	r, err := o.Do(ctx, makeReport)
//	switch {
//	case err != nil: // it failed, or it is not known whether it may be run; see Do
//	case r.Outcome == once.Ran: // here
//	default: // r.Outcome is once.Done or once.Running: elsewhere
//	}
//
// A lock alone does not do that: it is free again when the job ends, and a process that comes a little later does the job
// once more. So the first process takes a lease, which is renewed while the job runs, and when the job has succeeded it
// leaves a record at the server instead of the lease. Who comes before the period is over finds the lease or the record,
// does nothing, and learns which. Nobody waits.
//
// # The period
//
// It is counted from when the run was granted its lease, however long the job takes. Choose it shorter than the interval
// at which the job is started, by more than the starts may vary (clocks of hosts, load, daylight saving time), and longer
// than the time over which the hosts' starts are spread: 20 h for a job that starts every day at two. Each run uses the
// period of the process that makes it. If the job takes longer than the period, it may run again when it ends.
//
// # What can fail
//
// What is promised is at most one success per period, and one run at a time. A run that does not succeed may be followed
// by another in the same period, so the job must be able to be run again:
//
//   - The job returns an error or panics: the lease is released at once, and the next process that asks runs the job. None
//     is told; somebody has to ask.
//   - The process crashes: the same, after the ttl at the most (30 s).
//   - The lease is lost while the job runs, because the process was frozen or Redis did not answer for the ttl, or lost its
//     data: the job's context ends with cause lockkeeper.ErrLost, as does Do, and another process may run the job already. A
//     job whose writes must not mix with those of the next one passes on the fence.
//   - The job succeeds, but Redis does not answer when that is to be recorded: this is repeated until the lease is over. If
//     no answer has come, the error is an *UnrecordedError: the job is done, but may be run once more.
//   - Redis does not answer when the job is to begin: it is not run, by anybody who cannot reach Redis, and the error is not
//     nil. If a job has to run in any case, that is the caller's decision.
//   - Redis loses the record: eviction, FLUSHALL, a restart without persistence, a failover to a replica that does not have
//     it. Then the job may be run again. If the server's clock is set forward, the record ends early; if it is set back,
//     late.
//
// # In Redis
//
// One string, {lock:NAME}:once:holders: the token of the run, or "done:" and the token, each with its expiry. To have the
// job run again in the same period, delete the record with Reset, or by hand with DEL; while the job is running, deleting
// the key takes the lease from it. The job is not excluded by a mutex of the same name, nor by any other kind of lock.
package once
