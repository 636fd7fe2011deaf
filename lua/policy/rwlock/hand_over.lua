if heir_purpose == 'w' then count_streak(heir, number) end
local retained = flags == RETAINING
-- inline: policy/rwlock/score
call('ZADD', lock, heir_until, heir, score, '#' .. heir)
call('PEXPIRE', lock, claim_ttl)
