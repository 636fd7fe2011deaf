package demo

import (
	"os"
	"sync/atomic"
)

// counter is a number that several processes share, in a cache line of its own.
type counter struct {
	n atomic.Int64
	_ [56]byte
}

// counters are how many reads are in progress in each reader, and at last how many writes.
type counters [cacheReaders + 1]counter

// createCounters creates the file of the counters.
func createCounters(path string) error {
	return os.WriteFile(path, make([]byte, 4096), 0o600)
}
