//go:build unix

package main

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// The processes that pay are this very binary.
func TestMain(m *testing.M) { example.Main(m, main, "pay") }

func TestOnlyFencesKeepBothPayments(t *testing.T) {
	for way, want := range map[string]int{
		"unfenced": 900, // the late write has overwritten the second payment
		"fenced":   800,
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			balance, err := twoPayments(t.Context(), &out, way)
			if err != nil || balance != want {
				t.Errorf("a balance of %d, %v, want %d, after\n%s", balance, err, want, out.String())
			}
			if refused := strings.Contains(out.String(), "refused"); refused != (way == "fenced") {
				t.Errorf("refused: %t", refused)
			}
		})
	}
}

func TestLedgerRefusesSmallerFences(t *testing.T) {
	lockkeepertest.CheckFencing(t, func(t *testing.T) lockkeepertest.Store {
		db := must.Get(openLedger(filepath.Join(t.TempDir(), "ledger")))(t)
		t.Cleanup(func() { _ = db.Close() })
		var mu sync.Mutex
		texts := []string{""} // CheckFencing writes texts, and here each has the balance 1000 and its index
		return lockkeepertest.Store{
			Write: func(ctx context.Context, fence uint64, text string) error {
				mu.Lock()
				texts = append(texts, text)
				balance := 1000 + len(texts) - 1
				mu.Unlock()
				return writeBalance(ctx, db, account, fence, balance)
			},
			Read: func(ctx context.Context, fence uint64) (string, error) {
				balance, err := readBalance(ctx, db, account, fence)
				if err != nil {
					return "", err
				}
				mu.Lock()
				defer mu.Unlock()
				return texts[balance-1000], nil
			},
			Stale: errStale,
		}
	})
}
