package proptest

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	// finds is the level that has to find it: the primitive whose simulation does, or another simulation; "delayed" and a primitive, if that
	// is only with pauses between the effects; or the directory of a package, "tests", and after a slash which of its tests; those of lua are
	// without the ones of how scripts are written. The bugs of the search are in internal/testing/explore.
	finds string
}

var mutants = []mutant{
	// Scripts.
	{"release does not check the owner", "lua/policy/mutex.lua", "if owner == token then\n    call('DEL', lock)", "if owner then\n    call('DEL', lock)", "fair"},
	{"acquire overwrites the lease of another", "lua/fast/mutex_acquire.lua", "if usual and call('SET', lock, token, 'NX', 'PX', ttl) then", "if usual and call('SET', lock, token, 'PX', ttl) then", "mutex"},
	{"the fast script is taken although there are tombstones", "lua/lib/metadata.lua", "run.refused_until > now and -run.seq or run.seq, math", "run.seq, math", "fair"},
	{"the fast script draws a fence without metadata", "lua/fast/mutex_acquire.lua", "local usual = last and last >= now_us - now_us % epoch and now_us > LEAST_FENCE", "last = last or 0\nlocal usual = true", "fair"},
	{"the fast script counts fences without the time", "lua/fast/mutex_acquire.lua", "  if last >= now_us then", "  if true then", "fair"},
	{"a redlock counts fences without the last one", "lua/policy/redlock.lua", "owner and run.seq > 0 and run.seq or draw_fence(run), least)", "owner and run.seq > 0 and run.seq or now * 1000, least)", "redlock"},
	{"a waiter is granted a key that is left free", "lua/policy/mutex.lua", "run.free = call('EXISTS', lock) == 0 and not left_free(run) end", "run.free = call('EXISTS', lock) == 0 end", "mutex"},
	{"a newcomer is granted a key that is left free", "lua/policy/mutex.lua", "  return not left_free(run)\nend", "  return true\nend", "mutex"},
	{"a key is left free by every release", "lua/policy/mutex.lua", "if now < last + 9 * ms and last <= now + ms then return end", "if now < last and last <= now + ms then return end", "mutex"},
	{"a renewal recreates an expired lease", "lua/policy/mutex.lua", "if owner ~= token then return false end", "if owner ~= token and not call('SET', lock, token, 'NX', 'PX', ttl) then return false end", "fair"},
	{"fences are a counter without the time", "lua/lib/metadata.lua", "run.seq = math.max(now_us, run.seq + 1)", "run.seq = run.seq + 1", "fair"},
	{"fences are the time without a counter", "lua/lib/metadata.lua", "run.seq = math.max(now_us, run.seq + 1)", "run.seq = now_us", "rwlock"},
	{"a newcomer overtakes the queue", "lua/fast/mutex_acquire.lua", "if queue and call('EXISTS', queue) == 1 then return UNDECIDED end\n", "", "fair"},
	{"an undelivered grant is not undone", "lua/lib/admit.lua", "for _, token in ipairs(message.tokens) do undo_grant(run, token) end", "", "fair"},
	{"a cancelled request is not tombstoned", "lua/lib/metadata.lua", "  call('ZADD', tombstones, now + ms, token)\n", "", "fair"},
	{"a broken request is not tombstoned", "lua/break.lua", "write_tombstone(run, token, tombstone)\n", "", "fair"},
	{"a break admits nobody", "lua/break.lua", "local more = admit(run)", "local more = 0", "fair"},
	{"who is broken is not told", "lua/break.lua", "local receivers = keeper and publish(keeper, serial .. ' ' .. notice) or 0", "local receivers = 0", "fair"},
	{"who does not count on its subscription is not notified", "lua/lib/admit.lua", "  for keeper, message in pairs(uncounted) do publish(keeper, table.concat(message, ' ')) end\n", "", "lua tests"},
	{"the grant to who does not count on its subscription is undone", "lua/lib/admit.lua", "elseif counts then", "elseif true then", "fair"},
	{"a subscription that the server does not see is counted on", "internal/pubsub/subscriber.go", " && !time.Now().Before(ch.doubtedUntil)", "", "internal/testing/processes tests/WithoutMessages"},
	{"who was passed over asks again at its next heartbeat only", "internal/queue/queue.go", "		q.pause = r.Interval / pauses\n", "", "internal/testing/processes tests/WithoutMessages"},
	{"a broken waiter keeps its place", "lua/break.lua", "if dequeue({token}) > 0 and", "if call('ZSCORE', queue, token) and", "fair"},
	{"a keeper ignores that its lease was broken", "internal/claim/lease.go", "	case Broken:\n		c.lose(ByBreak, out)\n", "", "fair"},
	{"tombstones are ignored", "lua/lib/metadata.lua", "return run.refused_until > now and call('ZSCORE', tombstones, token)", "return false", "fair"},
	{"live waiters are swept", "lua/heartbeat.lua", "HEARTBEATS + now, 'BYSCORE'", "HEARTBEATS + now + heartbeat_ttl / 2, 'BYSCORE'", "fair"},
	{"waiters with a lapsed heartbeat are served", "lua/lib/admit.lua", "(counts and run.unreachable[keeper] or lapse[i] <= now)", "(counts and run.unreachable[keeper])", "fair"},
	{"an unconfirmed lease outlasts the heartbeat", "lua/lib/admit.lua", "ms = math.min(ms, lapse[i] - now)", "ms = tonumber(ttl)", "fair"},
	{"a hand-off does not count subscribers", "lua/fast/mutex_hand_on.lua", "local dead = pcall('PUBSUB', numsub, channel)[2] == 0", "local dead = false", "fair"},
	{"a hand-off passes over one that is alive", "lua/fast/mutex_hand_on.lua", "local dead = pcall('PUBSUB', numsub, channel)[2] == 0", "local dead = heads[2] and #leaving == 2", "fair"},
	{"a hand-off leaves those whom it passed over in the queue", "lua/fast/mutex_hand_on.lua", "call('ZREM', queue, unpack(leaving))", "call('ZREM', queue, heir, '+' .. heir)", "lua tests"},
	{"a hand-off passes over any number", "lua/fast/mutex_hand_on.lua", " or #leaving > 2 * DEAD_HEADS then", " then", "lua tests"},
	{"a hand-off ignores that the heartbeat has lapsed", "lua/fast/mutex_hand_on.lua", "left = lapse and lapse - HEARTBEATS - now or 0", "left = tonumber(claim_ttl)", "fair"},
	{"a hand-off outlasts the heartbeat", "lua/fast/mutex_hand_on.lua", "left >= claim and now + claim or now < 1e12 and now + left or string.sub(lapse, 4)", "now + tonumber(ttl)", "fair"},
	{"a hand-off overlooks that the waiter is not subscribed", "lua/fast/mutex_hand_on.lua", " or left + now >= UNSUBSCRIBED", "", "lua tests"},
	{"a hand-off leaves the heartbeat of the waiter", "lua/fast/mutex_hand_on.lua", "leaving[#leaving + 1], leaving[#leaving + 2], channel = heir, '+' .. heir, channel_prefix .. keeper", "leaving[#leaving + 1], leaving[#leaving + 2], channel = heir, heir, channel_prefix .. keeper", "fair"},
	{"a sweep leaves the heartbeats", "lua/lib/queue.lua", "return members[1] and call('ZREM', queue, unpack(members)) or 0", "return members[1] and call('ZREM', queue, unpack(tokens)) or 0", "fair"},
	{"a sweep removes the heartbeats alone", "lua/heartbeat.lua", "for i, member in ipairs(run.lapsed) do run.lapsed[i] = string.sub(member, 2) end\n", "", "fair"},
	{"a heartbeat does not see that the server has forgotten a waiter", "lua/heartbeat.lua", "for from = 1, prolonged < total and total or 0, 200 do", "for from = 1, rejoin and total or 0, 200 do", "fair"},
	{"a heartbeat of a forgotten waiter comes back without it", "lua/heartbeat.lua", "call('ZADD', queue, 'XX', 'CH', unpack(alive))", "call('ZADD', queue, 'CH', unpack(alive))", "fair"},
	{"a heartbeat of many prolongs those of the first batch", "lua/heartbeat.lua", "prolonged = prolonged + call('ZADD', queue, 'XX', 'CH', unpack(alive))", "prolonged = prolonged + (from > 1 and n / 2 or call('ZADD', queue, 'XX', 'CH', unpack(alive)))", "lua tests/TestHeartbeatsOfMany"},
	{"a waiter that rejoins has no heartbeat", "lua/heartbeat.lua", "if #alive > 0 then", "if #alive > 0 and not rejoin then", "fair"},
	{"a waiter behind a heartbeat is nobody", "lua/fast/rwlock_hand_on.lua", "string.sub(heads[2] or '+', 1, 1) == '+'", "true", "rwlock"},
	{"a hand-off leaves the waiter in the queue", "lua/fast/mutex_hand_on.lua", "call('ZREM', queue, unpack(leaving))\n", "", "fair"},
	{"a hand-off draws no fence", "lua/fast/mutex_hand_on.lua", "pcall(publish, channel, serial .. ' ' .. stamp)", "pcall(publish, channel, serial .. string.format(' %.0f', last))", "fair"},
	{"a hand-off does not look at the last fence", "lua/fast/mutex_hand_on.lua", "if not last or last < now_us - now_us % epoch or now_us <= LEAST_FENCE then return UNDECIDED end\n", "last = last or 0\n", "fair"},
	{"the fast script of a release says that it has not ended the lease", "lua/fast/mutex_release.lua", "return GRANTED + RELEASE_QUEUE_EMPTY", "return UNDECIDED", "fair"},
	{"the fast script of a release ends the leases of others", "lua/fast/rwlock_release.lua", "call('ZCARD', lock) == 2 and ", "", "rwlock"},
	{"a hand-off goes to a writer although it is the readers' turn", "lua/fast/rwlock_hand_on.lua", "or pass and not alone or", "or", "rwlock"},
	{"a hand-off goes to a writer beside readers", "lua/fast/rwlock_hand_on.lua", " or call('ZCARD', lock) ~= 2 then return UNDECIDED end", " then return UNDECIDED end", "rwlock"},
	{"a hand-off to a writer does not count its streak", "lua/fast/rwlock_hand_on.lua", "readers and readers[2] and streak + 1 or purpose == 'r' and streak or 0, tonumber", "streak, tonumber", "rwlock"},
	{"a rejoining waiter gets a new place", "lua/heartbeat.lua", "if at > 0 then requeue(token, at) else at = enqueue(token) end", "at = enqueue(token)", "fair"},
	{"a newcomer overtakes a waiter whose place is ahead of the clock", "lua/lib/queue.lua", "  if ticket > (tonumber", "  if ticket < now_us and ticket > (tonumber", "lua tests"},
	{"a newcomer overtakes a waiter that rejoined before the clock was set back", "lua/lib/queue.lua", "  if ticket > (tonumber", "  if ticket > now_us and ticket > (tonumber", "lua tests"},
	{"a release admits no waiter", "lua/release.lua", "local more = run.type_error and 0 or admit(run)", "local more = 0", "fair"},
	{"tickets do not rise", "lua/lib/queue.lua", "local ticket = math.max(now_us, (tonumber(call('HGET', meta, 'ticket')) or 0) + 1)", "local ticket = 2000000000000000 - now_us", "fair"},
	{"the lock's key has no expiry", "lua/fast/rwlock_acquire.lua", "  call('PEXPIRE', lock, ttl)\n", "", "rwlock"},
	{"a writer is granted beside readers", "lua/policy/rwlock.lua", "string.sub(flags, 1, 1), not run.holder\n", "string.sub(flags, 1, 1), not run.writer_holds\n", "rwlock"},
	{"a reader overtakes waiting writers", "lua/fast/rwlock_acquire.lua", "local first = keys == 1 and call(", "local first = call(", "rwlock"},
	{"a free lock that others wait for is taken by the fast script", "lua/fast/rwlock_acquire.lua", "local keys = call('EXISTS', lock, queue)", "local keys = call('EXISTS', lock)", "rwlock"},
	{"a reader is granted beside a writer by the fast script", "lua/fast/rwlock_acquire.lua", "local read = (string", "local read = purpose == 'r' or (string", "rwlock"},
	{"a reader is granted beside an upgraded lease by the fast script", "lua/fast/rwlock_acquire.lua", " ~= (first[2] % 1 > 0)", "", "rwlock"},
	{"a writer is granted beside readers by the fast script", "lua/fast/rwlock_acquire.lua", "  if not read or purpose ~= 'r' then return UNDECIDED end\n", "", "rwlock"},
	{"the lock's key ends with the first of its leases", "lua/fast/rwlock_acquire.lua", "elseif call('PEXPIRE', lock, ttl, 'GT') == 0 then", "elseif call('PTTL', lock) < 0 then", "rwlock"},
	{"of the readers admitted at once only the first has a lease", "lua/policy/rwlock.lua", "unpack(run.unwritten))", "unpack(run.unwritten, 1, 4))", "rwlock"},
	{"grants of a batch are written again with the next", "lua/policy/rwlock.lua", "  run.unwritten = nil\n", "", "rwlock"},
	{"a writer that passes readers is taken to be alone", "lua/policy/rwlock.lua", "run.alone, head[2] = not head[2], nil", "run.alone, head[2] = true, nil", "rwlock"},
	{"the writer streak has no limit", "lua/policy/rwlock.lua", "if max_streak > 0 and streak >= max_streak then", "if false then", "rwlock"},
	{"readers go first after one writer too few", "lua/policy/rwlock.lua", "if max_streak > 0 and streak >= max_streak then", "if max_streak > 0 and streak >= max_streak - 1 and last then", "rwlock"},
	{"readers are granted beside an upgraded lease", "lua/policy/rwlock.lua", "and writes(run.holder, list[2])", "and purpose_of(run.holder) ~= 'r'", "rwlock"},
	{"an upgrade is granted beside readers", "lua/policy/rwlock.lua", "  if not run.sole then return nil end\n", "", "rwlock"},
	{"an upgrade that waits is granted beside readers", "lua/policy/rwlock.lua", "may = run.sole", "may = true", "rwlock"},
	{"an upgrade waits behind writers", "lua/policy/rwlock.lua", "purpose == 'u' and math.floor(ticket / UPGRADES_FIRST) or ticket", "ticket", "rwlock"},
	{"an upgrade takes over from that of another lease", "lua/policy/rwlock.lua", "conflict = lapse and (lapse - HEARTBEATS) % UNSUBSCRIBED > now", "conflict = false and lapse", "rwlock"},
	{"the earlier of two upgrades of a lease takes over", "lua/policy/rwlock.lua", "conflict = keeper == keeper_of_other and (tonumber", "conflict = keeper == '' and (tonumber", "rwlock"},
	{"an upgrade that takes over keeps the fence", "lua/policy/rwlock.lua", "  return GRANTED, convert(run, origin, at, true)", "  if writes(origin, at) then return GRANTED, lease_fence(origin) end\n  return GRANTED, convert(run, origin, at, true)", "rwlock"},
	{"an upgrade that is asked for again gets another fence", "lua/policy/rwlock.lua", "  if other == token and writes(origin, at) then return GRANTED, lease_fence(origin) end\n", "", "rwlock"},
	{"an upgrade that was given up leaves the lease writing", "lua/policy/rwlock.lua", "    if origin then mark(run, origin, ends, false) end\n", "", "rwlock"},
	{"giving up an earlier upgrade undoes a later one", "lua/policy/rwlock.lua", "if last == token and writes", "if last and writes", "rwlock"},
	{"an upgrade that nobody was told of is not undone", "lua/policy/rwlock.lua", "    mark(run, old.origin, ends_at(old.origin), false)\n", "", "rwlock"},
	{"a conversion shortens the lease", "lua/policy/rwlock.lua", "math.ceil(score)", "math.floor(score)", "rwlock"},
	{"a downgrade keeps the write lease", "lua/downgrade.lua", "if writes(token, at) then convert(run, token, at, false) end\n", "", "rwlock"},
	{"a downgrade keeps the fence", "lua/downgrade.lua", "then convert(run", "then mark(run", "rwlock"},
	{"a downgrade that comes late is not refused", "lua/downgrade.lua", " or writes(token, at) and (lease_fence(token) or 0) > fence then", " then", "rwlock"},
	{"a downgrade lets a copy of the upgrade write again", "lua/downgrade.lua", "if upgrade ~= '' then write_tombstone(run, upgrade, tonumber(tombstone)) end\n", "", "rwlock"},
	{"a downgrade admits nobody", "lua/downgrade.lua", "local more = admit(run)", "local more = 0", "rwlock"},
	{"a renewal undoes a conversion", "lua/fast/leases_renew.lua", "now + ttl - at % 1", "now + ttl", "rwlock"},
	{"a renewal with metadata undoes a conversion", "lua/policy/leases.lua", "keep_lock(run, ttl)\n    call('ZADD', lock, now + ttl - at % 1, token)", "keep_lock(run, ttl)\n    call('ZADD', lock, now + ttl, token)", "rwlock"},
	{"a lease that is cut after the clock was set back is converted", "lua/policy/leases.lua", "  call('ZADD', lock, now + ttl - at % 1, token)\n  run.head_stale", "  call('ZADD', lock, now + ttl, token)\n  run.head_stale", "rwlock"},
	{"subscribers cannot be counted", "lua/lib/message.lua", "local function subscribed(keeper)\n", "local function subscribed(keeper)\n  if true then return absent(keeper) end\n", "semaphore"},
	{"permits are not returned", "lua/policy/semaphore.lua", "  if lease then run.used = run.used - n end\n", "", "semaphore"},
	{"permits are returned twice", "lua/policy/semaphore.lua", "  if lease then run.used = run.used - n end\n", "  if lease then run.used = run.used - 2 * n end\n", "semaphore"},
	{"a window returns permits too early", "lua/policy/semaphore.lua", "out = call('ZRANGE', lock, TAKEN, returned(run) + 1,", "out = call('ZRANGE', lock, TAKEN, returned(run) / 2 - now_us / 2 + 1,", "semaphore"},
	{"a window is one permit too large", "lua/policy/semaphore.lua", "by_clock and (run.spent + n > run.window or", "by_clock and (run.spent + n > run.window + 1 or", "semaphore"},
	{"a window holds one permit too many", "lua/fast/window_acquire.lua", "if remaining == 0 then", "if remaining == -1 then", "blocks"},
	{"a window has room for one permit too many", "lua/policy/semaphore.lua", "by_clock and (run.spent + n > run.window or", "by_clock and (run.spent + n > run.window + 1 or", "blocks"},
	{"a window is swept too early", "lua/fast/window_acquire.lua", "call('ZREMRANGEBYSCORE', lock, 1 - since, TAKEN)", "call('ZREMRANGEBYSCORE', lock, 1 - since - window_us / 2, TAKEN)", "blocks"},
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
	{"a hand-off of permits ignores the limit in force", "lua/fast/semaphore_hand_on.lua", "' (%d+):0:%d+$')", "'^(%d+):0:%d+')", "lua tests/HandOnKeeps"},
	{"a hand-off of permits does not count them", "lua/fast/semaphore_hand_on.lua", "'-' .. held + wanted, 'used', ", "", "semaphore"},

	// The keeper.
	{"a deadline is counted from the reply", "internal/claim/request.go", "c.grant(r, now, Held, e.Fence, e.Sent, r.TTL, out)", "c.grant(r, now, Held, e.Fence, now, r.TTL, out)", "fair"},
	{"an unconfirmed lease's deadline is counted from the message", "internal/claim/request.go", "c.grant(r, now, Unconfirmed, fence, c.asked, r.ClaimTTL, out)", "c.grant(r, now, Unconfirmed, fence, now, r.ClaimTTL, out)", "internal/claim tests"},
	{"the server's clock is compared with the process's", "internal/keeper/queue.go", "Fence: change.Fence, TTL: change.ExpiresIn}", "Fence: change.Fence, TTL: reply.Now + change.ExpiresIn - time.Now().UnixMilli()}", "fair"},
	{"waiters send no heartbeats", "internal/keeper/queue.go", "	for batch := range slices.Chunk(waiters, queue.Batch) {\n		q.send(batch)\n	}\n", "", "fair"},
	{"an unconfirmed lease is not confirmed", "internal/claim/lease.go", "c.renewAt = renewalTime(now, min(ttl, c.deadline.Sub(now))/3)", "c.renewAt = now.Add(ttl)", "fair"},
	{"an Extend to less shortens the lease", "lua/policy/mutex.lua", "  extend_expiry(lock, ttl)\n  return true\n", "  call('PEXPIRE', lock, ttl)\n  return true\n", "fair"},
	{"an Extend to less shortens one of several leases", "lua/policy/leases.lua", "local at = ends_at(token)\n  if at and at < now + ttl then\n", "local at = ends_at(token)\n  if at then\n", "rwlock"},
	{"an Extend to less is noted as the longest", "lua/policy/mutex.lua", " and tonumber(ttl) > noted_ttl(token) then", " then", "lua tests/TestClockSetBack"},
	{"an Extend to less is noted as the longest of one of several leases", "lua/policy/leases.lua", "call('ZADD', lock, 'GT', BEYOND", "call('ZADD', lock, BEYOND", "lua tests/TestClockSetBack"},
	{"an Extend to less lowers what renewals ask for", "internal/claim/lease.go", "		c.ttl, c.metadataAt = max(c.ttl, e.TTL), now\n", "		c.ttl, c.metadataAt = e.TTL, now\n", "internal/claim tests"},
	{"a claim is told twice of a reply", "internal/keeper/request.go", "	done := r.StepAt(k.Instant(now), ev, cause)\n", "	r.StepAt(k.Instant(now), ev, cause)\n	done := r.StepAt(k.Instant(now), ev, cause)\n", "fair"},
	{"a cancelled wait is not released", "internal/claim/request.go", "	if !c.copies.needCleanup() || c", "	if true || c", "fair"},
	{"a grant that arrived too late is not requested again", "internal/claim/request.go", "		} else {\n			c.ask(true, out)\n		}\n	case Queued:\n", "		}\n	case Queued:\n", "fair"},
	{"a waiter is not added to its queue", "internal/keeper/queue.go", "	q.state.Join(&q.of.rules, q.of.k.Now(), r.queued.retryIn, r.queued.more, &out)\n", "", "fair"},
	{"a turn in the local queue is lost when its caller is cancelled", "internal/keeper/local.go", "	w.Leave(key) // the turn came at the same time: hand it on\n", "", "mutex"},
	{"a turn in the local queue is not passed on", "internal/keeper/local.go", "	close(q.waiting.Remove(first).(chan struct{}))\n", "	q.waiting.Remove(first)\n", "mutex"},
	{"a request without a reply is not retried", "internal/claim/request.go", "			out.Pause = true\n", "", "fair"},
	{"timers stop after one has fired", "internal/timers/timers.go", "	s.firing = false\n	s.armLocked()\n", "	s.firing = false\n", "fair"},
	{"a failed attempt is not retried", "internal/quorum/attempt.go", "	return retry.Next(&a.repeats), nil\n", "	return time.Hour, nil\n", "redlock"},
	{"a renewal goes beyond MaxLifetime", "internal/claim/lease.go", "		ttl = min(ttl, (r.MaxLifetime - now.Sub(c.since)).Milliseconds())\n", "", "fair"},
	{"an upgrade that waits has no note", "internal/keeper/request.go", "			t.note = of.Note\n", "			_ = of\n", "rwlock"},
	{"an upgrade that replicas do not have is not given up", "internal/claim/lease.go", "		c.release(e.Unused, c.copies.needTombstone(), until, 0, out)\n", "", "rwlock tests/TestUnacknowledged"},
	{"a converted lease keeps its fence", "internal/keeper/conversion.go", "h.fence.Swap(fence)", "h.fence.Load()", "rwlock"},
	{"the call before a conversion is not reported as over", "internal/keeper/conversion.go", "	h.observeFor(former, h.fence.Swap(fence), Released, nil)\n", "	_, _ = former, h.fence.Swap(fence)\n", "rwlock"},
	{"a downgrade in doubt leaves the lease writing", "internal/keeper/conversion.go", "	case inDoubt && h.converted(", "	case inDoubt && h == nil && h.converted(", "rwlock"},
	{"a downgrade in doubt is not repeated", "internal/keeper/conversion.go", "		if l.k.BeginWork(false) {", "		if false && l.k.BeginWork(false) {", "rwlock tests/TestConformance"},
	{"a renewal does not see that the upgrade was lost", "internal/keeper/conversion.go", "r.Converted != sent.converted &&", "false &&", "rwlock tests/TestConformance"},
	{"a downgrade does not say that a copy of the upgrade may come", "internal/keeper/conversion.go", "	return by.token\n", "	return \"\"\n", "rwlock"},
	{"an adopted lease does what its token says", "internal/keeper/lock.go", "		if r.Converted {", "		if false && r.Converted {", "rwlock tests/TestAdoptedLease"},
	{"a renewal that was sent late goes beyond MaxLifetime", "internal/claim/lease.go", "		until = min(until, c.since.Add(r.MaxLifetime))\n", "", "internal/claim tests"},
	{"a failed renewal is repeated after the whole pause", "internal/claim/lease.go", "at := now.Add(e.Pause); c.renewAt == 0 || at < c.renewAt {", "at := now.Add(e.Pause); at > 0 {", "internal/claim tests"},
	{"a failed renewal is repeated without a pause", "internal/claim/lease.go", "at := now.Add(e.Pause); c.renewAt == 0", "at := now; c.renewAt == 0", "internal/claim tests"},
	// The order of effects.
	{"a grant between the steps of Close stays at the server", "internal/keeper/effects.go", "	if a.unwanted {\n		h.Abandon()\n	}\n", "", "delayed fair"},
	{"Close does not wait for releases", "internal/keeper/effects.go", "		k.BeginWork(true) // Close waits for it\n", "		k.BeginWork(true)\n		k.EndWork()\n", "delayed fair"},
	{"a lease is shared on after its renewal was refused", "internal/keeper/effects.go", "			h.observer.LeaseEvent(Refused)\n", "			_ = Refused\n", "mutex tests/TestLinger"},
	{"a shared lease that was refused its renewal admits callers", "internal/share/shared.go", "	if what == keeper.Refused {\n", "	if what == lease.Lost {\n", "mutex tests/TestLinger"},
	{"the loss of a lease is not reported", "internal/keeper/effects.go", "	if a.End && a.err != nil {\n", "	if a.End && a.err == nil {\n", "fair"},
	// Leases that callers of a process share.
	{"Linger lasts twice as long", "internal/share/shared.go", "time.Now().Add(linger)", "time.Now().Add(2 * linger)", "linger"},
	{"a lease that was lost is shared", "internal/share/shared.go", "	h.OnEnd(func(error) { s.close() })\n", "", "linger"},
	{"a writer does not end the sharing of its process", "internal/share/name.go", "leases := append(n.idle, n.open.Load())", "leases := n.idle", "linger"},
	{"a lease that nobody uses is not released when Linger ends", "internal/share/shared.go", "	if empty {\n", "	if empty && s == nil {\n", "turns"},
	{"a lease is handed over to a caller who has gone", "internal/share/share.go", "			return nil, n.whileHeld(ctx, server.WaitError(ctx, l.lock.Outage(time.Now())))\n", "			err := n.whileHeld(ctx, server.WaitError(ctx, l.lock.Outage(time.Now())))\n			n.enter(0)\n			return nil, err\n", "turns"},
	{"the last caller does not release a lease", "internal/share/gate.go", "&(open|inside) == 0 }", "&(open|inside) == 2 }", "linger"},
	{"a lease is released while others are inside", "internal/share/shared.go", "	if empty {\n", "	if !empty {\n		_, _ = s.lease.StartRelease()\n	} else {\n", "linger"},
	{"an upgrade does not wait for the readers of its process", "internal/share/share.go", "	err := h.awaitAlone(ctx, l)\n", "	var err error\n", "linger"},
	{"two are inside a mutex", "internal/share/gate.go", "g.alone && w&inside > 0", "g.alone && w&inside > 1", "turns"},
	{"permits go to a caller that wants more", "internal/share/name.go", "if s.permits == permits {", "if s.permits <= permits {", "permits"},
	{"the window is not longer for permits taken ahead", "internal/ahead/permits.go", "	limits.Per += ahead\n", "", "blocks"},
	{"a block is used from when its answer came", "internal/ahead/permits.go", "		since, sent := p.names.version(p.lock.Key()), time.Since(p.lock.Keeper().Started())\n		q, h, err := p.lock.TryTakeLease(context.Background(), keeper.Terms{Number: int(size), Flags: protocol.FlagBlock})\n", "		since := p.names.version(p.lock.Key())\n		q, h, err := p.lock.TryTakeLease(context.Background(), keeper.Terms{Number: int(size), Flags: protocol.FlagBlock})\n		sent := time.Since(p.lock.Keeper().Started())\n", "blocks"},
	{"a block that was fetched while Pause ran is used", "internal/ahead/permits.go", "		since, sent := p.names.version(p.lock.Key()), time.Since(p.lock.Keeper().Started())\n		q, h, err := p.lock.TryTakeLease(context.Background(), keeper.Terms{Number: int(size), Flags: protocol.FlagBlock})\n", "		sent := time.Since(p.lock.Keeper().Started())\n		q, h, err := p.lock.TryTakeLease(context.Background(), keeper.Terms{Number: int(size), Flags: protocol.FlagBlock})\n		since := p.names.version(p.lock.Key())\n", "ratelimit tests/Ahead"},
	{"a block outlasts Pause", "ratelimit/window.go", "	defer l.changed()\n	return l.lock.Pause(", "	return l.lock.Pause(", "ratelimit tests/Ahead"},
	{"a block outlasts SetLimit", "ratelimit/window.go", "	defer l.changed()\n	_, err := l.lock.Limit(ctx, limit)", "	_, err := l.lock.Limit(ctx, limit)", "ratelimit tests/Ahead"},
	{"a block of which a part was used is given back", "internal/ahead/permits.go", "used := b.Close(); used > 0 {", "used := b.Close(); used == b.Taken() {", "blocks"},
	{"a block is used five times too long", "internal/ahead/block.go", "ends: sent + ahead - ahead/drift}", "ends: sent + 5*ahead}", "blocks"},
	{"more than a block is granted", "internal/ahead/block.go", "	if left = b.left.Add(-n); left < 0 {", "	if left = b.left.Add(-1); left < 0 {", "blocks"},
	{"a block is used after its end", "internal/ahead/block.go", "at >= b.ends", "at < 0", "internal/ahead tests/Block"},
	{"a block is taken past the queue", "lua/policy/semaphore.lua", "  if call('EXISTS', queue) == 1 then return nil end\n", "  if call('EXISTS', queue) == 1 and not string.find(token, 'b%d*$') then return nil end\n", "ratelimit tests/Ahead"},
	{"a block is used past those who wait at the server", "internal/ahead/permits.go", "b != nil && p.waiting.Load() == 0 && b.since", "b != nil && b.since", "ratelimit tests/Ahead"},
	{"a lease that no caller got is reported as released", "internal/keeper/event.go", "now := !o.calls && !o.fails", "now := !o.calls", "fair"},
	{"a refusal outlives its time", "internal/ahead/permits.go", "	if at >= r.until {", "	if at < 0 {", "blocks"},
	// Options at their bounds, and pairs of features.
	{"a release is not repeated while Close waits", "internal/server/close.go", "		pause = min(pause, CloseTimeout/4)\n", "", "root tests/CloseRepeats"},
	{"the queue is kept for ten seconds", "lua/acquire.lua", "extend_expiry(queue, queue_ttl, rank == 0)\n  save", "extend_expiry(queue, 10000, rank == 0)\n  save", "fair"},
	{"renewals of an extended lease ask for the ttl of its lock", "internal/claim/lease.go", "		c.ttl, c.metadataAt = max(c.ttl, e.TTL), now\n", "		c.metadataAt = now\n", "fair"},
	{"an Extend goes beyond MaxLifetime", "internal/keeper/renewal.go", "	if err := CheckLifetime(ttl, h.lock.Rules.MaxLifetime, h.Since()); err != nil {\n		return h.lock.Fail(err)\n	}\n", "", "fair"},
	{"a break of a lease with a note is not told", "lua/break.lua", "local receivers = keeper and publish(", "local receivers = keeper and not string.find(token, '~') and publish(", "fair"},
	{"every attempt of a release is work of its own", "internal/keeper/effects.go", "	if a.Release && h.cleanup == nil {\n", "	if a.Release {\n", "delayed fair"},
	{"a ttl is cut to 32 bits", "internal/server/resource.go", "ttl := spec.TTL.Milliseconds()", "ttl := int64(int32(spec.TTL.Milliseconds()))", "fair"},
	{"an unknown waiter does not rejoin", "internal/keeper/queue.go", "		again = q.rejoin(unknown)\n", "", "fair"},
}

