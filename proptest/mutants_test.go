package proptest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/mutation"
	"github.com/lockkeeper/lockkeeper/lua"
)

var (
	runMutants  = flag.Bool("mutants", false, "build the module with each deliberate bug and let the simulation find it; takes minutes")
	mutantSeed  = flag.String("mutants.seed", "1", "the seed of the schedules that find them")
	withMutant  = flag.String("mutant", "", "run with this bug in the scripts")
	mutantTries = flag.String("mutants.checks", "3000", "how many schedules may look for one")
)

// mutant is a deliberate bug: in a file of this module, a text that occurs once is replaced. The simulation of a
// primitive must find it.
type mutant struct {
	bug      string // description
	file     string // below the root of the module
	old, new string
	finds    string // the primitive whose simulation finds it, or another simulation; or a package's own tests: "lua tests", without those of how scripts are written, or "claim tests"; or "semaphore tests", "ratelimit tests", "retain tests", those of retained permits
}

var mutants = []mutant{
	// Scripts.
	{"release does not check the owner", "lua/policy/mutex.lua", "if owner == token then\n    call('DEL', lock)", "if owner then\n    call('DEL', lock)", "fair"},
	{"acquire overwrites the lease of another", "lua/fast/mutex_acquire.lua", "if call('SET', lock, token, 'NX', 'PX', ttl) then", "if call('SET', lock, token, 'PX', ttl) then", "mutex"},
	{"the fast script is taken although there are tombstones", "lua/lib/metadata.lua", "run.refused_until > now and -run.seq or run.seq, math", "run.seq, math", "fair"},
	{"the fast script draws a fence without metadata", "lua/fast/fair_acquire.lua", "if last and last >= now_us - now_us % epoch and last > LEAST_FENCE then", "last = last or 0\n  if true then", "fair"},
	{"the fast script counts fences without the time", "lua/fast/fair_acquire.lua", "local fence = last < now_us and now_us or last + 1", "local fence = last + 1", "fair"},
	{"a redlock counts fences without the last one", "lua/policy/redlock.lua", "owner and run.seq > 0 and run.seq or draw_fence(run), least)", "owner and run.seq > 0 and run.seq or now * 1000, least)", "redlock"},
	{"a waiter is granted a key that is left free", "lua/policy/mutex.lua", "run.free = call('EXISTS', lock) == 0 and not left_free(run) end", "run.free = call('EXISTS', lock) == 0 end", "mutex"},
	{"a newcomer is granted a key that is left free", "lua/policy/mutex.lua", "return not left_free(run) and (policy_arg", "return (policy_arg", "mutex"},
	{"a key is left free by every release", "lua/policy/mutex.lua", "if now < last + 9 * ms and last <= now + ms then return end", "if now < last and last <= now + ms then return end", "mutex"},
	{"a renewal recreates an expired lease", "lua/policy/mutex.lua", "if owner ~= token then return false end", "if owner ~= token and not call('SET', lock, token, 'NX', 'PX', ttl) then return false end", "fair"},
	{"fences are a counter without the time", "lua/lib/metadata.lua", "run.seq = math.max(now_us, run.seq + 1)", "run.seq = run.seq + 1", "fair"},
	{"fences are the time without a counter", "lua/lib/metadata.lua", "run.seq = math.max(now_us, run.seq + 1)", "run.seq = now_us", "rwlock"},
	{"a newcomer overtakes the queue", "lua/fast/fair_acquire.lua", "if call('EXISTS', queue) == 1 then return UNDECIDED end\n", "", "fair"},
	{"an undelivered grant is not undone", "lua/lib/admit.lua", "for _, token in ipairs(message.tokens) do undo_grant(run, token) end", "", "fair"},
	{"a cancelled request is not tombstoned", "lua/lib/metadata.lua", "  call('ZADD', tombstones, now + ms, token)\n", "", "fair"},
	{"a broken request is not tombstoned", "lua/break.lua", "write_tombstone(run, token, tombstone)\n", "", "fair"},
	{"a break admits nobody", "lua/break.lua", "local more = admit(run)", "local more = 0", "fair"},
	{"who is broken is not told", "lua/break.lua", "if keeper and subscribed(run, keeper) then", "if false then", "fair"},
	{"a broken waiter keeps its place", "lua/break.lua", "if dequeue({token}) > 0 and", "if call('ZSCORE', queue, token) and", "fair"},
	{"a keeper ignores that its lease was broken", "internal/claim/lease.go", "	case Broken:\n		c.lose(ByBreak, out)\n", "", "fair"},
	{"tombstones are ignored", "lua/lib/metadata.lua", "return run.refused_until > now and call('ZSCORE', tombstones, token)", "return false", "fair"},
	{"live waiters are swept", "lua/heartbeat.lua", "HEARTBEATS + now, 'BYSCORE'", "HEARTBEATS + now + heartbeat_ttl / 2, 'BYSCORE'", "fair"},
	{"waiters with a lapsed heartbeat are served", "lua/lib/admit.lua", "(run.unreachable[keeper] and not silent or lapse[i] <= now)", "(run.unreachable[keeper] and not silent)", "fair"},
	{"an unconfirmed lease outlasts the heartbeat", "lua/lib/admit.lua", "ms = math.min(ms, lapse[i] - now)", "ms = tonumber(ttl)", "fair"},
	{"a hand-off does not count subscribers", "lua/fast/mutex_hand_on.lua", "if pcall('PUBSUB', numsub, channel)[2] == 0 then return UNDECIDED end", "", "fair"},
	{"a hand-off ignores that the heartbeat has lapsed", "lua/fast/mutex_hand_on.lua", "local left = lapse and lapse - HEARTBEATS - now or 0", "local left = tonumber(claim_ttl)", "fair"},
	{"a hand-off outlasts the heartbeat", "lua/fast/mutex_hand_on.lua", "left >= claim and now + claim or now < 1e12 and now + left or string.sub(lapse, 4)", "now + tonumber(ttl)", "fair"},
	{"a hand-off overlooks that the waiter is not subscribed", "lua/fast/mutex_hand_on.lua", " or left + now >= UNSUBSCRIBED", "", "lua tests"},
	{"a hand-off leaves the heartbeat of the waiter", "lua/fast/mutex_hand_on.lua", "call('ZREM', queue, heir, '+' .. heir)", "call('ZREM', queue, heir)", "fair"},
	{"a sweep leaves the heartbeats", "lua/lib/queue.lua", "return members[1] and call('ZREM', queue, unpack(members)) or 0", "return members[1] and call('ZREM', queue, unpack(tokens)) or 0", "fair"},
	{"a sweep removes the heartbeats alone", "lua/heartbeat.lua", "for i, member in ipairs(run.lapsed) do run.lapsed[i] = string.sub(member, 2) end\n", "", "fair"},
	{"a waiter that rejoins has no heartbeat", "lua/heartbeat.lua", "if #alive > 0 then", "if #alive > 0 and not rejoin then", "fair"},
	{"a waiter behind a heartbeat is nobody", "lua/fast/rwlock_hand_on.lua", "string.sub(heads[2] or '+', 1, 1) == '+'", "true", "rwlock"},
	{"a hand-off leaves the waiter in the queue", "lua/fast/mutex_hand_on.lua", "call('ZREM', queue, heir, '+' .. heir)\n", "", "fair"},
	{"a hand-off draws no fence", "lua/fast/mutex_hand_on.lua", "pcall(publish, channel, serial .. ' ' .. stamp)", "pcall(publish, channel, serial .. string.format(' %.0f', last))", "fair"},
	{"a hand-off does not look at the last fence", "lua/fast/mutex_hand_on.lua", "if not last or last < now_us - now_us % epoch or last <= LEAST_FENCE then return UNDECIDED end\n", "last = last or 0\n", "fair"},
	{"the fast script of a release says that it has not ended the lease", "lua/fast/mutex_release.lua", "return GRANTED + RELEASE_QUEUE_EMPTY", "return UNDECIDED", "fair"},
	{"the fast script of a release ends the leases of others", "lua/fast/rwlock_release.lua", "call('ZCARD', lock) == 2 and ", "", "rwlock"},
	{"a hand-off goes to a writer although it is the readers' turn", "lua/fast/rwlock_hand_on.lua", "or pass and not alone or", "or", "rwlock"},
	{"a hand-off goes to a writer beside readers", "lua/fast/rwlock_hand_on.lua", " or call('ZCARD', lock) ~= 2 then return UNDECIDED end", " then return UNDECIDED end", "rwlock"},
	{"a hand-off to a writer does not count its streak", "lua/fast/rwlock_hand_on.lua", "readers and readers[2] and streak + 1 or purpose == 'r' and streak or 0, tonumber", "streak, tonumber", "rwlock"},
	{"a rejoining waiter gets a new place", "lua/heartbeat.lua", "if at > 0 then call('ZADD', queue, at, token) else at = enqueue(token) end", "at = enqueue(token)", "fair"},
	{"a release admits no waiter", "lua/release.lua", "local more = run.type_error and 0 or admit(run)", "local more = 0", "fair"},
	{"tickets do not rise", "lua/lib/queue.lua", "local ticket = math.max(now_us, (tonumber(call('HGET', meta, 'ticket')) or 0) + 1)", "local ticket = 2000000000000000 - now_us", "fair"},
	{"the lock's key has no expiry", "lua/fast/rwlock_acquire.lua", "  call('PEXPIRE', lock, ttl)\n", "", "rwlock"},
	{"a writer is granted beside readers", "lua/policy/rwlock.lua", "string.sub(flags, 1, 1), not run.holder\n", "string.sub(flags, 1, 1), not run.writer_holds\n", "rwlock"},
	{"a reader overtakes waiting writers", "lua/fast/rwlock_acquire.lua", "local first = keys == 1 and call(", "local first = call(", "rwlock"},
	{"a free lock that others wait for is taken by the fast script", "lua/fast/rwlock_acquire.lua", "local keys = call('EXISTS', lock, queue)", "local keys = call('EXISTS', lock)", "rwlock"},
	{"a reader is granted beside a writer by the fast script", "lua/fast/rwlock_acquire.lua", "local read = held_for == 'r' or held_for == 'd'", "local read = held_for == 'r' or held_for == 'd' or purpose == 'r'", "rwlock"},
	{"a writer is granted beside readers by the fast script", "lua/fast/rwlock_acquire.lua", "  if not read or purpose ~= 'r' then return UNDECIDED end\n", "", "rwlock"},
	{"the lock's key ends with the first of its leases", "lua/fast/rwlock_acquire.lua", "elseif call('PEXPIRE', lock, ttl, 'GT') == 0 then", "elseif call('PTTL', lock) < 0 then", "rwlock"},
	{"of the readers admitted at once only the first has a lease", "lua/policy/rwlock.lua", "unpack(run.unwritten))", "unpack(run.unwritten, 1, 4))", "rwlock"},
	{"grants of a batch are written again with the next", "lua/policy/rwlock.lua", "  run.unwritten = nil\n", "", "rwlock"},
	{"a writer that passes readers is taken to be alone", "lua/policy/rwlock.lua", "run.alone, head[2] = not head[2], nil", "run.alone, head[2] = true, nil", "rwlock"},
	{"the writer streak has no limit", "lua/policy/rwlock.lua", "if max_streak > 0 and streak >= max_streak then", "if false then", "rwlock"},
	{"readers go first after one writer too few", "lua/policy/rwlock.lua", "if max_streak > 0 and streak >= max_streak then", "if max_streak > 0 and streak >= max_streak - 1 and last then", "rwlock"},
	{"a downgrade keeps the write lease", "lua/policy/rwlock.lua", "  remove(run, origin)\n", "  if purpose_of(token) ~= 'd' then remove(run, origin) end\n", "rwlock"},
	{"subscribers cannot be counted", "lua/lib/message.lua", "local function reachable(run, keeper, flags)\n", "local function reachable(run, keeper, flags)\n  if true then return absent(run, keeper, flags) end\n", "semaphore"},
	{"permits are not returned", "lua/policy/semaphore.lua", "  if lease then run.used = run.used - n end\n", "", "semaphore"},
	{"permits are returned twice", "lua/policy/semaphore.lua", "  if lease then run.used = run.used - n end\n", "  if lease then run.used = run.used - 2 * n end\n", "semaphore"},
	{"a window returns permits too early", "lua/policy/semaphore.lua", "out = call('ZRANGE', lock, TAKEN, returned(run) + 1,", "out = call('ZRANGE', lock, TAKEN, returned(run) / 2 - now_us / 2 + 1,", "semaphore"},
	{"a window is one permit too large", "lua/policy/semaphore.lua", "by_clock and (run.spent + n > run.window or", "by_clock and (run.spent + n > run.window + 1 or", "semaphore"},
	{"a window is swept too early", "lua/fast/window_acquire.lua", "call('ZREMRANGEBYSCORE', lock, 1 - since, TAKEN)", "call('ZREMRANGEBYSCORE', lock, 1 - since - window_ms * 500, TAKEN)", "blocks"},
	{"takings of several permits are not marked", "lua/policy/window.lua", "if run.used > 0 or run.at_once < math.huge or call('ZCARD', lock) ~= run.spent + 1 then return end", "", "blocks"},
	{"a mark outlives a grant to a waiter", "lua/policy/semaphore.lua", "  if run.window < math.huge then call('HDEL', meta, 'window') end\n", "", "blocks"},
	{"a mark outlives a sweep", "lua/policy/semaphore.lua", "    call('HDEL', meta, 'window')\n  else", "  else", "lua tests"},
	{"a key without counts is taken for empty", "lua/policy/semaphore.lua", "  if not counts[1] and not counts[2] then run.spent = call('ZCARD', lock) end\n  return", "  return", "blocks"},
	{"a newcomer that holds permits overlooks a full window", "lua/fast/both_acquire.lua", "if call('EXISTS', lock, queue) ~= ((counts[1] or counts[2]) and 1 or 0) then", "if call('EXISTS', queue) == 1 then", "lua tests"},
	{"a fence is added to a key without counts", "lua/policy/window.lua", "call('ZADD', lock, -call('ZCARD', lock), 'spent')", "call('ZCARD', lock)", "blocks"},
	{"a late copy takes a permit again", "lua/fast/window_acquire.lua", "if call('ZADD', lock, 'NX', '-' .. now_us_text", "if call('ZADD', lock, '-' .. now_us_text", "lua tests"},
	{"a key that was swept empty does not expire", "lua/fast/window_acquire.lua", "if spent == 1 or last < now_us", "if not last or last < now_us", "lua tests"},
	{"the fast script ignores limits in force", "lua/fast/semaphore_acquire.lua", " or known[2] ~= limits .. ' ' .. limits then", " then", "semaphore"},
	{"a pause is ignored", "lua/policy/semaphore.lua", "by_clock and (run.spent + n > run.window or run.pause_left > 0)", "by_clock and run.spent + n > run.window", "semaphore"},
	{"a pause that has ended is not", "lua/policy/limits.lua", "run.pause_left = math.max(math.min(ends - now, ms + 0), 0)", "run.pause_left = math.max(math.min(ends - now, ms + 0), 1)", "semaphore"},
	{"a small request overtakes a large one", "lua/policy/semaphore.lua", "  if call('EXISTS', queue) == 1 then return nil end\n", "", "semaphore"},
	{"a waiter is overtaken by the fast script beside leases", "lua/fast/semaphore_acquire.lua", "local counts = keys == 1 and call(", "local counts = call(", "semaphore"},
	{"of the permits admitted at once only the first is written", "lua/policy/semaphore.lua", "  call('ZADD', lock, unpack(list))\n  if run.window", "  call('ZADD', lock, unpack(list, 1, 4))\n  if run.window", "semaphore"},
	{"held permits are not returned", "lua/fast/semaphore_release.lua", "call('ZADD', lock, 'INCR', permits, 'used') == '0'", "call('ZADD', lock, 'INCR', 0, 'used') == 0", "semaphore"},
	{"a lease beside the one released goes with it", "lua/fast/semaphore_release.lua", "if members > 3 then", "if members > 5 then", "semaphore"},
	{"a hand-off of permits goes to a waiter that does not fit", "lua/fast/semaphore_hand_on.lua", "if room < 0 or room > 0 and not alone or held", "if held", "semaphore"},
	{"a hand-off of permits ignores the limit in force", "lua/fast/semaphore_hand_on.lua", "' (%d+):0:%d+$')", "'^(%d+):0:%d+')", "semaphore"},
	{"a hand-off of permits does not count them", "lua/fast/semaphore_hand_on.lua", "'-' .. held + wanted, 'used', ", "", "semaphore"},

	// The keeper.
	{"a deadline is counted from the reply", "internal/claim/request.go", "c.grant(r, now, Held, e.Fence, e.Sent, r.TTL, out)", "c.grant(r, now, Held, e.Fence, now, r.TTL, out)", "fair"},
	{"an unconfirmed lease's deadline is counted from the message", "internal/claim/request.go", "c.grant(r, now, Unconfirmed, fence, c.asked, r.ClaimTTL, out)", "c.grant(r, now, Unconfirmed, fence, now, r.ClaimTTL, out)", "claim tests"},
	{"the server's clock is compared with the process's", "internal/wait/queue.go", "Fence: change.Fence, TTL: change.ExpiresIn}", "Fence: change.Fence, TTL: reply.Now + change.ExpiresIn - time.Now().UnixMilli()}", "fair"},
	{"waiters send no heartbeats", "internal/wait/queue.go", "	for batch := range slices.Chunk(waiters, queue.Batch) {\n		q.send(batch)\n	}\n", "", "fair"},
	{"an unconfirmed lease is not confirmed", "internal/claim/lease.go", "c.renewAt = renewalTime(now, min(ttl, c.deadline.Sub(now))/3)", "c.renewAt = now.Add(ttl)", "fair"},
	{"an Extend counts from its reply only", "internal/claim/lease.go", "	if d >= c.deadline {\n", "	if d > 0 {\n", "fair"},
	{"a cancelled wait is not released", "internal/claim/request.go", "	if !c.copies.needCleanup() {\n", "	if true {\n", "fair"},
	{"a grant that arrived too late is not requested again", "internal/claim/request.go", "		default:\n			c.ask(false, out)\n		}\n	case Queued:\n", "		}\n	case Queued:\n", "fair"},
	{"a waiter is not added to its queue", "internal/wait/queue.go", "	q.state.Join(&q.of.rules, q.of.s.Now(), retryIn, more, &out)\n", "", "fair"},
	{"a turn in the local queue is lost when its caller is cancelled", "internal/wait/local.go", "	w.Leave(key) // the turn came at the same time: hand it on\n", "", "mutex"},
	{"a turn in the local queue is not passed on", "internal/wait/local.go", "	close(q.waiting.Remove(first).(chan struct{}))\n", "	q.waiting.Remove(first)\n", "mutex"},
	{"a request without a reply is not retried", "internal/claim/request.go", "			c.paused, out.Pause = true, true\n", "			c.paused = true\n", "fair"},
	{"timers stop after one has fired", "internal/timers/timers.go", "	s.firing = false\n	s.armLocked()\n", "	s.firing = false\n", "fair"},
	{"a failed attempt is not retried", "internal/quorum/attempt.go", "	return a.repeats.NextBackOff(), nil\n", "	return time.Hour, nil\n", "redlock"},
	{"a recall is ignored", "internal/wait/messages.go", "			recalled.Recall()\n", "", "retain"},
	{"a retained lease is given back before its readers have left", "internal/retain/lease.go", "!l.closing || inside > 0 {", "!l.closing {", "retain"},
	{"the last reader does not give a retained lease back", "internal/retainer/turn.go", "		settle = x.Leave()\n", "		x.Leave()\n", "retain"},
	{"a retained lease that is lost keeps its readers", "internal/retainer/lease.go", "	return h.retention.lease.Err()\n", "	return nil\n", "retain"},
	{"renewals do not report a recall", "lua/fast/leases_renew.lua", "- RETAINED < 0 then return RECALLED end", "- RETAINED < 0 then return GRANTED end", "retain"},
	{"nobody is notified of a recall", "lua/policy/leases.lua", "serial .. ' recall')", "serial .. ' -1')", "retain"},
	{"the fence of a retained lease is not decoded", "lua/policy/leases.lua", "fence - RETAINED + ENDLESS or fence", "fence or fence", "retain"},
	{"two are inside a retained mutex", "internal/retain/word.go", "	case w&inside != 0:\n", "	case w&inside > 1:\n", "turns"},
	{"a turn whose caller was cancelled as it was granted stays inside", "internal/retain/lease.go", "	case was == passed:\n		l.Leave(g, now, out)\n", "	case was == passed:\n", "turns"},
	{"permits go to a caller that wants more", "internal/retainer/pool.go", "		if x.permits != w.n {", "		if x.permits > w.n {", "pool"},
	{"permits are not recalled for those who find too few", "lua/policy/semaphore.lua", "  if holds then recall_permits(run) end", "", "pool"},
	{"permits that wait for their next caller are not served", "internal/retainer/turn.go", "			x.of.serve()\n", "			_ = x\n", "semaphore tests"},
	{"permits of an ordinary lease stay with the process", "internal/retainer/pool.go", "func (a *alone) CleanedUp() { a.end() }", "func (a *alone) CleanedUp() {}", "pool"},
	{"a caller that gives up keeps the permits that it was granted", "internal/retainer/pool.go", "		d.inside.retention.leave()\n", "", "pool"},
	{"a renewal confirms the subscription of now", "internal/retain/lease.go", "g.Confirm(x.epoch)", "g.Confirm(g.Current())", "retain"},
	{"nobody is notified of the recall of a mutex", "lua/policy/mutex.lua", "serial .. ' recall')", "serial .. ' -1')", "turns"},
	{"the window is not longer for permits taken ahead", "internal/retainer/permits.go", "	limits.Per += ahead\n", "", "blocks"},
	{"a block is used from when its answer came", "internal/retainer/permits.go", "		epoch, sent := p.epoch.Load(), time.Since(p.lock.Keeper().Started())\n		q, h, err := p.lock.TryTakeLease(context.Background(), keeper.Terms{Number: int(size), Flags: protocol.FlagBlock})\n", "		epoch := p.epoch.Load()\n		q, h, err := p.lock.TryTakeLease(context.Background(), keeper.Terms{Number: int(size), Flags: protocol.FlagBlock})\n		sent := time.Since(p.lock.Keeper().Started())\n", "blocks"},
	{"a block of which a part was used is given back", "internal/retainer/permits.go", "used := b.Close(); used > 0 {", "used := b.Close(); used == b.Taken() {", "blocks"},
	{"more than a block is granted", "internal/retain/block.go", "	if left = b.left.Add(-n); left < 0 {", "	if left = b.left.Add(-1); left < 0 {", "blocks"},
	{"a block is used after its end", "internal/retain/block.go", "!InTime(at, b.ends)", "at < 0", "retain tests"},
	{"permits are granted inside after the deadline", "internal/retain/hold.go", "	return Hears(h.epoch.Load(), h.current.Load()) && InTime(time.Since(h.base), time.Duration(h.deadline.Load()))", "	return Hears(h.epoch.Load(), h.current.Load())", "retain tests"},
	{"a block is taken past the queue", "lua/policy/semaphore.lua", "  if call('EXISTS', queue) == 1 then return nil end\n", "  if call('EXISTS', queue) == 1 and not string.find(token, 'b%d*$') then return nil end\n", "ratelimit tests"},
	{"a block is used past those who wait at the server", "internal/retainer/permits.go", "b != nil && p.waiting.Load() == 0 {", "b != nil {", "ratelimit tests"},
	{"a lease that no caller got is reported as released", "internal/lease/event.go", "now := !o.calls && !o.fails", "now := !o.calls", "fair"},
	{"a refusal outlives its time", "internal/retainer/permits.go", "	if at >= r.until {", "	if at < 0 {", "blocks"},
	{"an unknown waiter does not rejoin", "internal/wait/queue.go", "		again = q.rejoin(unknown)\n", "", "fair"},
}

