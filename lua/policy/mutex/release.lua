outcome = REFUSED
local owner = pcall('GET', lock)
if owner == token then
  ended = lock
  outcome = GRANTED
elseif type(owner) == 'table' then
  type_error = owner
end
