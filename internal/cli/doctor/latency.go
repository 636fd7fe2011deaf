package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/redis/go-redis/v9"
)

// Thresholds of warnings, and numbers of samples. checksHelp has them as well.
const (
	maxClockOffset   = time.Second            // between the server and this machine
	maxMedianLatency = 20 * time.Millisecond  // of PING: more means another region
	maxP99Latency    = 200 * time.Millisecond // of PING
	maxClientTimeout = lockkeeper.DefaultTTL / 3
	latencySamples   = 100
	clockSamples     = 20
)

// checkClock compares the clock of the server with the clock of this machine.
func (n *node) checkClock(ctx context.Context) {
	var samples []clockSample
	var at time.Time
	for end := time.Now().Add(n.timeout / 10); len(samples) < clockSamples && (len(samples) < 3 || time.Now().Before(end)); {
		before := time.Now()
		server, err := n.client.Time(ctx).Result()
		if err != nil {
			n.add(n, "clock", unavailable("+time", err))
			return
		}
		roundTrip := time.Since(before)
		at = server.UTC()
		samples = append(samples, clockSample{server.Sub(before.Add(roundTrip / 2)), roundTrip / 2})
	}
	n.add(n, "clock", evaluateClock(samples, at))
}

// clockSample is how far the server's clock is ahead of this machine's, and how exact that is.
type clockSample struct{ offset, uncertainty time.Duration }

// evaluateClock evaluates the clock of a server that is at this time.
func evaluateClock(samples []clockSample, at time.Time) finding {
	best := samples[0]
	low, high := best.offset-best.uncertainty, best.offset+best.uncertainty // the offsets that all samples allow
	first, last := best.offset, best.offset
	for _, s := range samples {
		if s.uncertainty < best.uncertainty {
			best = s
		}
		low, high = max(low, s.offset-s.uncertainty), min(high, s.offset+s.uncertainty)
		first, last = min(first, s.offset), max(last, s.offset)
	}
	f := finding{
		Detail: fmt.Sprintf("%s this machine, ± %.2f ms; range %.2f ms", offsetText(best.offset), ms(best.uncertainty), ms(last-first)),
		Values: map[string]float64{
			"offset_ms": ms(best.offset), "uncertainty_ms": ms(best.uncertainty), "range_ms": ms(last - first),
		},
	}
	// TIME is truncated to microseconds, and the offset of two slewed clocks changes a little.
	const tolerance = 2 * time.Millisecond
	jumped := low > high+tolerance
	if jumped {
		f.Detail += "; one of the two clocks jumped during the check"
	}
	switch {
	case at.Unix() < protocol.UnsetClock:
		f.Status = statusWarning
		f.Detail = fmt.Sprintf("not set: it is at %s, %s", at.Format(time.DateTime), f.Detail)
		f.Advice = "set the server's clock before locks are used: when it is set, all leases end at once, and permits return"
	case at.Unix() >= protocol.LastClock:
		f.Status = statusError
		f.Detail = fmt.Sprintf("wrong: it is at %s, %s", at.Format(time.DateTime), f.Detail)
		f.Advice = "set the server's clock: locks work until October 2083"
	case best.offset > maxClockOffset+best.uncertainty || best.offset < -maxClockOffset-best.uncertainty:
		f.Status = statusWarning
		f.Advice = "run NTP on both machines with slewing: locks do not depend on the offset, but leases end early if a clock is corrected by a jump"
	case jumped:
		f.Status = statusWarning
		f.Advice = "slew the clocks instead of stepping them: leases end by the clock of the server"
	}
	return f
}

// offsetText says how far a clock is ahead of another.
func offsetText(d time.Duration) string {
	switch {
	case d.Abs() < maxClockOffset:
		return fmt.Sprintf("%.2f ms ahead of", ms(d))
	case d < 0:
		return output.Duration(-d) + " behind"
	}
	return output.Duration(d) + " ahead of"
}

