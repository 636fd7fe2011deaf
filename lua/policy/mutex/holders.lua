-- include: lib/token

-- The lease of another library has no fence.
local function holders(after, token)
  local owner = pcall('GET', lock)
  if type(owner) == 'table' then type_error = owner end
  if type(owner) ~= 'string' then return {}, 0 end
  if token ~= '' then return {}, 1 end
  return {{owner, string.match(owner, TOKEN, -199) and seq or 0, call('PTTL', lock), 0}}, 1
end
