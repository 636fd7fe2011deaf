-- include: policy/leases/fence_at
-- include: policy/leases/page
local function holders(after, token, count)
  local list, all, fences = page(now + 1, tonumber(ENDLESS), after, token, count), {}, {}
  for i = 1, #list, 2 do fences[#fences + 1] = '#' .. list[i] end
  if #list > 0 then fences = call('ZMSCORE', lock, unpack(fences)) end
  for i = 1, #list, 2 do
    all[#all + 1] = {list[i], fence_at(fences[(i + 1) / 2]) or 0, list[i + 1] - now, tonumber(list[i + 1])}
  end
  return all, call('ZCOUNT', lock, '(' .. now, ENDLESS)
end
