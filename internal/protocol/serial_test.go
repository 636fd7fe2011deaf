package protocol

import (
	"math"
	"sync"
	"testing"
)

// TestSerials: serials are drawn by many goroutines, are all different, and use all characters about equally often.
func TestSerials(t *testing.T) {
	const goroutines, each = 8, 2000
	var source Serials
	drawn := make([][]string, goroutines)
	var wg sync.WaitGroup
	for g := range drawn {
		wg.Go(func() {
			for range each {
				s := source.Next()
				drawn[g] = append(drawn[g], string(s[:]))
			}
		})
	}
	wg.Wait()
	seen, count := map[string]bool{}, map[rune]int{}
	for _, list := range drawn {
		for _, s := range list {
			if seen[s] || !isSerial(s) {
				t.Fatalf("serial %q", s)
			}
			seen[s] = true
			for _, c := range s {
				count[c]++
			}
		}
	}
	mean := float64(goroutines*each*SerialLength) / 62
	for c, n := range count {
		if math.Abs(float64(n)-mean) > 8*math.Sqrt(mean) {
			t.Errorf("%c: %d times, the mean is %.0f", c, n, mean)
		}
	}
	if len(count) != 62 {
		t.Errorf("%d characters", len(count))
	}
}

// TestTokenIsShort: the server keeps a string of up to 44 bytes in one piece.
func TestTokenIsShort(t *testing.T) {
	var source Serials
	serial := source.Next()
	for _, flags := range []string{"", FlagRetained, FlagRead, FlagRead + FlagRetained, FlagNoPush} {
		text := Token{Keeper: NewKeeperID(), Serial: string(serial[:]), TTL: 30_000, ClaimTTL: 6_000, Flags: flags}.String()
		if len(text) > 44 {
			t.Errorf("%s has %d bytes", text, len(text))
		}
	}
}
