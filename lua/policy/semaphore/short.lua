-- short: reads what the short forms need. ready says that the metadata needs nothing else (see lib/last), that the caller knows
-- the limits, and that the time is larger than the last fence, as it is unless the clock was set back: so it is the next one,
-- and stamp is its text. drawn is the fence, once a short form has granted it.
-- include: lib/stamp
-- include: lib/epoch
local flags, number = string.match(token, TERMS, TERMS_FROM)
local stored = flags == 'h' and call('HMGET', meta, 'seq', 'limits') or call('HMGET', meta, 'seq', 'limits', 'window')
local last, drawn, retry_after = tonumber(stored[1] or 0) or 0, nil, nil
local ready = last > 1e12 and last < now_us and last >= now_us - now_us % epoch and stored[2] == policy_arg .. ' ' .. policy_arg
