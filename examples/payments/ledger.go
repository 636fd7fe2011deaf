//go:build unix

package main

import (
	"context"
	"database/sql"
	"errors"

	_ "modernc.org/sqlite"
)

// schema has the balances, and the largest fence that was seen for each lock.
//
// The statements are SQLite's, which the tests run on, and by its documentation PostgreSQL's
// (https://www.postgresql.org/docs/current/sql-insert.html).
const schema = `
	CREATE TABLE IF NOT EXISTS fence (lock TEXT PRIMARY KEY, last BIGINT NOT NULL);
	CREATE TABLE IF NOT EXISTS account (id TEXT PRIMARY KEY, balance BIGINT NOT NULL);
	INSERT INTO account VALUES ('savings', 1000) ON CONFLICT DO NOTHING`

func openLedger(path string) (*sql.DB, error) {
	// Immediate: SQLite takes its lock when a transaction begins and not at its first write.
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(schema); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

var errStale = errors.New("stale fence: a later holder of the lock was here")

// fenced runs a transaction unless the database has seen a larger fence of the lock. From then on it refuses smaller ones. Call it
// for reads as well as for writes: otherwise a late holder could still write between the two.
func fenced(ctx context.Context, db *sql.DB, lock string, fence uint64, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	r, err := tx.ExecContext(ctx, `INSERT INTO fence VALUES ($1, $2)
		ON CONFLICT (lock) DO UPDATE SET last = excluded.last WHERE fence.last <= excluded.last`, lock, fence)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 { // the row is locked until the transaction ends
		return errors.Join(errStale, err)
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func readBalance(ctx context.Context, db *sql.DB, account string, fence uint64) (balance int, err error) {
	err = fenced(ctx, db, account, fence, func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = $1`, account).Scan(&balance)
	})
	return balance, err
}

func writeBalance(ctx context.Context, db *sql.DB, account string, fence uint64, balance int) error {
	return fenced(ctx, db, account, fence, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE account SET balance = $1 WHERE id = $2`, balance, account)
		return err
	})
}

// overwriteBalance is the wrong way: it does not check the fence.
func overwriteBalance(ctx context.Context, db *sql.DB, account string, balance int) error {
	_, err := db.ExecContext(ctx, `UPDATE account SET balance = $1 WHERE id = $2`, balance, account)
	return err
}
