-- facts: the small facts of a name, which lie in the meta hash. seq is the last fence that was given out; kept is until
-- when the hash is sure to live; graves is until when there are buried tokens; limits is what a semaphore is held to.
-- include: clock
local fact = call('HMGET', meta, 'seq', 'kept', 'tombstones', 'limits')
local seq, kept, tombstones = tonumber(fact[1]) or 0, tonumber(fact[2]) or 0, tonumber(fact[3]) or 0
local limits, saved = fact[4], seq

-- draw gives the next fence: larger than every one before it, also after the facts were lost, because time has passed.
local function draw_fence()
  if now_us > seq then seq = now_us else seq = seq + 1 end
  return seq
end

-- save_metadata writes the sequence, and keeps the hash for idle ms, and until the clock has come to the sequence if that is
-- ahead of it: fences of several servers with clocks of their own can be, and are not to fall. To spare a call it extends the
-- expiry only when less than least ms are left, half of idle if it is not given. It never shortens the expiry: another caller
-- may need the hash for longer. It writes also what has not changed, so that a script fails where nothing can be written
-- any more, unless wrote says that it has tried already.
local function save_metadata(idle, wrote, least)
  local from = math.max(now, math.ceil(seq / 1000))
  if kept < from + (least or idle / 2) then
    call('HSET', meta, 'seq', seq, 'kept', from + idle)
    call('PEXPIRE', meta, from + idle - now)
  elseif seq ~= saved or not wrote then
    call('HSET', meta, 'seq', seq)
  end
end
