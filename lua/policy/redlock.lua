-- redlock: the part that one server has in a lock on a majority of servers. It is a mutex, under the mutex's keys. The token may name the
-- least fence that its lease is to have: the requester computes it from the clocks of all servers, in ms, so that all give the same
-- fence.

-- draw_fence draws a fence in whole ms if the last one is known; after the metadata was lost the first one, in µs, is larger than those.
local function draw_fence(run)
  if run.seq == 0 then return next_fence(run) end
  return math.max(now * 1000, run.seq + 1)
end

local function ask(run, token, ttl)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then
    run.type_error = owner
    return nil
  end
  if owner and owner ~= token or left_free(run) then return nil end
  if owner then extend_expiry(lock, ttl) else call('SET', lock, token, 'PX', ttl) end
  local _, _, _, _, flags, number = string.match(token, TOKEN, TOKEN_FROM)
  local least = flags and string.find(flags, 'f', 1, true) and tonumber(number) or 0
  run.seq = math.max(owner and run.seq > 0 and run.seq or draw_fence(run), least)
  return GRANTED, run.seq
end
