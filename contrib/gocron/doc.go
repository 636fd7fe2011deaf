// Package gocronlock runs each job of github.com/go-co-op/gocron/v2 on one of several schedulers, in different processes. There
// are two ways.
//
// # Elector
//
// With an [Elector], one scheduler is elected and runs all jobs. If it ends or crashes, another one takes over.
//
//	m, err := mutex.New(k, "scheduler", nil)
//	…
//	elector, err := gocronlock.NewElector(m, nil)
//	…
//	defer elector.Close()
//	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//
// Prefer an Elector: it does not depend on when the schedulers start a job. After a change of the leader, a duration job starts
// when it is due in the new leader's scheduler, which may be sooner or later than an interval after its last run.
//
// # Locker
//
// With a [Locker], each job is locked by its name, so the jobs are spread over the schedulers.
//
//	locker, err := gocronlock.NewLocker(k, 54*time.Second, nil) // for jobs that run every minute
//	…
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// Each job needs a name of its own (gocron.WithName); by default it is the name of its function.
//
// A lock is kept for a minimum time, even if the job ends sooner. With a lock that is free again when the job has ended, each
// scheduler would run a duration job, since each starts it when an interval has passed since the scheduler itself was started.
// A short job of any other kind would run twice if the clocks of two schedulers differed by more than the job takes.
//
// # When the lease is lost
//
// If the process was paused, or Redis did not answer for the TTL, another scheduler may run the job. gocron offers no way to
// end the context of a running job. The loss is logged; a Locker calls Options.OnLost, and a job can use the context of
// [Elector.Lease]. A job that must stop, or pass a fence, can also acquire a lock itself, with package
// [github.com/lockkeeper/lockkeeper/mutex].
//
// # What is not promised
//
// That a run is not missed: while Redis does not answer, or for as long as the lease of a crashed leader lasts. That a job
// never runs twice after a crash, a lost lease or a failover. A job must tolerate being run again.
package gocronlock
