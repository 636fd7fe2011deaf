-- token: the grammar of a token. It identifies one request and the lease that the request leads to, and says what was asked
-- for, so that a script can grant it to a waiter in another process without any other record:
--
--   <keeper>:<serial>:<ttl>.<claim_ttl><flags><number>
--
--   keeper     the id of the process's keeper. Its messages go to the channel <channel_prefix><keeper>
--   serial     of the request in its keeper: 8 random letters and digits, so that others cannot forge messages about it
--   ttl        ms of the lease
--   claim_ttl  ms of an unconfirmed lease: one granted to a waiter, by a message or in the reply to a heartbeat
--   flags      lower-case letters. s: the keeper cannot subscribe, and learns of a grant by its next heartbeat. Others
--              belong to the policy: r w u d k of rwlock, k of mutex, h c of semaphore, f of redlock
--   number     of the policy: the permits of a semaphore, the maximum writer streak of a rwlock's w, the count of a rwlock's u,
--              the least fence of a redlock's f; else empty
--
-- This pattern takes a token apart: string.match(token, TOKEN, -199) gives the six parts in this order as strings, or nil for a token
-- of another library. Whoever may write a key can put any text there, and to match the pattern can take time proportional to the
-- square of the length. So it is given only the last 199 bytes, and no token of ours is longer.
local TOKEN = '^([^:]+):([^:]+):(%d+)%.(%d+)(%l*)(%d*)$'

-- string.match(token, FLAG, -20) is the first flag, at less cost than TOKEN; nil if there is none.
local FLAG = '%.%d+(%l)%l*%d*$'
