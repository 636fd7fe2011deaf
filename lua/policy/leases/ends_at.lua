-- include: policy/leases/scores

-- ends_at is when the token's lease ends, or nil. score is the token's, if it is known.
local function ends_at(token, score)
  local at = tonumber(score or call('ZSCORE', lock, token) or 0)
  return at > now and at <= tonumber(ENDLESS) and at or nil
end
