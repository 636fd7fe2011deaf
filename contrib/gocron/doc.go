// Package gocronlock runs the jobs of github.com/go-co-op/gocron/v2 on one scheduler, although several processes have one.
//
// # Elector
//
// One scheduler is elected and runs all jobs. If it ends or crashes, another one takes over.
//
//	m, err := mutex.New(k, "scheduler", nil)
//	…
//	elector, err := gocronlock.NewElector(m, nil)
//	…
//	defer elector.Close()
//	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//
// Prefer it: it does not depend on when the schedulers start a job. After a change of the leader, a duration job starts when the new
// leader's scheduler has it due, which may be sooner or later than an interval after its last run.
//
// # Locker
//
// Each job is locked by its name, so the jobs are spread over the schedulers.
//
//	locker, err := gocronlock.NewLocker(k, 54*time.Second, nil) // for jobs that run every minute
//	…
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// A job needs a name that differs from those of other jobs (gocron.WithName): by default it is that of its function.
//
// Each scheduler starts a duration job when an interval has passed since it was started itself. So schedulers do not start such
// a job together, and with a lock that is free again when the job has ended, each of them runs it. For the same reason a short job
// of any kind runs twice if the clocks of two schedulers differ by more than it takes. Therefore a lock is kept for a minimum time.
//
// # When the lease is lost
//
// If the process was paused, or Redis did not answer for the TTL, another scheduler may run the job. gocron offers no way to end the
// context of a running job. The loss is logged; a Locker calls Options.OnLost, and a job can use the context of [Elector.Lease].
// A job that must stop, or pass a fence, can also lock by itself, with [github.com/lockkeeper/lockkeeper/mutex].
//
// # What is not promised
//
// That a run is not missed: while Redis does not answer, or for as long as the lease of a crashed leader lasts. That a job never runs
// twice after a crash, a lost lease or a failover. A job must bear to be run again.
package gocronlock
