//go:build unix

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// The processes that pay are this very binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "pay" {
		main()
		return
	}
	os.Exit(m.Run())
}

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
		db, err := openLedger(filepath.Join(t.TempDir(), "ledger"))
		if err != nil {
			t.Fatal(err)
		}
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

// TestDocumentedCodeIsTested: the code about SQL in docs/recipes.md is that of this package.
func TestDocumentedCodeIsTested(t *testing.T) {
	code, err := os.ReadFile("ledger.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/recipes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Fences\n")
	_, block, found := strings.Cut(section, "```go\n")
	block, _, _ = strings.Cut(block, "```")
	if !found || !strings.Contains(string(code), block) {
		t.Errorf("not in ledger.go:\n%s", block)
	}
}
