package keeper

import (
	"errors"
	"io"
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
	asked := &askCall{r: &request{lock: limited, quota: &Quota{}}}
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
