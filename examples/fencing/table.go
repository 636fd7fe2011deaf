//go:build unix

package main

import (
	"context"
	"database/sql"

	_ "modernc.org/sqlite"
)

// table is a text in a row of an SQL database. A table of fences has the largest that was seen for each lock, and every
// transaction under a lock begins with raise. So whatever it goes on to do, in as many tables as it likes, is done only if
// the fence is good, and no transaction with another fence of this lock can come in between.
//
// The statements are SQLite's, which the tests run on, and by its documentation PostgreSQL's, with $1 for ?
// (https://www.postgresql.org/docs/current/sql-insert.html).
type table struct{ db *sql.DB }

const schema = `
	CREATE TABLE IF NOT EXISTS fence (lock TEXT PRIMARY KEY, last BIGINT NOT NULL);
	CREATE TABLE IF NOT EXISTS document (id TEXT PRIMARY KEY, text TEXT NOT NULL);
	INSERT INTO document VALUES ('report', '') ON CONFLICT DO NOTHING`

func openTable(path string) (store, error) {
	// Immediate: SQLite takes its lock at the begin of a transaction and not at its first write.
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(schema); err != nil {
		_ = db.Close()
		return nil, err
	}
	return &table{db}, nil
}

// raise makes the fence the largest that was seen for the lock, or returns errStale if there was a larger one. The row
// stays locked until the transaction has ended. A holder may come as often as it likes with the same fence.
func raise(ctx context.Context, tx *sql.Tx, lock string, fence uint64) error {
	r, err := tx.ExecContext(ctx, `INSERT INTO fence VALUES (?, ?)
		ON CONFLICT (lock) DO UPDATE SET last = excluded.last WHERE fence.last <= excluded.last`, lock, fence)
	if err != nil {
		return err
	}
	n, err := r.RowsAffected()
	if err == nil && n == 0 {
		err = errStale
	}
	return err
}

func (t *table) read(ctx context.Context, fence uint64) (text string, err error) {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() // does nothing after the commit
	if err := raise(ctx, tx, "report", fence); err != nil {
		return "", err
	}
	if err := tx.QueryRowContext(ctx, `SELECT text FROM document WHERE id = 'report'`).Scan(&text); err != nil {
		return "", err
	}
	return text, tx.Commit()
}

func (t *table) write(ctx context.Context, fence uint64, text string) error {
	tx, err := t.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := raise(ctx, tx, "report", fence); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE document SET text = ? WHERE id = 'report'`, text); err != nil {
		return err
	}
	return tx.Commit()
}

func (t *table) overwrite(ctx context.Context, text string) error {
	_, err := t.db.ExecContext(ctx, `UPDATE document SET text = ? WHERE id = 'report'`, text)
	return err
}

func (t *table) Close() error { return t.db.Close() }