// TestMutants checks that each deliberate bug still applies. With -mutants its finder must find each.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Concat(mutants, packageMutants) {
		t.Run(strings.ReplaceAll(m.bug, " ", "_"), func(t *testing.T) {
			x := mutation.Mutant{File: m.file, Old: m.old, New: m.new}
			x.Source(t, root)
			pkg, which, ofPackage := strings.Cut(m.finds, " tests")
			primitive, isDelayed := strings.CutPrefix(m.finds, "delayed ")
			switch {
			case !*runMutants:
			case ofPackage:
				m.runTests(t, x, root, pkg, strings.TrimPrefix(which, "/"))
			case isDelayed:
				m.finds = primitive
				m.run(t, mutation.BuildWith(t, ".", delayed(t, root, &x)), "-delayed-effects")
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
	failed = regexp.MustCompile(`--- FAIL: (\S+)|panic: (lockkeeper: an event)`) // the second of a test whose logger panics at an event that cannot come
)

// runTests expects tests of a package to find the bug, which no schedule is likely to reach.
func (m mutant) runTests(t *testing.T, x mutation.Mutant, root, pkg, which string) {
	dir := filepath.Join(root, strings.TrimPrefix(pkg, "root"))
	skip := ""
	if pkg == "lua" {
		skip = rules
	}
	began := time.Now()
	cmd := exec.Command(x.BuildPackage(t, root, dir), "-test.run="+cmp.Or(which, "."), "-test.skip="+skip, "-test.failfast", "-test.timeout=5m")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	test := failed.FindSubmatch(out)
	if err == nil || test == nil {
		t.Fatalf("the mutant survived:\n%s", out)
	}
	t.Logf("| %s | `%s` | %s | %s | %.0f s | |", m.bug, m.file, m.finds, slices.Concat(test[1:]...), time.Since(began).Seconds())
}

// run expects the simulation in a test binary to report a broken promise.
func (m mutant) run(t *testing.T, binary string, args ...string) {
	began := time.Now()
	test := "^TestSimulation$/^" + m.finds + "$"
	switch m.finds {
	case "redlock":
		test = "^TestRedlockSimulation$"
	case "blocks":
		test = "^TestBlocksSimulation$"
	case "linger":
		test = "^TestLingerSimulation$"
	case "turns":
		test = "^TestLingerTurnsSimulation$"
	case "permits":
		test = "^TestLingerPermitsSimulation$"
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
