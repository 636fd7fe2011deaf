-- include: lib/token

-- The lease of another library has no fence.
local function holders(skip)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then type_error = owner end
  if type(owner) ~= 'string' or skip > 0 then return {} end
  return {{owner, string.match(owner, TOKEN) and seq or 0, call('PTTL', lock)}}
end
