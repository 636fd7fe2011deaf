package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// wakeups sends itself a message on a channel of its own.
func (n *node) wakeups(ctx context.Context) {
	if n.keys == nil {
		return
	}
	f, err := n.message(ctx)
	if err != nil {
		f = missing("", err)
		switch {
		case redis.IsPermissionError(err):
			f.Status, f.Seen = warning, err.Error()
			f.Right = "+publish +subscribe &" + n.prefix + "* &{" + n.prefix + "*"
			if n.target.Cluster != nil {
				f.Right = "+spublish +ssubscribe &" + n.prefix + "* &{" + n.prefix + "*"
			}
			f.Advice = "give the right: waiters are not told when it is their turn, and ask at their heartbeats"
		case replied(err):
			f.Status = warning
			f.Advice = "use a server that has the command: waiters are not told when it is their turn, and ask at their heartbeats"
		}
	}
	n.add(n, "wakeups", f)
}

func (n *node) message(ctx context.Context) (finding, error) {
	var (
		sub     *redis.PubSub
		publish func(context.Context, string, any) *redis.IntCmd
		what    string
	)
	if n.target.Cluster == nil {
		sub, publish, what = n.client.Subscribe(ctx, n.prefix+"wake:"+n.name), n.client.Publish, "a message"
	} else {
		sub, publish, what = n.client.SSubscribe(ctx, n.keys.ChannelPrefix()+"doctor"), n.client.SPublish, "a sharded message"
	}
	defer func() { _ = sub.Close() }()
	var sent time.Time
	for {
		got, err := receive(ctx, sub)
		if err != nil {
			return finding{}, err
		}
		switch got := got.(type) {
		case *redis.Subscription:
			if got.Kind != "subscribe" && got.Kind != "ssubscribe" {
				return finding{}, fmt.Errorf("%s", got.Kind)
			}
			sent = time.Now()
			heard, err := publish(ctx, got.Channel, "doctor").Result()
			if err != nil {
				return finding{}, err
			}
			if heard == 0 {
				return finding{Status: failure, Seen: what + " reached nobody, though the server had acknowledged the subscription", Advice: "connect without the proxy that answers in the server's place"}, nil
			}
		case *redis.Message:
			took := ms(time.Since(sent))
			return finding{Seen: fmt.Sprintf("%s came after %.2f ms", what, took), Values: map[string]float64{"message_ms": took}}, nil
		}
	}
}

// receive waits for what comes next until ctx ends.
func receive(ctx context.Context, sub *redis.PubSub) (any, error) {
	end, _ := ctx.Deadline()
	left := time.Until(end)
	if left <= 0 {
		return nil, context.DeadlineExceeded
	}
	return sub.ReceiveTimeout(ctx, left)
}

// inspection is the command that runs a script which only looks.
func inspection(keys *protocol.Keys, byText bool) []any {
	script := lua.Mutex.Inspect
	var all []any
	for _, k := range keys.All() {
		all = append(all, k)
	}
	command := lua.InspectArgs(script.AppendCommand(nil, all...), lua.InspectHolders, 0, 1)
	if byText {
		command[0], command[1] = "eval", script.Text
	}
	return command
}

func (n *node) inspect(ctx context.Context, byText bool) error {
	return n.client.Do(ctx, inspection(n.keys, byText)...).Err()
}

