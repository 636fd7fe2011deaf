//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/lockkeeper/lockkeeper/examples/internal/processes"
)

func demo(ctx context.Context, out io.Writer) error {
	for _, way := range []string{"unfenced", "fenced"} {
		balance, err := twoPayments(ctx, out, way)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: two payments of %d from 1000 leave %d\n\n", way, amount, balance)
	}
	return nil
}

// twoPayments lets two processes pay, freezes the first between its read and its write until the second has paid, and returns the
// balance.
func twoPayments(ctx context.Context, out io.Writer, way string) (balance int, err error) {
	dir, err := os.MkdirTemp("", "payments")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ledger := filepath.Join(dir, "ledger")
	db, err := openLedger(ledger)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	g, err := processes.New(out)
	if err != nil {
		return 0, err
	}
	defer g.Close()
	if err := g.Start("first", "pay", ledger, way); err != nil {
		return 0, err
	}
	if _, err := g.Until("read"); err != nil {
		return 0, err
	}
	if err := g.Freeze("first"); err != nil {
		return 0, err
	}
	if err := g.Start("second", "pay", ledger, way); err != nil {
		return 0, err
	}
	if _, err := g.Until("(ended)", processes.By("second")); err != nil {
		return 0, err
	}
	if err := g.Thaw("first"); err != nil {
		return 0, err
	}
	if _, err := g.Until("(ended)", processes.By("first")); err != nil {
		return 0, err
	}
	err = db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = $1`, account).Scan(&balance)
	return balance, err
}