// TestMutants checks that each deliberate bug still applies. With -mutants its finder must find each.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.bug, " ", "_"), func(t *testing.T) {
			x := mutation.Mutant{File: m.file, Old: m.old, New: m.new}
			x.Source(t, root)
			switch {
			case !*runMutants:
			case m.finds == "lua tests":
				m.runTests(t, x, root, "lua", "-test.skip="+rules)
			case m.finds == "semaphore tests" || m.finds == "ratelimit tests":
				m.runTests(t, x, root, strings.TrimSuffix(m.finds, " tests"), "-test.run=Retain")
			case m.finds == "claim tests":
				m.runTests(t, x, root, "internal/claim", "-test.run=.")
			case m.finds == "retain tests":
				m.runTests(t, x, root, "internal/retain", "-test.run=Block|Hold")
			case strings.HasPrefix(m.file, "lua/"):
				m.run(t, os.Args[0], "-mutant="+m.bug)
			default:
				m.run(t, x.Build(t, root))
			}
		})
	}
}

var (
	foundAfter = regexp.MustCompile(`(?:failed|panic) after (\d+) tests: (.*)`)
	foundBy    = regexp.MustCompile(`-rapid\.seed=(\d+)`)
	promised   = regexp.MustCompile(`BROKEN: ([^:)\n]*)`)
)