// loadScripts sees whether scripts run and are kept. The cache keeps what it keeps for every client of this version.
func (n *node) loadScripts(ctx context.Context) {
	if n.keys == nil {
		return
	}
	f := finding{Status: failure, Advice: "allow EVAL and EVALSHA: every step of a lock is a script"}
	lacks := func(err error, byText bool) {
		if !redis.IsPermissionError(err) {
			return
		}
		f.Right = usedCommand{args: inspection(n.keys, byText)}.missing(err.Error(), n.prefix)
		if f.Right[0] == '~' {
			f.Advice = "allow the keys that scripts are for: see the check rights"
		}
	}
	if err := n.inspect(ctx, true); err != nil {
		f.Seen = "EVAL: " + err.Error()
		lacks(err, true)
		if transport.Retryable(err) {
			f.Advice = "see what the server says; it is not a matter of rights"
		}
		n.add(n, "scripts", f)
		return
	}
	if err := n.inspect(ctx, false); err != nil {
		f.Seen = "EVALSHA: " + err.Error()
		lacks(err, false)
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			f.Status, f.Seen, f.Advice = warning, "the server does not keep scripts", "end what flushes them: each step of a lock is sent twice now"
		}
		n.add(n, "scripts", f)
		return
	}
	count := 0
	for _, set := range lua.Sets {
		for _, s := range set.Scripts() {
			sha, err := n.client.ScriptLoad(ctx, s.Text).Result()
			switch {
			case redis.IsPermissionError(err): // the library does without
			case err != nil:
				n.add(n, "scripts", finding{Status: failure, Seen: s.Name + ": " + err.Error(), Advice: "use a server whose Lua is that of Redis"})
				return
			case sha != s.SHA:
				n.add(n, "scripts", finding{Status: failure, Seen: s.Name + ": the server calls it " + sha + ", not " + s.SHA, Advice: "use a server that names scripts as Redis does"})
				return
			default:
				count++
			}
		}
	}
	n.loaded = "EVALSHA works"
	if count > 0 {
		n.loaded += fmt.Sprintf(", %d scripts load", count)
	}
}

// lookForScripts sees, at the end, whether the scripts are still there.
func (n *node) lookForScripts(ctx context.Context) {
	if n.loaded == "" {
		return
	}
	err := n.inspect(ctx, false)
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		n.add(n, "scripts", finding{Status: warning, Seen: n.loaded + ", but they were flushed meanwhile", Advice: "end what calls SCRIPT FLUSH: a step of a lock is sent twice after each"})
	case err != nil:
		n.add(n, "scripts", missing("+evalsha", err))
	default:
		n.add(n, "scripts", finding{Seen: n.loaded})
	}
}

// clock compares the server's clock with this machine's.
func (n *node) clock(ctx context.Context) {
	var samples []offset
	for end := time.Now().Add(n.timeout / 10); len(samples) < clockSamples && (len(samples) < 3 || time.Now().Before(end)); {
		before := time.Now()
		server, err := n.client.Time(ctx).Result()
		if err != nil {
			n.add(n, "clock", missing("+time", err))
			return
		}
		trip := time.Since(before)
		samples = append(samples, offset{server.Sub(before.Add(trip / 2)), trip / 2})
	}
	n.add(n, "clock", judgeClock(samples))
}

// offset is by how much the server's clock is ahead, give or take.
type offset struct{ ahead, give time.Duration }

func judgeClock(samples []offset) finding {
	best := samples[0]
	low, high := best.ahead-best.give, best.ahead+best.give // where all samples agree
	first, last := best.ahead, best.ahead
	for _, s := range samples {
		if s.give < best.give {
			best = s
		}
		low, high = max(low, s.ahead-s.give), min(high, s.ahead+s.give)
		first, last = min(first, s.ahead), max(last, s.ahead)
	}
	f := finding{
		Seen: fmt.Sprintf("ahead of this machine by %.2f ms, give or take %.2f ms; spread %.2f ms", ms(best.ahead), ms(best.give), ms(last-first)),
		Values: map[string]float64{
			"offset_ms": ms(best.ahead), "give_ms": ms(best.give), "spread_ms": ms(last - first),
		},
	}
	// TIME is cut to the microsecond, and two clocks that are slewed move against each other a little.
	const slack = 2 * time.Millisecond
	jumped := low > high+slack
	if jumped {
		f.Seen += "; one of the two clocks has jumped meanwhile"
	}
	switch {
	case best.ahead > clockApart+best.give || best.ahead < -clockApart-best.give:
		f.Status = warning
		f.Advice = "run NTP on both machines, slewing: no lock depends on the difference, but a clock that is corrected by a jump ends leases early"
	case jumped:
		f.Status = warning
		f.Advice = "let the clocks be slewed, not stepped: leases end by the server's"
	}
	return f
}

