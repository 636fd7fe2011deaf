// Package proptest puts the locks through schedules that nobody would think of: processes that come, wait, give up,
// crash, freeze and lose their connections or their messages, in an order that is drawn at random, on one embedded
// server in virtual time. What must hold in each of them stands above each test. A schedule that breaks something is
// made as short as possible and can be run again.
//
//	go test ./proptest                        # a few seconds, another seed each time
//	go test ./proptest -rapid.checks=10000    # longer
//	go test ./proptest -rapid.seed=N          # the schedules of a run that failed
//
// A run that failed leaves its shortest schedule in testdata, and the next one begins with that.
package proptest
