package views

import (
	"context"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/lua"
)

// BreakOptions say what Break ends. Package admin documents the fields.
type BreakOptions struct {
	Token      string
	All        bool
	Reason, By string
}

// Broken is what Break ended.
type Broken struct {
	Holders  []Holder
	Waiters  []Waiter
	Notified int
}

// check returns an ErrInvalid if the options are not valid.
func (o *BreakOptions) check(l *server.Resource) error {
	switch {
	case o.Token == "" && !o.All:
		return l.Invalid("neither Token nor All is set; set one of them")
	case o.Token != "" && o.All:
		return l.Invalid("Token %q is set together with All; set only one of them", o.Token)
	}
	for _, x := range []struct{ option, text string }{{"Reason", o.Reason}, {"By", o.By}} {
		if err := protocol.CheckText(x.option, x.text); err != nil {
			return l.Invalid("%w", err)
		}
	}
	return nil
}

// Break ends leases and queue entries, of this keeper or another. It first reads which there are. Waiters are ended before holders,
// the last in the queue first, so that none of them is granted what the others had. With an error it returns what it had ended.
func Break(ctx context.Context, l *server.Resource, o BreakOptions) (*Broken, error) {
	if err := o.check(l); err != nil {
		return nil, err
	}
	if o.By == "" {
		o.By = l.Server().Config.Owner
	}
	if o.By == "" {
		o.By = l.Server().ID() // the keeper has no label
	}
	state, err := Inspect(ctx, l)
	if err != nil {
		return nil, err
	}
	arg := breakingArg(l)
	done := &Broken{}
	notice := protocol.BreakNotice(protocol.Breaker{By: o.By, Reason: o.Reason})
	for _, w := range slices.Backward(state.Waiters) {
		if o.All || w.Token == o.Token {
			r, err := breakToken(ctx, l, w.Token, arg, notice)
			if err != nil {
				return done, err
			}
			noteBroken(l, done, r, o, w.Token, func() { done.Waiters = append(done.Waiters, w) })
		}
	}
	slices.Reverse(done.Waiters)
	for _, h := range state.Holders {
		if h.Token == o.Token || o.All && !returnsByClock(h.Token) {
			r, err := breakToken(ctx, l, h.Token, arg, notice)
			if err != nil {
				return done, err
			}
			noteBroken(l, done, r, o, h.Token, func() { done.Holders = append(done.Holders, h) })
		}
	}
	return done, nil
}

// returnsByClock reports whether a token stands for permits that return by the clock. Nobody holds them, so Break cannot end them.
func returnsByClock(token string) bool {
	t, _ := protocol.ParseToken(token)
	return strings.HasPrefix(t.Flags, protocol.FlagByClock)
}

// noteBroken notes the outcome for one token. A token that had nothing any more was not broken.
func noteBroken(l *server.Resource, done *Broken, r protocol.BreakReply, o BreakOptions, token string, add func()) {
	if r.Code == lua.Refused {
		return
	}
	add()
	if r.Notified {
		done.Notified++
	}
	l.Server().Config.Log.Warn("lockkeeper: a lease or a request was broken by this process",
		"kind", l.Kind(), "name", l.Name(), "token", protocol.Shown(token), "held", r.Code == lua.Granted, "notified", r.Notified, "by", o.By, "reason", o.Reason)
}

// breakingArg returns the limits that break.lua uses if the server has lost those in force: the lowest that are valid.
func breakingArg(l *server.Resource) string {
	switch {
	case l.Scripts().Limit == nil:
		return ""
	case l.Scripts() == lua.RateLimit:
		return protocol.LimitsArg(1, 1, server.LongestTTL.Milliseconds())
	}
	return protocol.LimitsArg(1, 0, 0)
}

// breakToken ends what a token has. If an answer was lost and the repeated call finds nothing, the token counts as ended by the first one.
func breakToken(ctx context.Context, l *server.Resource, token, arg, notice string) (protocol.BreakReply, error) {
	var none protocol.BreakReply
	if err := server.ContextError(ctx); err != nil {
		return none, l.Fail(err)
	}
	if !l.Server().BeginWork(false) {
		return none, l.Fail(server.ErrClosed)
	}
	defer l.Server().EndWork()
	call, inDoubt, err := l.Server().RoundTrip(ctx, 0, func(p *server.Pending) { l.SetBreak(&p.Call, token, arg, notice) })
	if err != nil {
		return none, l.Fail(err)
	}
	r, err := server.Decode(call, protocol.ParseBreakReply)
	if err != nil {
		return none, l.Fail(err)
	}
	if r.Code == lua.Refused && inDoubt {
		r.Code = lua.Left
	}
	if r.More {
		l.ContinueAdmitting()
	}
	return r, nil
}
