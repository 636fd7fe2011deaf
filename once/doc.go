// Package once runs a job at most once per period across all processes: for example a report that cron starts on every host
// at two in the morning, but that only one host should make.
//
//	o, err := once.New(k, "nightly-report", 20*time.Hour, nil)
//	…
//	r, err := o.Do(ctx, makeReport)
//	switch {
//	case err != nil: // the job failed, or it is not known whether it may be run; see Do
//	case r.Outcome == once.Ran: // it has run here
//	default: // once.Done or once.Running: it has run, or is running, elsewhere
//	}
//
// A lock alone is not enough: it is free again when the job ends, and a process that starts a little later runs the job again.
// So the first process acquires a lease, which is renewed while the job runs. When the job has succeeded, a record of success
// replaces the lease at the server until the period ends. Other processes find the lease or the record, do not run the job, and
// learn from the outcome which of the two they found. No process waits: to take over from a run that fails, call Do again at
// Result.Next while the outcome is Running.
//
// Package [github.com/lockkeeper/lockkeeper] documents leases and fences.
//
// # The period
//
// The period starts when the run is granted its lease, however long the job takes. It must be longer than the time within which
// all hosts start the job. It must be shorter than the interval at which the job is started, by more than the start times vary
// (because of the hosts' clocks, load, daylight saving time). For a job that is started every day at two, 20 h is a good
// choice. If processes have different periods, that of the process that runs the job counts. If the job takes longer than the
// period, it may run again when it ends.
//
// # Failures
//
// The guarantee is at most one success per period, and one run at a time. A run that does not succeed may be followed by
// another one in the same period, so the job must tolerate being run again:
//
//   - The job returns an error or panics: the lease is released at once, and the next process that calls Do runs the job.
//     Other processes are not notified.
//   - The process crashes: the next process that calls Do after the lease has expired runs the job. The lease expires after the
//     TTL at most (30 s).
//   - The lease is lost while the job runs, because the process was paused, Redis did not answer for the TTL, or Redis lost its
//     data: the job's context is canceled with cause lockkeeper.ErrLost, and the error of Do matches it as well. Another
//     process may already run the job. If the writes of the two must not mix, pass the fence with each write.
//   - The job succeeds, but Redis does not answer when the success is recorded: recording is retried until the lease expires.
//     If there is still no answer, Do returns an *UnrecordedError: the job is done, but may be run once more.
//   - Redis does not answer when the job should start: processes that cannot reach Redis do not run it, and Do returns an
//     error. Whether to run the job nevertheless is for the caller to decide.
//   - Redis loses the record: by eviction, FLUSHALL, a restart without persistence, or a failover to a replica that does not
//     have it. The job may then be run again. If the server's clock is set forward, the record expires early; if it is set
//     back, late.
//
// # In Redis
//
// The job is one string key, {lock:NAME}:once:holders. Its value is the token of the run, or "done:" and the token, each with
// an expiry. A hash, {lock:NAME}:once:meta, has the last fence, as that of any lock. To have the job run again in the same
// period, delete the record with Reset, or the string key with DEL. Deleting it while the job is running ends the lease. A
// mutex of the same name, or any other kind of lock, does not exclude the job.
package once
