//go:build unix

package main

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
)

// The workers are this very binary.
func TestMain(m *testing.M) { example.Main(m, main, "worker") }

func TestOrdersOfACustomerAreProcessedInOrder(t *testing.T) {
	log := example.Output(t, func(out io.Writer) error { return demo(t.Context(), out) }) // it checks the order
	if n := strings.Count(log, "-- killed --"); n != 1 {
		t.Errorf("%d workers were killed", n)
	}
	workers, parallel := map[string]bool{}, false
	current := map[string]bool{} // the customers whose orders are being processed
	for _, m := range regexp.MustCompile(`(?m)^(worker-\d): +(begins|has processed) (\w+)-\d$`).FindAllStringSubmatch(log, -1) {
		workers[m[1]] = true
		if m[2] == "begins" {
			current[m[3]] = true
		} else {
			delete(current, m[3])
		}
		parallel = parallel || len(current) > 1
	}
	if len(workers) < 2 || !parallel {
		t.Errorf("%d workers took part, customers at the same time: %t", len(workers), parallel)
	}
	if strings.Contains(log, "too late") && !strings.Contains(log, "lost") {
		t.Error("an order was processed twice, although no worker had lost its lock")
	}
}
