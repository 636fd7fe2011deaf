//go:build unix

// Command payments pays from an account: it reads the balance, asks a bank, which takes a while, and writes the new balance. A lock
// keeps others out meanwhile. A fence rejects the write of a process that was frozen and has lost the lock without knowing it.
//
// It makes two payments of 100 from a balance of 1,000, by two processes, of which the first is frozen between its read and its
// write, for longer than its lease lasts: once without fences, which loses a payment, and once with fences.
//
//	go -C examples/payments run .
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

const (
	account = "savings"
	amount  = 100
	ttl     = time.Second // the default is 30 s; the example has no time for it
)

func main() {
	var err error
	if len(os.Args) == 4 && os.Args[1] == "pay" {
		err = payer(context.Background(), os.Getenv("REDIS_URL"), os.Args[2], os.Args[3] == "fenced")
	} else {
		err = demo(context.Background(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}

// payer makes one payment.
func payer(ctx context.Context, url, ledger string, fences bool) error {
	o, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		return err
	}
	defer k.Close() // before the client
	lock, err := mutex.New(k, account, &mutex.Options{TTL: ttl})
	if err != nil {
		return err
	}
	db, err := openLedger(ledger)
	if err != nil {
		return err
	}
	defer db.Close()
	for {
		err := pay(ctx, lock, db, fences)
		switch {
		case errors.Is(err, errStale): // nothing was written: all of it again, with a new lease
			fmt.Println("the write was refused")
		case errors.Is(err, errTooLate): // likewise
			fmt.Println("the lock was lost before the bank was asked")
		case errors.Is(err, lockkeeper.ErrLost): // it was written; the store accepted the fence or did not check it
			fmt.Println("paid, and the lock was lost")
			return nil
		case err != nil:
			return err
		default:
			fmt.Println("paid")
			return nil
		}
	}
}

var errTooLate = errors.New("the lease ended before the payment")

// pay takes the amount from the account, under its lock.
func pay(ctx context.Context, lock *mutex.Mutex, db *sql.DB, fences bool) error {
	return lock.Do(ctx, func(ctx context.Context, fence uint64) error {
		balance, err := readBalance(ctx, db, account, fence)
		if err != nil {
			return err
		}
		if ctx.Err() != nil { // the last check of the lease
			return errTooLate
		}
		fmt.Println("read", balance)
		time.Sleep(600 * time.Millisecond) // the bank; here the process is frozen
		// A write that has been sent arrives even if ctx ends. Without the cancellation this one is as late as that.
		ctx = context.WithoutCancel(ctx)
		if !fences {
			return overwriteBalance(ctx, db, account, balance-amount)
		}
		return writeBalance(ctx, db, account, fence, balance-amount)
	})
}
