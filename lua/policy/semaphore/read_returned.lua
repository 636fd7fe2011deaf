-- read_returned: what take may count on.
--   sweeps_all   there is room, and what has returned can be removed by one command, which says how many permits it was
--   gone         else members to remove, of up to a hundred @tokens that have returned, and returned_n, their permits
--   full_since   µs at which the oldest was taken, if the request waits for that one alone
local few = spent < 1000 or now_us - last < 10000
local sweeps_all = oldest and few and spent + n <= window
local gone, returned_n, full_since = {}, 0, nil
if spent > 0 and not sweeps_all then
  for i, member in ipairs(call('ZRANGE', lock, TAKEN, 1 - since, 'BYSCORE', 'REV', 'LIMIT', '0', '100')) do
    local flags, permits = string.match(member, TERMS, TERMS_FROM)
    returned_n = returned_n + permits
    -- A token that holds permits as well, since it is of a caller with other limits, keeps its fence.
    gone[2 * i - 1], gone[2 * i] = member, string.find(flags, 'h', 1, true) and member or '#' .. string.sub(member, 2)
  end
  if #gone == 0 and n == 1 and spent == window then
    full_since = string.sub(call('ZRANGE', lock, TAKEN, '-inf', 'BYSCORE', 'REV', 'LIMIT', '0', '1', 'WITHSCORES')[2], 2)
    newest = string.sub(call('ZRANGE', lock, '0', '0', 'WITHSCORES')[2], 2)
  end
end
