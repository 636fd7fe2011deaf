//go:build unix

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The workers are this very binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestOrdersOfACustomerAreProcessedInOrder(t *testing.T) {
	var out strings.Builder
	if err := demo(t.Context(), &out); err != nil { // it checks the order
		t.Errorf("%v, after\n%s", err, out.String())
	}
	t.Log("\n" + out.String())
	log := out.String()
	if n := len(regexp.MustCompile("-- killed --").FindAllString(log, -1)); n != 1 {
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
