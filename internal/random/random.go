// Package random draws numbers, and pauses between attempts, that differ in every process. Each number comes from the kernel when it is used:
// a generator of math/rand has its state in the process, so two processes restored from one snapshot would draw the same. It has no mutex.
package random

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Uint64 returns a random number that nobody can guess.
func Uint64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// Float64 returns a random number from 0 to less than 1.
func Float64() float64 { return float64(Uint64()>>11) / (1 << 53) }

// Backoff is growing pauses, each varied at random by up to half. The zero value is ready for use.
type Backoff struct {
	mean *backoff.ExponentialBackOff // nil before the first pause
}

// Next returns the next pause. The mean of the pauses grows from least to most.
func (b *Backoff) Next(least, most time.Duration) time.Duration {
	if b.mean == nil {
		b.mean = backoff.NewExponentialBackOff(backoff.WithInitialInterval(least), backoff.WithMaxInterval(most),
			backoff.WithRandomizationFactor(0), backoff.WithMaxElapsedTime(0))
	}
	return time.Duration(float64(b.mean.NextBackOff()) * (0.5 + Float64()))
}

// Reset makes the pauses begin anew.
func (b *Backoff) Reset() { b.mean = nil }
