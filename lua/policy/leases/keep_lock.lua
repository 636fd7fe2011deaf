-- keep_lock keeps the lock's key for as long as a lease of ms from now lasts. fresh says that there is no other lease in it.
-- longest is what the key is kept for already, in ms from now.
local longest = 0
local function keep_lock(ms, fresh)
  ms = tonumber(ms)
  if fresh then
    call('PEXPIRE', lock, ms + 1000)
  elseif ms <= longest then
    return
  elseif call('PEXPIRE', lock, ms + 1000, 'GT') == 0 then
    call('PEXPIRE', lock, ms + 1000, 'NX')
  end
  longest = ms
end
