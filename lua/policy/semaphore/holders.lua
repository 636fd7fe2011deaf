-- include: policy/leases/holders
-- include: policy/semaphore/load_limits
-- include: policy/semaphore/returned
local held_leases = holders

-- Where nothing is held, or by_clock is set, these are the tokens whose permits have not returned.
local function holders(after, token, count, by_clock)
  if not by_clock and not (at_once and at_once == math.huge) then return held_leases(after, token, count) end
  if not per then return {}, 0 end
  local member = token == '' and '' or '@' .. token
  local list, all, fences = page(returned(), -9007199254740991, after, member, count), {}, {}
  for i = 1, #list, 2 do fences[#fences + 1] = '#' .. string.sub(list[i], 2) end
  if #list > 0 then fences = call('ZMSCORE', lock, unpack(fences)) end
  for i = 1, #list, 2 do
    local score = tonumber(list[i + 1])
    all[#all + 1] = {string.sub(list[i], 2), tonumber(fences[(i + 1) / 2] or nil) or -score, return_in(score), score}
  end
  return all, call('ZCOUNT', lock, '-inf', string.format('%.0f', returned()))
end
