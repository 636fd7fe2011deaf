//go:build unix

// Command fencing shows what a lock alone cannot prevent, and what a store that checks fences does about it.
//
// Two processes add a line to the same text, each while it holds the lock: they read it, and write it back with their
// line. The first is paused by SIGSTOP between its last check of its lease and its write, for longer than the lease lasts.
// Meanwhile the second gets the lock and does its work. Then the first continues and writes its old text. Without
// the fence the second one's line is gone, although both used the lock correctly. With the fence the store refuses
// the late write, and the first does its work again.
//
// It does so on three stores: a table, by way of database/sql; a file; and an object with conditional writes over HTTP.
// Each is a file of this program, short enough to be copied.
//
//	go -C examples/fencing run .
//
// Everything that it needs is embedded.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// store keeps a text.
type store interface {
	// read returns the text, and makes the store refuse every smaller fence from then on. Without that, a late holder
	// could still write between the read and the write of the present one. The error is errStale if the store has seen a
	// larger fence.
	read(ctx context.Context, fence uint64) (string, error)

	// write replaces the text. The error is errStale if the store has seen a larger fence; then nothing has changed.
	write(ctx context.Context, fence uint64, text string) error

	// overwrite replaces the text unconditionally, as a store without fences does.
	overwrite(ctx context.Context, text string) error

	io.Closer
}

// errStale is what a store says to whom a later holder has been before.
var errStale = errors.New("stale fence: a later holder was here")

// stores opens each kind of store at a place of its own.
var stores = map[string]func(place string) (store, error){
	"table":  openTable,
	"file":   openFile,
	"object": openObject,
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "holder" {
		holder(os.Args[2:])
		return
	}
	if err := show(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", err)
		os.Exit(1)
	}
}

func show(out io.Writer) error {
	r, err := newRig()
	if err != nil {
		return err
	}
	defer r.close()
	for _, kind := range []string{"table", "file", "object"} {
		for _, way := range []string{"without", "with"} {
			got, err := r.run(kind, way)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%-7s %-18s  the late write was %-9s  the text: %s\n",
				kind, way+" the fence:", got.late, strings.Join(strings.Fields(got.text), ", "))
		}
	}
	return nil
}

// add adds a line to the text under the lock. What is called before the write is where it hurts to be paused.
func add(ctx context.Context, lock *mutex.Mutex, s store, line, way string, before func()) error {
	return lock.Do(ctx, func(ctx context.Context, fence uint64) error {
		text, err := s.read(ctx, fence)
		if err != nil {
			return err
		}
		text += line + "\n"
		if err := ctx.Err(); err != nil { // the last check of the lease
			return err
		}
		before()
		// A write that has been sent cannot be canceled. This one simulates that: it does not end with the lease.
		ctx = context.WithoutCancel(ctx)
		if way == "without" {
			return s.overwrite(ctx, text)
		}
		return s.write(ctx, fence, text)
	})
}

// rig is a server, a keeper, and places for stores.
type rig struct {
	keeper *lockkeeper.Keeper
	addr   string
	dir    string
	last   []func()
}

func newRig() (r *rig, err error) {
	r = &rig{}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return nil, err
	}
	server.ClockTTL(true)
	r.addr = server.Addr()
	r.last = append(r.last, server.Close)
	rdb := redis.NewClient(&redis.Options{Addr: r.addr})
	r.last = append(r.last, func() { _ = rdb.Close() })
	if r.keeper, err = lockkeeper.New(rdb, nil); err != nil {
		return nil, err
	}
	r.last = append(r.last, func() { _ = r.keeper.Close() })
	if r.dir, err = os.MkdirTemp("", "fencing"); err != nil {
		return nil, err
	}
	r.last = append(r.last, func() { _ = os.RemoveAll(r.dir) })
	return r, nil
}

func (r *rig) close() {
	for i := range r.last {
		r.last[len(r.last)-1-i]()
	}
}

// place is where a store can be opened by several processes.
func (r *rig) place(kind, name string) (string, error) {
	if kind != "object" {
		return filepath.Join(r.dir, kind+"-"+name), nil
	}
	url, stop, err := serveObjects()
	if err != nil {
		return "", err
	}
	r.last = append(r.last, stop)
	return url + "/" + name, nil
}

// result is what came of a run.
type result struct {
	late string // what became of the first one's late write: "done" or "refused"
	text string // what is in the store at the end
}

// run lets the first holder be late, in a process of its own, and the second one come in between, which is this process.
func (r *rig) run(kind, way string) (got result, err error) {
	place, err := r.place(kind, way)
	if err != nil {
		return got, err
	}
	s, err := stores[kind](place)
	if err != nil {
		return got, err
	}
	defer s.Close()
	name := kind + " " + way
	lock, err := mutex.New(r.keeper, name, nil)
	if err != nil {
		return got, err
	}
	self, err := os.Executable()
	if err != nil {
		return got, err
	}
	first := exec.Command(self, "holder", r.addr, name, kind, place, way)
	first.Stderr = os.Stderr
	in, err := first.StdinPipe()
	if err != nil {
		return got, err
	}
	out, err := first.StdoutPipe()
	if err != nil {
		return got, err
	}
	if err := first.Start(); err != nil {
		return got, err
	}
	defer func() { _ = first.Process.Kill(); _ = first.Wait() }()
	says := bufio.NewScanner(out)
	if !says.Scan() || says.Text() != "about to write" {
		return got, fmt.Errorf("the first holder said %q", says.Text())
	}
	if err := first.Process.Signal(syscall.SIGSTOP); err != nil {
		return got, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// This waits until the lease of the one that is paused has ended.
	if err := add(ctx, lock, s, "second", way, func() {}); err != nil {
		return got, err
	}
	if err := first.Process.Signal(syscall.SIGCONT); err != nil {
		return got, err
	}
	if err := in.Close(); err != nil {
		return got, err
	}
	if !says.Scan() {
		return got, errors.New("the first holder ended without a word")
	}
	got.late = says.Text()
	for says.Scan() { // until it has ended
		continue
	}
	lease, err := lock.Lock(ctx)
	if err != nil {
		return got, err
	}
	defer lease.Release(ctx)
	got.text, err = s.read(ctx, lease.Fence())
	return got, err
}

// holder is the process that is paused. It waits before its write until its standard input ends, so that the pause
// always comes where it hurts; in real life it needs luck.
func holder(args []string) {
	addr, name, kind, place, way := args[0], args[1], args[2], args[3], args[4]
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "the first holder:", err)
			os.Exit(1)
		}
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	check(err)
	defer k.Close()
	lock, err := mutex.New(k, name, &mutex.Options{TTL: time.Second})
	check(err)
	s, err := stores[kind](place)
	check(err)
	defer s.Close()
	ctx := context.Background()
	err = add(ctx, lock, s, "first", way, func() {
		fmt.Println("about to write")
		_, _ = io.Copy(io.Discard, os.Stdin)
	})
	switch {
	case errors.Is(err, errStale):
		fmt.Println("refused")
		check(add(ctx, lock, s, "first", way, func() {})) // all of it again, with a new lease
	case errors.Is(err, lockkeeper.ErrLost):
		fmt.Println("done") // its loss is reported too late
	default:
		check(fmt.Errorf("the lease was not lost: %w", err))
	}
}
