-- queue: the state of one run over the queue.

-- callers: token -> true, or the ms of the lease that it gets: requests that this script answers. They need no message.
-- granted: token -> {fence, until}: leases that this script has granted to callers.
-- rejected: token -> code: waiters that were removed because they have become ineligible.
-- unreachable: keeper -> true: it is not subscribed.
-- lapsed: waiters that were removed because their heartbeats had lapsed.
local callers, granted, rejected, unreachable, lapsed = {}, {}, {}, {}, {}

-- dequeue removes waiters from the queue: at most a few hundred tokens.
local function dequeue(tokens)
  if #tokens == 0 then return end
  call('ZREM', queue, unpack(tokens))
  call('ZREM', heartbeats, unpack(tokens))
end
