-- include: policy/rwlock/flags

-- purpose_of is a token's purpose.
local function purpose_of(token)
  return string.match(token, FLAG, -20)
end
