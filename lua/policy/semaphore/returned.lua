-- include: policy/semaphore/state

-- returned is a bound of the scores of @tokens: permits with a larger one have returned. A window holds both of its ends.
local function returned()
  return per * 1000 - now_us
end

-- return_in is the ms until permits return that were taken at -score; 0 if they have.
local function return_in(score)
  return math.max(math.ceil((per * 1000 + 1 - score - now_us) / 1000), 0)
end
