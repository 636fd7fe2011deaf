//go:build unix

package main

import (
	"context"
	"database/sql"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestDocumentedSQLRejectsStaleWrite runs the statements of docs/guarantees.md: A reads and is paused, B reads, A writes, B
// writes.
func TestDocumentedSQLRejectsStaleWrite(t *testing.T) {
	text, err := os.ReadFile("../../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```sql\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/guarantees.md has no SQL")
	}
	var code strings.Builder
	var update string // what the last transaction has instead of SELECT
	for line := range strings.Lines(block) {
		if schema, ok := strings.CutPrefix(line, "-- CREATE"); ok {
			code.WriteString("CREATE " + strings.TrimSpace(schema) + ";\n")
		} else if _, s, ok := strings.Cut(line, ": UPDATE"); ok {
			update = "UPDATE" + strings.ReplaceAll(strings.TrimRight(s, ";\n"), "$", "?")
		} else {
			code.WriteString(line)
		}
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "bank"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	ctx := context.Background()
	exec := func(statement string, args ...any) int64 {
		t.Helper()
		r, err := db.ExecContext(ctx, statement, args...)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		n, _ := r.RowsAffected()
		return n
	}
	exec("CREATE TABLE account (id INTEGER PRIMARY KEY, balance BIGINT, fence BIGINT DEFAULT 0); INSERT INTO account (id, balance) VALUES (7, 1000)")
	var reads, writes []string // the statements of either transaction
	for _, s := range strings.Split(strings.ReplaceAll(code.String(), "$", "?"), ";") {
		switch s = strings.TrimSpace(s); {
		case s == "":
		case strings.HasPrefix(s, "CREATE"):
			exec(s)
		default:
			reads = append(reads, s)
			if strings.HasPrefix(s, "SELECT") {
				s = update
			}
			writes = append(writes, s)
		}
	}
	// transaction returns the balance that it read, and whether it was accepted.
	transaction := func(statements []string, fence, balance int64) (read int64, ok bool) {
		t.Helper()
		for _, s := range statements {
			switch word, _, _ := strings.Cut(s, " "); word {
			case "SELECT":
				if err := db.QueryRowContext(ctx, s).Scan(&read); err != nil {
					t.Fatal(err)
				}
			case "INSERT", "UPDATE":
				args := []any{fence, balance}
				if !strings.Contains(s, "?2") {
					args = args[:1]
				}
				if exec(s, args...) == 0 {
					exec("ROLLBACK")
					return 0, false
				}
			default:
				exec(s)
			}
		}
		return read, true
	}
	a, _ := transaction(reads, 1, 0)
	b, _ := transaction(reads, 2, 0)
	if a != 1000 || b != 1000 {
		t.Fatalf("A reads %d, B reads %d", a, b)
	}
	if _, ok := transaction(writes, 1, a-100); ok {
		t.Error("the stale write of A was accepted, and B overwrites it: a payment is lost")
	}
	if _, ok := transaction(writes, 2, b-100); !ok {
		t.Error("B, which holds the lock, was rejected")
	}
	a, _ = transaction(reads, 3, 0) // A does it again
	if _, ok := transaction(writes, 3, a-100); !ok || a != 900 {
		t.Errorf("A reads %d, accepted: %s", a, strconv.FormatBool(ok))
	}
}
