-- include: policy/KIND/frees_in

-- retry_in is the ms after which a waiter of that rank should retry, because capacity may free up by itself; 0 if it need not.
-- Only the first few waiters retry, so that a long queue does not poll.
local function retry_in(rank)
  return rank < 3 and frees_in() or 0
end
