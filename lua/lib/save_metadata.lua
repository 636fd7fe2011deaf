-- include: lib/metadata

-- save_metadata writes the last fence and the last ticket, and keeps the meta hash for ttl ms. Where seq is ahead of the
-- clock, as on a majority of servers whose clocks differ, the hash is kept until the clock has reached it, so that fences do
-- not fall. To save a call, the expiry is extended only if less than min_left ms are left (default: half of ttl); it is never
-- shortened. An unchanged sequence is written as well, so that the script fails on a read-only server, unless has_written
-- says that the script has already written something.
local function save_metadata(ttl, has_written, min_left)
  local from = math.max(now, math.ceil(seq / 1000))
  local change = {'seq', tombstones > now and -seq or seq}
  if ticket ~= saved_ticket then change[3], change[4] = 'ticket', ticket end
  if kept < from + (min_left or ttl / 2) then
    call('HSET', meta, 'kept', from + ttl, unpack(change))
    call('PEXPIRE', meta, from + ttl - now)
  elseif change[3] or change[2] ~= saved_seq or not has_written then
    call('HSET', meta, unpack(change))
  end
end