// latency measures round trips.
func (n *node) latency(ctx context.Context) {
	ping, err := n.measure(func() error { return n.client.Ping(ctx).Err() })
	if err != nil {
		n.add(n, "latency", missing("+ping", err))
		return
	}
	script := ping
	if n.loaded != "" {
		script, err = n.measure(func() error {
			err := n.inspect(ctx, false)
			if redis.HasErrorPrefix(err, "NOSCRIPT") { // the scripts' check tells of it
				return nil
			}
			return err
		})
		if err != nil {
			n.add(n, "latency", missing("+evalsha", err))
			return
		}
	}
	f := judgeLatency(ping)
	f.Seen = fmt.Sprintf("PING %.2f ms, p99 %.2f ms", ms(median(ping)), ms(p99(ping)))
	f.Values = map[string]float64{"ping_median_ms": ms(median(ping)), "ping_p99_ms": ms(p99(ping))}
	if n.loaded != "" {
		f.Seen += fmt.Sprintf("; a script %.2f ms, p99 %.2f ms", ms(median(script)), ms(p99(script)))
		f.Values["script_median_ms"], f.Values["script_p99_ms"] = ms(median(script)), ms(p99(script))
	}
	n.add(n, "latency", f)
}

// measure does something a hundred times, or as often as it can in a tenth of the timeout, and returns the times in
// order.
func (n *node) measure(do func() error) ([]time.Duration, error) {
	var list []time.Duration
	for end := time.Now().Add(n.timeout / 10); len(list) < pings && (len(list) < 3 || time.Now().Before(end)); {
		start := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		list = append(list, time.Since(start))
	}
	slices.Sort(list)
	return list, nil
}

func median(sorted []time.Duration) time.Duration { return sorted[len(sorted)/2] }
func p99(sorted []time.Duration) time.Duration    { return sorted[(len(sorted)*99-1)/100] }
func ms(d time.Duration) float64                  { return float64(d.Microseconds()) / 1000 }

func judgeLatency(ping []time.Duration) finding {
	switch {
	case p99(ping) >= lockkeeper.DefaultHeartbeatInterval:
		return finding{Status: failure, Advice: fmt.Sprintf("find out what holds the server or the network up: heartbeats are due every %v", lockkeeper.DefaultHeartbeatInterval)}
	case median(ping) > slowMedian:
		return finding{Status: warning, Advice: "use a server in the same region: every lock costs a round trip or two"}
	case p99(ping) > slowP99:
		return finding{Status: warning, Advice: "find out what holds the server up now and then (SLOWLOG, LATENCY, its disk)"}
	}
	return finding{}
}

// client looks at the timeouts that the URL gives a client.
func (d *doctor) client() {
	var read, dial time.Duration
	switch c := d.rdb.(type) {
	case *redis.ClusterClient:
		read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
	case *redis.Client:
		read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
	}
	if d.target.Cluster != nil && dial == 0 {
		dial = 5 * time.Second // the nodes' default
	}
	d.add(nil, "client", judgeClient(read, dial))
}

func judgeClient(read, dial time.Duration) finding {
	seen := fmt.Sprintf("read_timeout %v, dial_timeout %v", read, dial)
	switch {
	case read <= 0:
		return finding{Status: warning, Seen: "no read_timeout", Advice: "set one: a server that hangs takes a connection of the pool for ever"}
	case read > longTimeout || dial > longTimeout:
		return finding{Status: warning, Seen: seen, Advice: fmt.Sprintf("set both to no more than %v: a lease of %v is renewed at a third of it, and a server that hangs leaves no time for a second attempt", longTimeout, lockkeeper.DefaultTTL)}
	}
	return finding{Seen: seen}
}

