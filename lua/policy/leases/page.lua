-- page lists at most count members of the lock's key, and their scores, in a range of scores: from first to last, downward if that is
-- less. It begins behind member, which had the score after; at first if member is empty, or if after is not in the range. If
-- member has another score by now, or none, it begins with the members that have the score after: these can be listed again.
local function page(first, last, after, member, count)
  local down, command, rank = first > last, {'ZRANGE', lock}, nil
  local function add(...)
    for _, x in ipairs({...}) do command[#command + 1] = x end
  end
  after = member ~= '' and tonumber(after) or first
  if after < math.min(first, last) or after > math.max(first, last) then after, member = first, '' end
  if member ~= '' and tonumber(call('ZSCORE', lock, member) or nil) == after then rank = call('ZRANK', lock, member) end
  if rank then
    if down then rank = call('ZCARD', lock) - 1 - rank end
    add(rank + 1, rank + count)
  else
    add(string.format('%.0f', after), string.format('%.0f', last), 'BYSCORE')
  end
  if down then add('REV') end
  if not rank then add('LIMIT', 0, count) end
  add('WITHSCORES')
  local list = call(unpack(command))
  -- By rank, the list may go on behind the range.
  while #list > 0 and not down and tonumber(list[#list]) > last do
    list[#list], list[#list - 1] = nil, nil
  end
  return list
end
