package engine

import (
	"errors"
	"io"
	"math"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestFailedCallIsUnavailable checks that a call without a reply returns its error, whatever its reply says.
func TestFailedCallIsUnavailable(t *testing.T) {
	call := &transport.Call{Err: io.EOF, Reply: []int64{lua.Granted, 1, 2, 3}}
	_, acquire := server.Decode(call, protocol.ParseAcquireReply)
	limited := &Lock{spec: Spec{Limits: &Limits{Window: 1, Per: time.Second}}}
	asked := &askCall{r: &request{Lease: &Lease{lock: limited}, quota: &Quota{}}}
	asked.Err, asked.Reply = call.Err, call.Reply
	_, allow := asked.decode()
	_, heartbeat := server.DecodeHeartbeat(call, 1)
	_, renew := server.Decode(call, protocol.ParseRenewReply)
	_, release := server.Decode(call, protocol.ParseReleaseReply)
	for what, err := range map[string]error{"acquire": acquire, "allow": allow, "heartbeat": heartbeat, "renew": renew, "release": release} {
		if !errors.Is(err, io.EOF) || !errors.Is(err, server.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDurationDoesNotOverflow checks that no number of milliseconds becomes a negative duration.
func TestDurationDoesNotOverflow(t *testing.T) {
	for ms, want := range map[int64]int64{0: 0, 1: 1e6, 30000: 30000e6, math.MaxInt64: math.MaxInt64, math.MaxInt64 / 1000: math.MaxInt64} {
		if got := server.Duration(ms); int64(got) != want {
			t.Errorf("%d ms is %d ns, want %d", ms, got, want)
		}
	}
}
