package faults

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

const (
	blocksAddr   = "LOCKKEEPER_BLOCKS_ADDR"
	blocksLimit  = 10_000
	blocksWindow = time.Second
	// A call that takes longer is not counted: the process may have been frozen between the grant and its note.
	blocksCall = time.Millisecond
)

// TestBlocksOfKilledProcesses lets four processes take permits of a rate limit ahead, and grant them inside, while one of them is killed
// and another is frozen. No window may have more grants than the limit.
func TestBlocksOfKilledProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	times := make(chan int64, 1<<16)
	var children []*redistest.Child
	start := func() *redistest.Child {
		c := redistest.StartChild(t, blocksAddr+"="+server.Addr)
		c.WaitForLine("ready")
		children = append(children, c)
		go func() {
			for line := range c.Lines {
				if at, err := strconv.ParseInt(line, 10, 64); err == nil {
					times <- at
				}
			}
		}()
		return c
	}
	a, b := start(), start()
	start()
	start()
	var all []int64
	collect := func(d time.Duration) {
		for end := time.After(d); ; {
			select {
			case at := <-times:
				all = append(all, at)
			case <-end:
				return
			}
		}
	}
	for range 3 {
		collect(400 * time.Millisecond)
		a.Signal(syscall.SIGKILL)
		b.Signal(syscall.SIGSTOP)
		collect(300 * time.Millisecond)
		b.Signal(syscall.SIGCONT)
		a = start()
	}
	collect(blocksWindow)
	for _, c := range children {
		c.Signal(syscall.SIGKILL)
	}
	collect(100 * time.Millisecond)

	slices.Sort(all)
	first, most := 0, 0
	for i, at := range all {
		for at-all[first] > int64(blocksWindow) {
			first++
		}
		most = max(most, i-first+1)
	}
	took := time.Duration(all[len(all)-1] - all[0])
	t.Logf("%d grants in %v, at most %d in a window; %.2f of the limit", len(all), took.Round(time.Millisecond), most,
		float64(len(all))/(blocksLimit*took.Seconds()/blocksWindow.Seconds()+blocksLimit))
	if most > blocksLimit {
		t.Errorf("%d grants in a window, the limit is %d", most, blocksLimit)
	}
	if len(all) < blocksLimit {
		t.Errorf("only %d grants", len(all))
	}
}

// blocksChild asks for permits as fast as it can, and prints when they were granted.
func blocksChild() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(blocksAddr)})
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{Logger: silent})
	var l *ratelimit.Limiter
	if err == nil {
		l, err = ratelimit.New(k, "blocks", blocksLimit, blocksWindow, &ratelimit.Options{Retain: true})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() { // the end of the parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("ready")
	out := bufio.NewWriter(os.Stdout)
	ctx := context.Background()
	for {
		before := time.Now()
		r, err := l.Allow(ctx)
		after := time.Now()
		switch {
		case err != nil:
			fmt.Fprintln(os.Stderr, err)
		case !r.Allowed:
			_ = out.Flush()
		case after.Sub(before) < blocksCall:
			fmt.Fprintln(out, after.UnixNano())
		}
	}
}
