-- include: lib/metadata

-- left_free returns for how many ms more the key is left free for clients of other libraries, or nil: see lib/yield. It is bounded by
-- the whole time, in case the clock was set back.
local function left_free()
  if refused_until <= now then return nil end
  local last, ms = string.match(call('HGET', meta, 'yield') or '', '^(%d+) (%d+)$')
  local left = last and last - now or 0
  return left > 0 and left <= tonumber(ms) and left or nil
end
