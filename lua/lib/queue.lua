-- queue: the state of one run over the queue.

-- callers: token -> true, or the ms of the lease that it gets: requests that this script answers. They need no message.
-- granted: token -> {fence, until}: leases that this script has granted to callers.
-- rejected: token -> code: waiters that were removed because they have become ineligible.
-- unreachable: keeper -> true: it is not subscribed.
-- lapsed: waiters that were removed because their heartbeats had lapsed.
local callers, granted, rejected, unreachable, lapsed = {}, {}, {}, {}, {}

-- dequeue removes waiters and their heartbeats (see lib/heartbeats) from the queue: at most a few hundred tokens. It returns how
-- many members it has removed.
local function dequeue(tokens)
  local members = {}
  for i, token in ipairs(tokens) do members[2 * i - 1], members[2 * i] = token, '+' .. token end
  return members[1] and call('ZREM', queue, unpack(members)) or 0
end
