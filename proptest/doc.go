// Package proptest puts the locks through schedules that nobody would think of, on one embedded server in virtual time:
// processes that come, wait, give up, crash, freeze and lose connections, requests, answers or messages; a network that
// is slow, lets connections overtake each other and delivers copies late; a server that loses its data or its last
// writes, forgets scripts, refuses commands, and whose clock jumps. What happens is drawn at random. What must hold in
// every schedule stands in invariants_test.go, and is looked at after each script that the server runs. A schedule that
// breaks something is made as short as possible, and shown step by step with its virtual time and a seed to run it again.
//
//	go test ./proptest                                  # some schedules of each primitive, others each time
//	go test ./proptest -rapid.checks=1000               # more of them
//	go test ./proptest -run Simulation/fair -rapid.seed=N   # those of a run that failed
//	make simulate N=1000000                             # until there were so many acquisitions, and a virtual day
//	make mutants                                        # deliberate bugs, each of which must be found
//
// Where things are:
//
//	simulate_test.go     the test, over all primitives; seeds of schedules that once failed
//	schedule_test.go     what may happen, and how a schedule ends
//	faults_test.go       what may go wrong
//	world_test.go        virtual time, the log, the tally of what was reached
//	process_test.go      processes that crash, freeze, or are cut off
//	request_test.go      what programs do with a lock, and what calls return
//	link_test.go         the network between a process and the server
//	server_test.go       the server and its faults; interpreter_test.go runs scripts on it
//	history_test.go      what lies at the server, step by step
//	invariants_test.go   what is promised
//	primitive_test.go    what the simulation has to know of a primitive: mutex_test.go, fair_test.go, rwlock_test.go,
//	                     semaphore_test.go
//	mutants_test.go      the deliberate bugs
//	singlemodel_test.go, rwmodel_test.go, permits_test.go   the scripts against plain models, which are no part of the
//	                     simulation; scripts_test.go is what they share
//
// What happens at one instant is not always in the same order, so a seed brings back its failure mostly, not always;
// therefore the log of the first schedule that failed is shown as well.
package proptest
