-- include: lib/metadata
-- include: lib/epoch

-- save_metadata writes the last fence, and keeps the meta hash for ttl ms. Where seq is ahead of the clock, as on a majority of
-- servers whose clocks differ, the hash is kept until the clock has reached it, so that fences do not fall. To save calls, the
-- expiry is looked at only in that case, or if the last fence was drawn in an earlier epoch, or if min_left
-- says so. It is extended if less than min_left ms are left (default: three quarters of ttl), and never shortened. So during an
-- epoch half of ttl is left at least. An unchanged sequence is written as well, so that the script fails on a read-only server,
-- unless has_written says that the script has already written something.
local function save_metadata(ttl, has_written, min_left)
  local stored = refused_until > now and -seq or seq
  if stored ~= saved_seq or not has_written then
    call('HSET', meta, 'seq', stored == now_us and now_us_text or stored)
  end
  if min_left or seq > now_us or saved_seq < now_us - now_us % epoch then
    local ahead = math.max(math.ceil(seq / 1000) - now, 0)
    if call('PTTL', meta) < ahead + (min_left or ttl * 3 / 4) then call('PEXPIRE', meta, ahead + ttl) end
  end
end
