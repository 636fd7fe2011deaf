-- notice: finds what break has left beside a token's tombstone: members of the same zset with the same score, '<token> <notice>'.

-- notices_of returns those members of a token. It looks at five hundred with that score at most.
local function notices_of(token)
  local list, start = {}, token .. ' '
  local at = call('ZSCORE', tombstones, token)
  for _, member in ipairs(at and call('ZRANGE', tombstones, at, at, 'BYSCORE', 'LIMIT', '0', '500') or {}) do
    if string.sub(member, 1, #start) == start then list[#list + 1] = member end
  end
  return list
end