// intoScripts applies the bug to the scripts of this process, which have neither comments nor indentation.
func (m mutant) intoScripts() {
	bare := func(text string) string {
		var b strings.Builder
		for line := range strings.Lines(text) {
			b.WriteString(strings.TrimLeft(line, " "))
		}
		return b.String()
	}
	made, seen := false, map[*lua.Script]bool{}
	for _, set := range lua.All {
		for _, s := range set.Scripts() {
			if seen[s] {
				continue // a script of several primitives
			}
			seen[s] = true
			// Several scripts may have it.
			if strings.Contains(s.Text, bare(m.old)) {
				*s = *mutation.Script(s.Name, strings.ReplaceAll(s.Text, bare(m.old), bare(m.new)), s.Keys...)
				made = true
			}
		}
	}
	if !made {
		panic(fmt.Sprintf("%q occurs in no script", m.old))
	}
}

var (
	// rules are the tests of package lua for how scripts are written, not for what they do.
	rules  = "^Test(Constants|FastScriptsAre|FewFiles|Functions|Headers|Includes|NoAmbient|NothingIs|NumbersHave|PartsAre|Policies|Protocol|ScriptsAre|ScriptsUse|ScriptCommands)"
	failed = regexp.MustCompile(`--- FAIL: (\S+)`)
)

