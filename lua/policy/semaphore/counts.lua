-- include: policy/semaphore/state

-- read_counts sets used and spent. It returns the score of a token's lease and of what it took by the clock.
local function read_counts(token)
  local c = call('ZMSCORE', lock, 'used', 'spent', token, '@' .. token)
  -- inline: policy/semaphore/count
  return tonumber(c[3] or nil), tonumber(c[4] or nil)
end

-- full says whether so many permits may not be had now, the expired ones included that are not swept yet.
local function full(n, holds, by_clock)
  return holds and used + n > at_once or by_clock and (spent + n > window or pause_left > 0)
end
