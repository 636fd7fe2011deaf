package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/redis/go-redis/v9"
)

// integers and anything are commands that go-redis must not repeat: integers for replies that are arrays of integers, anything for all others.
type (
	integers struct{ *redis.IntSliceCmd }
	anything struct{ redis.Cmd }
)

// NoRetry is called by go-redis before it repeats a command.
func (integers) NoRetry() bool { return true }

// NoRetry is called by go-redis before it repeats a command.
func (*anything) NoRetry() bool { return true }

// command returns the command of a call. The memory of most is in the Call.
func (call *Call) command(ctx context.Context) (cmd redis.Cmder) {
	if call.Scalar || call.Mixed {
		call.cmd = anything{*redis.NewCmd(ctx, call.Args...)}
		cmd = &call.cmd
	} else {
		cmd = integers{redis.NewIntSliceCmd(ctx, call.Args...)}
	}
	if call.Script == nil {
		cmd.SetFirstKeyPos(1)
	} else {
		cmd.SetFirstKeyPos(3)
	}
	return cmd
}

// exchange sends the sender's batch in one pipeline and calls Done for each call. A single call is sent in a pipeline as
// well: go-redis has separate connections for pipelines, so leases are renewed even while the application has exhausted
// the main pool. On a cluster it uses the client's pipeline and not the node's, which would not follow a slot that moves.
// It returns an error if the server has answered none of the calls. On the Transport's own connection it ends when ctx does.
func (q *nodeQueue) exchange(ctx context.Context, s *sender, end EndReceiver) (silence error) {
	t := q.t
	for _, call := range s.batch {
		s.cmds = append(s.cmds, call.command(ctx))
	}
	sent := time.Now()
	for _, call := range s.batch {
		call.Sent = sent
	}
	var pipelineErr error
	if s.own != nil {
		s.own.hooks = true
		s.own.process(ctx, s.cmds[0], end)
		s.own.hooks = false
	} else {
		_ = s.pipe.BatchProcess(ctx, s.cmds...)
		_, pipelineErr = s.pipe.Exec(ctx)
	}
	interrupted := s.own != nil && s.own.interrupted()
	lost := s.own != nil && s.own.lost.Load() && !interrupted
	for i, call := range s.batch {
		call.setResult(s.cmds[i], pipelineErr)
		call.Err = t.rdb.Explain(call.Err)
		if interrupted && OutcomeOf(call.Err) != claim.Answered {
			call.Err = ErrInterrupted
		}
	}
	q.note(s, lost)
	unanswered, answered := false, false
	for _, call := range s.batch {
		answered = answered || call.Err == nil || isRedis(call.Err) || Malformed(call.Err)
		if call.Err != nil {
			if lost && OutcomeOf(call.Err) == claim.NotSent {
				call.state.Store(callQueued)
				t.dispatch(call)
				continue
			}
			if call.Script != nil && !call.sentText && redis.HasErrorPrefix(call.Err, "NOSCRIPT") {
				call.SendText()
				call.state.Store(callQueued) // from here on it can be withdrawn again: it has not run
				t.dispatch(call)
				continue
			}
			unanswered = unanswered || OutcomeOf(call.Err) != claim.Answered
			silence = call.Err
		}
		call.end()
	}
	clear(s.cmds)
	clear(s.batch)
	s.cmds, s.batch = s.cmds[:0], s.batch[:0]
	if unanswered {
		t.reload()
	}
	if answered {
		return nil
	}
	return silence
}

// SendText makes the call send the script's text, after the server has answered that it does not have the script.
func (call *Call) SendText() {
	call.sentText = true
	call.Args[0], call.Args[1] = "eval", call.Script.Text
}

// setResult sets the reply or the error of one command of a pipeline. Each command has its own error, unless the server
// refused the connection itself (wrong password): then go-redis leaves the commands unset and returns the error of the
// pipeline.
func (call *Call) setResult(cmd redis.Cmder, pipelineErr error) {
	var unset bool
	switch cmd := cmd.(type) {
	case integers:
		call.Reply, call.Err = cmd.Result()
		unset = call.Reply == nil
	case *anything:
		call.SetResult(&cmd.Cmd)
		unset = cmd.Val() == nil
	}
	if call.Err == nil && unset {
		call.Err = pipelineErr
	}
}

// SetResult sets the reply or the error of a command that was not sent by a Transport.
func (call *Call) SetResult(cmd *redis.Cmd) {
	reply, err := cmd.Result()
	if err == nil {
		err = call.setReply(reply)
	}
	call.Err = err
}

// setReply sets a reply that is not known to be an array of integers.
func (call *Call) setReply(reply any) error {
	switch reply := reply.(type) {
	case nil:
		return nil
	case int64:
		call.number[0] = reply
		call.Reply = call.number[:]
		return nil
	case string:
		if call.Script == nil {
			call.Values = []any{reply}
			return nil
		}
	case []any:
		if call.Mixed {
			call.Values = reply
			return nil
		}
		call.Reply = make([]int64, len(reply))
		for i, v := range reply {
			var ok bool
			if call.Reply[i], ok = v.(int64); !ok {
				return fmt.Errorf("%w: a %T among its elements", protocol.ErrReply, v)
			}
		}
		return nil
	}
	return fmt.Errorf("%w: a %T", protocol.ErrReply, reply)
}