// runTests expects tests of a package to find the bug, which no schedule is likely to reach.
func (m mutant) runTests(t *testing.T, x mutation.Mutant, root, pkg, which string) {
	dir := filepath.Join(root, pkg)
	cmd := exec.Command(x.BuildPackage(t, root, dir), which, "-test.failfast", "-test.timeout=5m")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	test := failed.FindSubmatch(out)
	if err == nil || test == nil {
		t.Fatalf("the mutant survived:\n%s", out)
	}
	t.Logf("| %s | `%s` | %s | %s | | |", m.bug, m.file, m.finds, test[1])
}

// run expects the simulation in a test binary to report a broken promise.
func (m mutant) run(t *testing.T, binary string, args ...string) {
	began := time.Now()
	test := "^TestSimulation$/^" + m.finds + "$"
	switch m.finds {
	case "redlock":
		test = "^TestRedlockSimulation$"
	case "retain":
		test = "^TestRetainSimulation$"
	case "blocks":
		test = "^TestBlocksSimulation$"
	case "turns":
		test = "^TestRetainTurnsSimulation$"
	case "pool":
		test = "^TestRetainPermitsSimulation$"
	}
	args = append(args, "-test.run="+test, "-test.timeout=5m", "-rapid.nofailfile", "-rapid.shrinktime=1ms",
		"-rapid.seed="+*mutantSeed, "-rapid.checks="+*mutantTries)
	out, err := exec.Command(binary, args...).CombinedOutput()
	promise := promised.FindSubmatch(out)
	if err == nil || promise == nil {
		t.Fatalf("the mutant survived, after %v:\n%s", time.Since(began), out)
	}
	checks, seed := "?", "?"
	if found := foundAfter.FindSubmatch(out); found != nil {
		checks = string(found[1])
	}
	if found := foundBy.FindSubmatch(out); found != nil {
		seed = string(found[1])
	}
	t.Logf("| %s | `%s` | %s | %s | %s | %s |", m.bug, m.file, m.finds, promise[1], checks, seed)
}
