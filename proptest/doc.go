// Package proptest tests the locks in random schedules, on an embedded server in virtual time: processes that
// arrive, wait, cancel, crash, freeze and lose connections, requests, replies or messages; a network that is slow,
// reorders connections and delivers late duplicates; a server that loses its data or its last writes, forgets
// scripts, refuses commands, and whose clock jumps. What must hold in every schedule is in invariants_test.go, and
// is checked after each script. A schedule that breaks a promise is shortened, and shown step by step with its
// virtual time and a seed to repeat it.
//
// Each schedule has a server, two to four processes with a keeper each, and one lock. Ttls are 10 s, 3 s, 500, 100 and
// 10 ms. A quarter of the schedules have one duration at the least or the greatest that its option allows: pauses between attempts, heartbeats,
// ttls, the metadata's ttl, the wait for replicas. Processes freeze for up to 20 s; requests, replies and messages are delayed by up to several ttls, and late
// duplicates arrive up to 20 s later; the server's clock is set by up to half an hour. Some requests for a mutex set
// Yield: nobody is granted the key while it is left free, for a tenth of the time at most. A redlock is simulated with
// clocks that differ by up to an hour and a minority of servers that fails.
//
// Not simulated: Cluster and Sentinel; several names at once.
//
//	go test ./proptest                                  # some schedules of each primitive, the same each time
//	go test ./proptest -rapid.checks=1000               # more of them
//	go test ./proptest -run Simulation/fair -rapid.seed=N   # those of a run that failed
//	make simulate N=1000000                             # until there were so many acquisitions, and a virtual day
//	make mutants                                        # deliberate bugs, each of which must be found
//
// Where things are:
//
//	simulate_test.go     the test, over all primitives; seeds of schedules that once failed
//	schedule_test.go     what may happen, and how a schedule ends
//	faults_test.go       what may go wrong; break_test.go: somebody ends a lease or a wait of another
//	world_test.go        virtual time, the log, the tally of what was reached
//	process_test.go      processes that crash, freeze, or are cut off
//	request_test.go      what programs do with a lock, and what calls return
//	link_test.go         the network between a process and the server
//	server_test.go       the server and its faults; interpreter_test.go runs scripts on it
//	history_test.go      what lies at the server, step by step
//	invariants_test.go   what is promised; hooks_test.go: what the hooks are told
//	pairs_test.go        what a program may do besides, each pair of it: Extend, conversions, Adopt, Break, Pause and others
//	conversions_test.go  leases of a read-write lock that come to write, or to read
//	primitive_test.go    what the simulation has to know of a primitive: mutex_test.go, fair_test.go, rwlock_test.go,
//	                     semaphore_test.go
//	mutants_test.go      the deliberate bugs
//
// No part of that simulation are:
//
//	linger_test.go       leases that the callers of a process share; blocks_test.go: rate limits, also of permits that they take ahead;
//	                     programs_test.go: what both share
//	redlock_test.go      a lock on the majority of several servers
//
// Events of one instant are not always in the same order, so a seed usually, but not always, reproduces its failure.
// Therefore the log of the first failed schedule is shown as well.
package proptest
