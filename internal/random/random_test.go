package random

import (
	crypto "crypto/rand"
	"io"
	"math"
	"math/rand"
	"slices"
	"testing"
	"time"
)

// counter counts what is read from a source.
type counter struct {
	io.Reader
	bytes int
}

func (c *counter) Read(b []byte) (int, error) {
	c.bytes += len(b)
	return c.Reader.Read(b)
}

// TestNothingIsKept: each number is read from the source when it is used, so a copy of the process has no number of its twin.
func TestNothingIsKept(t *testing.T) {
	source := &counter{Reader: crypto.Reader}
	crypto.Reader = source
	defer func() { crypto.Reader = source.Reader }()
	var pauses Backoff
	for name, draw := range map[string]func(){
		"Uint64":       func() { Uint64() },
		"Float64":      func() { Float64() },
		"Backoff.Next": func() { pauses.Next(time.Second, time.Minute) },
	} {
		for i := range 3 {
			source.bytes = 0
			draw()
			if source.bytes != 8 {
				t.Errorf("%s read %d bytes the %d. time, want 8", name, source.bytes, i+1)
			}
		}
	}
}

// TestPausesOfCopies: two processes with the same state of math/rand pause for different times.
func TestPausesOfCopies(t *testing.T) {
	t.Setenv("GODEBUG", "randseednop=0")
	pauses := func() (list []time.Duration) {
		//lint:ignore SA1019 it restores the state of the generator, as a snapshot does
		rand.Seed(1)
		var b Backoff
		for range 5 {
			list = append(list, b.Next(time.Second, time.Minute))
		}
		return list
	}
	if a, b := pauses(), pauses(); slices.Equal(a, b) {
		t.Errorf("both pause for %v", a)
	}
}

// TestBackoff: the pauses grow up to the longest one, are varied by up to half, and begin anew after Reset.
func TestBackoff(t *testing.T) {
	var b Backoff
	least, most := math.Inf(1), 0.0
	for range 1000 {
		b.Reset()
		for i := range 10 {
			mean := min(100*math.Pow(1.5, float64(i)), 1000)
			x := b.Next(100*time.Millisecond, time.Second).Seconds() * 1000 / mean
			if x < 0.499 || x > 1.501 {
				t.Fatalf("pause %d is %.3f times its mean", i, x)
			}
			least, most = min(least, x), max(most, x)
		}
	}
	if least > 0.55 || most < 1.45 {
		t.Errorf("the pauses are from %.2f to %.2f times their means", least, most)
	}
}

func BenchmarkUint64(b *testing.B) {
	for b.Loop() {
		Uint64()
	}
}
