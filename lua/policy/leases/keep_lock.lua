-- keep_lock keeps the lock's key for as long as a lease of ms from now lasts. fresh says that there is no other lease in it.
-- longest is what the key is kept for already, in ms from now.
local longest = 0
local function keep_lock(ms, fresh)
  if fresh then
    call('PEXPIRE', lock, ms)
  elseif ms - longest <= 0 then
    return
  elseif call('PEXPIRE', lock, ms, 'GT') == 0 then
    call('PEXPIRE', lock, ms, 'NX')
  end
  longest = ms
end