// lease takes a lock, hands it over between two keepers a few times, and gives it back.
func (d *doctor) lease(ctx context.Context, nodes []*node) {
	for _, n := range nodes {
		if f := n.facts.role(d.target.Kind()); f.Status == failure {
			d.add(nil, "lease", finding{Status: unknown, Seen: "not tried: " + f.Seen})
			return
		}
	}
	times, heard, err := d.handOver(ctx)
	if err != nil {
		f := finding{Status: failure, Seen: err.Error(), Advice: "mend the errors above first"}
		if redis.IsOOMError(err) {
			f.Advice = "raise maxmemory: new locks are refused"
		}
		d.add(nil, "lease", f)
		return
	}
	slices.Sort(times)
	longest := times[len(times)-1]
	f := finding{
		Seen:   fmt.Sprintf("acquired, handed over %d times and released; a hand-off took %.2f ms, the longest %.2f ms", len(times), ms(median(times)), ms(longest)),
		Values: map[string]float64{"handoff_median_ms": ms(median(times)), "handoff_max_ms": ms(longest), "handoffs": float64(len(times)), "wakeups_heard": float64(heard)},
	}
	// One that is granted just as it asks needs no wake-up; but it does not wait for a heartbeat either.
	if heard == 0 || heard < len(times) && longest >= late {
		f.Status = warning
		f.Seen += fmt.Sprintf("; only %d wake-ups were heard", heard)
		f.Advice = "see the checks wakeups and rights: who is not woken asks at its heartbeat"
	}
	d.add(nil, "lease", f)
}

// late is a hand-off that was not told by a message, but found at a heartbeat.
const late = lockkeeper.DefaultHeartbeatInterval / 2

// handOver returns how long each hand-off took, and how many were told by a message. It stops after one that is late:
// each further one would be, too.
func (d *doctor) handOver(ctx context.Context) (times []time.Duration, heard int, err error) {
	waiting := make(chan struct{}, 100)
	var woken atomic.Int64
	hooks := lockkeeper.Hooks{
		Queued: func(lockkeeper.Event) {
			select {
			case waiting <- struct{}{}:
			default:
			}
		},
		WakeupReceived: func(lockkeeper.Event) { woken.Add(1) }, // maybe after Lock has returned
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout/2)
	defer cancel()
	var keepers []*lockkeeper.Keeper
	var locks []*fair.Lock
	defer func() {
		d.tidy(keepers) // after which no hook is under way
		heard = int(woken.Load())
	}()
	for range 2 {
		k, err := d.keeper(hooks)
		if err != nil {
			return nil, 0, err
		}
		keepers = append(keepers, k)
		l, err := fair.New(k, d.name, &fair.Options{TTL: 10 * time.Second})
		if err != nil {
			return nil, 0, err
		}
		locks = append(locks, l)
	}
	type result struct {
		lease *lockkeeper.Lease
		err   error
		at    time.Time
	}
	held, err := locks[0].Lock(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range handOffs {
		for len(waiting) > 0 { // a place that changed
			<-waiting
		}
		next := make(chan result, 1)
		go func() {
			l, err := locks[(i+1)%2].Lock(ctx)
			next <- result{l, err, time.Now()}
		}()
		select {
		case <-waiting:
		case r := <-next:
			if r.err == nil {
				r.err = errors.New("two keepers hold the lock")
			}
			return nil, 0, r.err
		}
		start := time.Now()
		if err := held.Release(ctx); err != nil {
			return nil, 0, err
		}
		r := <-next
		if r.err != nil {
			return nil, 0, r.err
		}
		held = r.lease
		times = append(times, r.at.Sub(start))
		if r.at.Sub(start) >= late {
			break
		}
	}
	return times, 0, held.Release(ctx)
}

// tidy closes the keepers, which gives back what they hold, and deletes the keys of the lock. What it cannot delete ends
// by itself, about a minute later.
func (d *doctor) tidy(keepers []*lockkeeper.Keeper) {
	closed := make(chan struct{})
	go func() {
		var all sync.WaitGroup
		for _, k := range keepers {
			all.Go(func() { _ = k.Close() })
		}
		all.Wait()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(d.tidyTime() / 2):
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.tidyTime()/2)
	defer cancel()
	if keys, err := protocol.KeysOf(d.prefix, d.name, lua.Fair.Kind, false); err == nil {
		_ = d.ask.Del(ctx, keys.All()...).Err()
	}
}