// checkLatency measures round trips of PING and of a script.
func (n *node) checkLatency(ctx context.Context) {
	ping, err := n.measure(func() error { return n.client.Ping(ctx).Err() })
	if err != nil {
		n.add(n, "latency", unavailable("+ping", err))
		return
	}
	script := ping
	if n.scriptDetail != "" {
		script, err = n.measure(func() error {
			err := n.inspect(ctx, false)
			if redis.HasErrorPrefix(err, "NOSCRIPT") { // recheckScripts reports it
				return nil
			}
			return err
		})
		if err != nil {
			n.add(n, "latency", unavailable("+evalsha", err))
			return
		}
	}
	f := evaluateLatency(ping)
	f.Detail = fmt.Sprintf("PING %.2f ms, p99 %.2f ms", ms(median(ping)), ms(p99(ping)))
	f.Values = map[string]float64{"ping_median_ms": ms(median(ping)), "ping_p99_ms": ms(p99(ping))}
	if n.scriptDetail != "" {
		f.Detail += fmt.Sprintf("; a script %.2f ms, p99 %.2f ms", ms(median(script)), ms(p99(script)))
		f.Values["script_median_ms"], f.Values["script_p99_ms"] = ms(median(script)), ms(p99(script))
	}
	n.add(n, "latency", f)
}

// measure calls do a hundred times, or as often as fits into a tenth of the timeout, and returns the sorted durations.
func (n *node) measure(do func() error) ([]time.Duration, error) {
	var durations []time.Duration
	for end := time.Now().Add(n.timeout / 10); len(durations) < latencySamples && (len(durations) < 3 || time.Now().Before(end)); {
		start := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		durations = append(durations, time.Since(start))
	}
	slices.Sort(durations)
	return durations, nil
}

func median(sorted []time.Duration) time.Duration { return sorted[len(sorted)/2] }
func p99(sorted []time.Duration) time.Duration    { return sorted[(len(sorted)*99-1)/100] }
func ms(d time.Duration) float64                  { return float64(d.Microseconds()) / 1000 }

func evaluateLatency(ping []time.Duration) finding {
	switch {
	case p99(ping) >= protocol.DefaultHeartbeatInterval:
		return finding{Status: statusError, Advice: fmt.Sprintf("find out what delays the server or the network: waiters send heartbeats every %v", protocol.DefaultHeartbeatInterval)}
	case median(ping) > maxMedianLatency:
		return finding{Status: statusWarning, Advice: "use a server in the same region: every acquisition takes one or two round trips"}
	case p99(ping) > maxP99Latency:
		return finding{Status: statusWarning, Advice: "find out what delays the server occasionally (SLOWLOG, LATENCY, its disk)"}
	}
	return finding{}
}

// checkClientTimeouts checks the timeouts that the URL sets for a client.
func (d *doctor) checkClientTimeouts() {
	var read, dial time.Duration
	switch c := d.rdb.(type) {
	case *redis.ClusterClient:
		read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
	case *redis.Client:
		read, dial = c.Options().ReadTimeout, c.Options().DialTimeout
	}
	if d.target.Cluster != nil && dial == 0 {
		dial = 5 * time.Second // the default of the clients of its nodes
	}
	d.add(nil, "client-timeouts", evaluateClientTimeouts(read, dial))
}

func evaluateClientTimeouts(read, dial time.Duration) finding {
	detail := fmt.Sprintf("read_timeout %v, dial_timeout %v", read, dial)
	switch {
	case read <= 0:
		return finding{Status: statusWarning, Detail: "no read_timeout", Advice: "set read_timeout: without it a server that hangs occupies a connection of the pool forever"}
	case read > maxClientTimeout || dial > maxClientTimeout:
		return finding{Status: statusWarning, Detail: detail, Advice: fmt.Sprintf("set both to at most %v: a lease of %v is renewed after a third of its TTL, and with longer timeouts there is no time for a second attempt when a server hangs", maxClientTimeout, lockkeeper.DefaultTTL)}
	}
	return finding{Detail: detail}
}
