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
	finds    string // the primitive whose simulation finds it
}

var mutants = []mutant{
	// Scripts.
	{"release does not check the owner", "lua/policy/mutex/release.lua", "if owner == token then\n  ended = lock", "if owner then\n  ended = lock", "fair"},
	{"acquire overwrites the lease of another", "lua/policy/mutex/newcomer.lua", "if call('SET', lock, token, 'NX', 'PX', ttl) then", "if call('SET', lock, token, 'PX', ttl) then", "mutex"},
	{"the short form is taken although there are tombstones", "lua/lib/save_metadata.lua", "refused_until > now and -seq or seq", "seq", "fair"},
	{"the short form draws a fence without metadata", "lua/lib/last.lua", "local ready = last and last >= now_us - now_us % epoch and last > 1e12", "last = last or 0 local ready = true", "fair"},
	{"the short form counts fences without the time", "lua/lib/draw.lua", "drawn = last < now_us and now_us or last + 1", "drawn = last + 1", "fair"},
	{"a redlock's short form counts fences without the last one", "lua/policy/redlock/newcomer.lua", "math.max((last or 0) + 1, now_us, least)", "math.max(now_us, least)", "redlock"},
	{"a waiter is granted a key that is left free", "lua/policy/mutex/admit.lua", " and not left_free() end", " end", "mutex"},
	{"a newcomer is granted a key that is left free", "lua/policy/mutex/existing.lua", "blocked = left_free() ~= nil", "blocked = false", "mutex"},
	{"a key is left free by every release", "lua/lib/yield.lua", "now >= last + 9 * yield", "now >= last", "mutex"},
	{"a renewal recreates an expired lease", "lua/policy/mutex/renew.lua", "renewed = owner == token\n", "renewed = owner == token or call('SET', lock, token, 'NX', 'PX', ttl) and true\n", "fair"},
	{"fences are a counter without the time", "lua/lib/fence.lua", "if now_us > seq then seq = now_us else seq = seq + 1 end", "seq = seq + 1", "fair"},
	{"fences are the time without a counter", "lua/lib/fence.lua", "if now_us > seq then seq = now_us else seq = seq + 1 end", "seq = now_us", "rwlock"},
	{"a newcomer overtakes the queue", "lua/policy/fair/newcomer.lua", "if not tombstones and call('EXISTS', queue) == 0 then", "if not tombstones then", "fair"},
	{"an undelivered grant is not undone", "lua/lib/admit.lua", "for _, token in ipairs(message.tokens) do undo_grant(token) end", "", "fair"},
	{"a cancelled request is not tombstoned", "lua/lib/write_tombstone.lua", "call('ZADD', tombstones, now + ms, token)", "", "fair"},
	{"a broken request is not tombstoned", "lua/break.lua", "write_tombstone(token, tombstone)\n", "", "fair"},
	{"a break admits nobody", "lua/break.lua", "local more = admit()", "local more = 0", "fair"},
	{"who is broken is not told", "lua/break.lua", "if keeper and subscribed(keeper) then", "if false then", "fair"},
	{"a broken waiter keeps its place", "lua/break.lua", "if dequeue({token}) > 0 and", "if call('ZSCORE', queue, token) and", "fair"},
	{"a keeper ignores that its lease was broken", "internal/claim/lease.go", "	case Broken:\n		c.lose(ByBreak, out)\n", "", "fair"},
	{"tombstones are ignored", "lua/lib/tombstone.lua", "if refused_until > now and call('ZSCORE', tombstones, token) then", "if false then", "fair"},
	{"live waiters are swept", "lua/heartbeat.lua", "HEARTBEATS + now, 'BYSCORE'", "HEARTBEATS + now + heartbeat_ttl / 2, 'BYSCORE'", "fair"},
	{"waiters with a lapsed heartbeat are served", "lua/lib/admit.lua", "(unreachable[keeper] and not silent or lapse[i] <= now)", "(unreachable[keeper] and not silent)", "fair"},
	{"an unconfirmed lease outlasts the heartbeat", "lua/lib/admit.lua", "ms = math.min(ms, lapse[i] - now)", "ms = tonumber(ttl)", "fair"},
	{"a hand-off does not count subscribers", "lua/lib/hand_on.lua", "if listens then", "if true then", "fair"},
	{"a hand-off ignores that the heartbeat has lapsed", "lua/lib/hand_on.lua", "lapse and lapse - now or 0, tonumber(claim_ttl)", "tonumber(claim_ttl), tonumber(claim_ttl)", "fair"},
	{"a hand-off outlasts the heartbeat", "lua/lib/hand_on.lua", "left >= claim and now + claim or lapse < 1e12 and lapse or string.sub(score, 4)", "now + tonumber(ttl)", "fair"},
	{"a hand-off leaves the heartbeat of the waiter", "lua/lib/hand_on.lua", "call('ZREM', queue, heir, member)", "call('ZREM', queue, heir)", "fair"},
	{"a sweep leaves the heartbeats", "lua/lib/queue.lua", "return members[1] and call('ZREM', queue, unpack(members)) or 0", "return members[1] and call('ZREM', queue, unpack(tokens)) or 0", "fair"},
	{"a sweep removes the heartbeats alone", "lua/heartbeat.lua", "for i, member in ipairs(lapsed) do lapsed[i] = string.sub(member, 2) end\n", "", "fair"},
	{"a waiter that rejoins has no heartbeat", "lua/heartbeat.lua", "if #alive > 0 then", "if #alive > 0 and not rejoin then", "fair"},
	{"a waiter behind a heartbeat is nobody", "lua/policy/rwlock/heir.lua", "string.byte(heads[2] or '+') == 43", "true", "rwlock"},
	{"a hand-off leaves the waiter in the queue", "lua/lib/hand_on.lua", "    call('ZREM', queue, heir, member)\n", "", "fair"},
	{"a hand-off draws no fence", "lua/lib/hand_on.lua", "fence = now_us\n", "fence = now_us stamp = string.format('%.0f', last)\n", "fair"},
	{"a hand-off does not look at the last fence", "lua/lib/hand_on.lua", "if heir and ready and last < now_us then", "if heir then", "fair"},
	{"the short form of a release says that it has not ended the lease", "lua/release.lua", "    return type_error or outcome + 32", "    return type_error or settings and outcome + 32 or 0", "fair"},
	{"the short form of a release ends the leases of others", "lua/policy/leases/sole.lua", "call('ZCARD', lock) == sole_members and ", "", "rwlock"},
	{"a hand-off goes to a writer although it is the readers' turn", "lua/policy/rwlock/heir.lua", "(alone or not call('HGET', meta, 'pass'))", "true", "rwlock"},
	{"a hand-off goes to a writer beside readers", "lua/policy/rwlock/heir.lua", " and not tombstone and call('EXISTS', lock) == 0 then", " and not tombstone then", "rwlock"},
	{"a hand-off to a writer does not count its streak", "lua/policy/rwlock/hand_over.lua", "if heir_purpose == 'w' then count_streak(heir, number) end\n", "", "rwlock"},
	{"a rejoining waiter gets a new place", "lua/heartbeat.lua", "if at > 0 then call('ZADD', queue, at, token) else at = enqueue(token) end", "at = enqueue(token)", "fair"},
	{"a release admits no waiter", "lua/release.lua", "local more = type_error and 0 or admit()", "local more = 0", "fair"},
	{"tickets do not rise", "lua/lib/enqueue.lua", "if ticket <= now_us then ticket, text = now_us, now_us_text or now_us end", "ticket = 2000000000000000 - now_us text = ticket", "fair"},
	{"the lock's key has no expiry", "lua/policy/leases/keep_lock.lua", "call('PEXPIRE', lock, ms)\n", "\n", "rwlock"},
	{"a writer is granted beside readers", "lua/policy/rwlock/admit.lua", "string.sub(flags, 1, 1), not holder\n", "string.sub(flags, 1, 1), not writer_holds\n", "rwlock"},
	{"a reader overtakes waiting writers", "lua/policy/rwlock/newcomer.lua", "  if keys == 1 then", "  if keys > 0 then", "rwlock"},
	{"a free lock that others wait for is taken by the short form", "lua/policy/rwlock/newcomer.lua", "local free, beside = keys == 0, false", "local free, beside = call('EXISTS', lock) == 0, false", "rwlock"},
	{"a reader is granted beside a writer by the short form", "lua/policy/rwlock/newcomer.lua", "left > 0 and shared and purpose == 'r'", "left > 0 and purpose == 'r'", "rwlock"},
	{"a writer is granted beside readers by the short form", "lua/policy/rwlock/newcomer.lua", "left > 0 and shared and purpose == 'r'", "left > 0 and shared", "rwlock"},
	{"the lock's key ends with the first of its leases", "lua/policy/rwlock/newcomer.lua", "call('PEXPIRE', lock, ttl, 'GT') == 0", "call('PTTL', lock) < 0", "rwlock"},
	{"of the readers admitted at once only the first has a lease", "lua/policy/rwlock/admit.lua", "unpack(unwritten))", "unpack(unwritten, 1, 4))", "rwlock"},
	{"grants of a batch are written again with the next", "lua/policy/rwlock/admit.lua", "  unwritten, unwritten_ms = {}, 0\n", "", "rwlock"},
	{"a writer that passes readers is taken to be alone", "lua/policy/rwlock/admit.lua", "alone, head[2] = not head[2], nil", "alone, head[2] = true, nil", "rwlock"},
	{"the writer streak has no limit", "lua/policy/rwlock/streak.lua", "if max_streak > 0 and streak >= max_streak then", "if false then", "rwlock"},
	{"readers go first after one writer too few", "lua/policy/rwlock/streak.lua", "if max_streak > 0 and streak >= max_streak then", "if max_streak > 0 and streak >= max_streak - 1 and last then", "rwlock"},
	{"a downgrade keeps the write lease", "lua/policy/rwlock/replace.lua", "  remove(origin)\n", "  if purpose_of(token) ~= 'd' then remove(origin) end\n", "rwlock"},
	{"subscribers cannot be counted", "lua/lib/reachable.lua", "local function reachable(keeper, flags)", "local function absence(keeper, flags)", "semaphore"},
	{"permits are not returned", "lua/policy/semaphore/remove.lua", "  if lease then used = used - n end\n", "", "semaphore"},
	{"permits are returned twice", "lua/policy/semaphore/remove.lua", "  if lease then used = used - n end\n", "  if lease then used = used - 2 * n end\n", "semaphore"},
	{"a window returns permits too early", "lua/policy/semaphore/sweep.lua", "out = call('ZRANGE', lock, TAKEN, returned() + 1,", "out = call('ZRANGE', lock, TAKEN, returned() / 2 - now_us / 2 + 1,", "semaphore"},
	{"a window is one permit too large", "lua/policy/semaphore/take.lua", "window, per = most + 0, ms + 0", "window, per = most + 1, ms + 0", "semaphore"},
	{"a window is swept too early", "lua/policy/semaphore/take_fits.lua", "call('ZREMRANGEBYSCORE', lock, 1 - since, TAKEN)", "call('ZREMRANGEBYSCORE', lock, 1 - since - per * 500, TAKEN)", "semaphore"},
	{"takings of several permits are not marked", "lua/policy/semaphore/take_fits.lua", "elseif oldest and not one_each then\n  call('HDEL', meta, 'window')\n", "", "semaphore"},
	{"a mark outlives a grant to a waiter", "lua/policy/semaphore/enter.lua", "  if window < math.huge then call('HDEL', meta, 'window') end\n", "", "semaphore"},
	{"a mark outlives a sweep", "lua/policy/semaphore/remove.lua", "    call('HDEL', meta, 'window')\n  else", "  else", "semaphore"},
	{"a key without counts is taken for empty", "lua/policy/semaphore/count.lua", "if not c[1] and not c[2] then spent = call('ZCARD', lock) end\n", "", "semaphore"},
	{"a newcomer that holds permits overlooks a full window", "lua/policy/semaphore/both.lua", "call('EXISTS', lock, queue) == ((c[1] or c[2]) and 1 or 0)", "call('EXISTS', queue) == 0", "semaphore"},
	{"a fence is added to a key without counts", "lua/policy/semaphore/take_now.lua", "call('ZADD', lock, -call('ZCARD', lock), 'spent')", "", "semaphore"},
	{"a late copy takes a permit again", "lua/policy/semaphore/take_fits.lua", "if call('ZADD', lock, 'NX', '-' .. stamp", "if call('ZADD', lock, '-' .. stamp", "semaphore"},
	{"a key that was swept empty does not expire", "lua/policy/semaphore/take_fits.lua", "if spent == n or last < now_us", "if not last or last < now_us", "semaphore"},
	{"the short form ignores limits in force", "lua/policy/semaphore/short.lua", " and stored[2] == policy_arg .. ' ' .. policy_arg", "", "semaphore"},
	{"a pause is ignored", "lua/policy/semaphore/counts.lua", "by_clock and (spent + n > window or pause_left > 0)", "by_clock and spent + n > window", "semaphore"},
	{"a pause that has ended is not", "lua/policy/semaphore/limits.lua", "pause_left = math.max(math.min(ends - now, ms + 0), 0)", "pause_left = math.max(math.min(ends - now, ms + 0), 1)", "semaphore"},
	{"a small request overtakes a large one", "lua/policy/semaphore/existing.lua", "    if call('EXISTS', queue) == 1 then\n", "    if false then\n", "semaphore"},
	{"a waiter is overtaken by the short form beside leases", "lua/policy/semaphore/hold.lua", "if keys == 1 then\n", "if keys > 0 then\n", "semaphore"},
	{"of the permits admitted at once only the first is written", "lua/policy/semaphore/enter.lua", "  local i = #unwritten\n  if i == 0 then return end\n", "  local i = math.min(#unwritten, 4)\n  if i == 0 then return end\n", "semaphore"},
	{"held permits are not returned", "lua/policy/semaphore/release.lua", "held = -call('ZADD', lock, 'INCR', permits, 'used')", "held = -call('ZADD', lock, 'INCR', 0, 'used')", "semaphore"},
	{"a lease beside the one released goes with it", "lua/policy/semaphore/release.lua", "if members > 3 then", "if members > 5 then", "semaphore"},
	{"a hand-off of permits goes to a waiter that does not fit", "lua/policy/semaphore/heir.lua", "if left and (left == 0 or left > 0 and not next_waiter) then", "if left then", "semaphore"},
	{"a hand-off of permits ignores the limit in force", "lua/policy/semaphore/heir.lua", "' (%d+):0:%d+$')", "'^(%d+):0:%d+')", "semaphore"},
	{"a hand-off of permits does not count them", "lua/policy/semaphore/hand_over.lua", "'-' .. (held == 0 and number or used), 'used', ", "", "semaphore"},

	// The keeper.
	{"a deadline is counted from the reply", "internal/claim/request.go", "c.grant(r, now, Held, e.Fence, e.Sent, r.TTL, out)", "c.grant(r, now, Held, e.Fence, now, r.TTL, out)", "fair"},
	{"an unconfirmed lease's deadline is counted from the message", "internal/claim/request.go", "c.grant(r, now, Unconfirmed, fence, c.asked, r.ClaimTTL, out)", "c.grant(r, now, Unconfirmed, fence, now, r.ClaimTTL, out)", "fair"},
	{"the server's clock is compared with the process's", "internal/wait/heartbeat.go", "Fence: change.Fence, TTL: change.ExpiresIn}", "Fence: change.Fence, TTL: reply.Now + change.ExpiresIn - time.Now().UnixMilli()}", "fair"},
	{"waiters send no heartbeats", "internal/wait/heartbeat.go", "	for batch := range slices.Chunk(waiters, queue.Batch) {\n		q.send(batch)\n	}\n", "", "fair"},
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
	{"renewals do not report a recall", "lua/policy/rwlock/renew.lua", "< RETAINED and 1 or 0", "< RETAINED and 0 or 0", "retain"},
	{"nobody is notified of a recall", "lua/policy/rwlock/recall.lua", "serial .. ' recall')", "serial .. ' -1')", "retain"},
	{"the fence of a retained lease is not decoded", "lua/policy/leases/fence_at.lua", "fence - RETAINED + ENDLESS or fence", "fence or fence", "retain"},
	{"two are inside a retained mutex", "internal/retain/word.go", "	case w&inside != 0:\n", "	case w&inside > 1:\n", "turns"},
	{"a turn whose caller was cancelled as it was granted stays inside", "internal/retain/lease.go", "	case was == passed:\n		l.Leave(g, now, out)\n", "	case was == passed:\n", "turns"},
	{"a renewal confirms the subscription of now", "internal/retain/lease.go", "g.Confirm(x.epoch)", "g.Confirm(g.Current())", "retain"},
	{"nobody is notified of the recall of a mutex", "lua/policy/mutex/recall.lua", "serial .. ' recall')", "serial .. ' -1')", "turns"},
	{"the window is not longer for permits taken ahead", "internal/retainer/permits.go", "	limits.Per += ahead\n", "", "blocks"},
	{"a block is used from when its answer came", "internal/retainer/permits.go", "		sent := time.Since(p.lock.Keeper().Started())\n		q, h, err := p.lock.TryTakeLease(ctx, keeper.Terms{Number: int(size)})\n", "		q, h, err := p.lock.TryTakeLease(ctx, keeper.Terms{Number: int(size)})\n		sent := time.Since(p.lock.Keeper().Started())\n", "blocks"},
	{"a block of which a part was used is given back", "internal/retainer/permits.go", "used := b.Close(); used > 0 {", "used := b.Close(); used == b.Taken() {", "blocks"},
	{"more than a block is granted", "internal/retain/block.go", "	if left = b.left.Add(-n); left < 0 {", "	if left = b.left.Add(-1); left < 0 {", "blocks"},
	{"a refusal outlives its time", "internal/retainer/permits.go", "	if at >= r.until {", "	if at < 0 {", "blocks"},
	{"an unknown waiter does not rejoin", "internal/wait/heartbeat.go", "		again = q.rejoin(unknown)\n", "", "fair"},
}

// TestMutants checks that each deliberate bug still applies. With -mutants the simulation must find each.
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
			// More than once it occurs if it is in a file that is inlined.
			if strings.Contains(s.Text, bare(m.old)) {
				*s = *lua.New(s.Name, strings.ReplaceAll(s.Text, bare(m.old), bare(m.new)))
				made = true
			}
		}
	}
	if !made {
		panic(fmt.Sprintf("%q occurs in no script", m.old))
	}
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
