-- include: lib/metadata
-- include: lib/extend_expiry
-- include: lib/notice

-- write_tombstone refuses a copy of a token's request for ms; see lib/tombstone. The notice of a break stays beside it. It also removes
-- up to a hundred that have expired.
local function write_tombstone(token, ms)
  local expired = call('ZRANGE', tombstones, '-inf', now, 'BYSCORE', 'LIMIT', '0', '100')
  if expired[1] then call('ZREM', tombstones, unpack(expired)) end
  for _, member in ipairs(refused_until > now and notices_of(token) or {}) do call('ZADD', tombstones, now + ms, member) end
  call('ZADD', tombstones, now + ms, token)
  extend_expiry(tombstones, ms)
  refused_until = math.max(refused_until, now + ms)
  call('HSET', meta, 'tombstones', refused_until)
end
