package lockkeepertest

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper"
	"github.com/redis/go-redis/v9"
)

// inBubble reports whether the calling goroutine is in a synctest bubble. Wait panics if it is not.
func inBubble() (yes bool) {
	defer func() { yes = recover() == nil }()
	synctest.Wait()
	return
}

const outsideBubble = "lockkeepertest: New was called outside of the synctest bubble in which its Server is used; call it in the function of synctest.Test"

// outside reports whether the calling goroutine is in a bubble and the server is not. It can be called in any goroutine, unlike
// Wait. The first line of a stack is "goroutine 7 [running, synctest bubble 3]:".
func (s *server) outside() bool {
	if s.bubble {
		return false
	}
	var stack [128]byte
	line, _, _ := bytes.Cut(stack[:runtime.Stack(stack[:], false)], []byte("\n"))
	return bytes.Contains(line, []byte("synctest bubble"))
}

// check ends the test if the server is outside of its bubble: otherwise the runtime ends the test binary when it finds that
// a channel or a WaitGroup is used on both sides.
func (s *server) check(t testing.TB) {
	if s.outside() {
		t.Helper()
		t.Fatal(outsideBubble)
	}
}

// checking returns hooks that check when an acquisition starts, before the keeper does anything.
func (s *server) checking(t testing.TB, h lockkeeper.Hooks) lockkeeper.Hooks {
	start := h.AcquireStart
	h.AcquireStart = func(e lockkeeper.Event) {
		s.check(t)
		if start != nil {
			start(e)
		}
	}
	return h
}

// bubbleHook refuses what a client is asked to do in a bubble in which the server is not.
type bubbleHook struct {
	*server
	t testing.TB
}

type outsideError struct{}

// Error implements error.
func (outsideError) Error() string { return outsideBubble }

func (h bubbleHook) refuse() error {
	if !h.outside() {
		return nil
	}
	h.t.Errorf("%s", outsideBubble)
	return outsideError{}
}

func (h bubbleHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if err := h.refuse(); err != nil {
			return nil, err
		}
		return next(ctx, network, addr)
	}
}

func (h bubbleHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.refuse(); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h bubbleHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := h.refuse(); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}
