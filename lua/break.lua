-- break: ends what the token of somebody else has, its lease or its place in the queue, tells its keeper so, and admits waiters.
-- KEYS[1] lock     the primitive's own key
-- KEYS[2] meta     hash: metadata of the name
-- KEYS[3] queue    zset: token -> place; heartbeats, see lib/heartbeats
-- KEYS[4] tombstones    zset: token -> ms until which its request is refused
-- ARGV[1] token    of the lease or the waiter
-- ARGV[2] settings     see lib/settings
-- ARGV[3] tombstone     ms during which a copy of its request is refused, and the waiter does not return to the queue
-- ARGV[4] policy_arg  semaphore: the limits in force, in case they are lost; empty for others
-- ARGV[5] notice   the word that the keeper gets with the token's serial; see lib/message
-- returns {code, 1 if its keeper was told, else 0, 1 if there is more to admit, else 0}. The code is
--         GRANTED: it had a lease | LEFT: it had a place | REFUSED: it had nothing, and nothing was done
-- writes KEYS[1..4], deletions first; work O(log n)
local token, settings, tombstone, notice = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5]
policy_arg = ARGV[4]
-- The lease was in use: what it has taken by the clock stays taken.
local cancel = '0'
-- include: policy/KIND/release
if ended then call('DEL', ended) end
-- include: lib/settings
-- include: lib/metadata
-- include: lib/save_metadata
-- include: lib/admit
-- include: lib/write_tombstone
-- A holder can be in the queue as well; see release.
if dequeue({token}) > 0 and outcome == REFUSED then outcome = LEFT end
if type_error or outcome == REFUSED then return type_error or {REFUSED, 0, 0} end
write_tombstone(token, tombstone)
-- For whom the message does not reach; inspect finds it.
call('ZADD', tombstones, now + tombstone, token .. ' ' .. notice)

local told, keeper, serial = 0, string.match(token, TOKEN, -199)
if keeper and subscribed(keeper) then
  -- publish counts a message that the server does not allow as received.
  local receivers = pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel_prefix .. keeper, serial .. ' ' .. notice)
  if type(receivers) == 'number' and receivers > 0 then told = 1 end
end
head_stale = true
local more = admit()
save_metadata(metadata_ttl)
return {outcome, told, more}
