-- rwlock: many may hold the lock for reading, or one for writing. The first letter of a token's flags is its purpose:
--   r  to read
--   w  to write; its number is the maximum writer streak, 0: unlimited
--   u  an upgrade: to write, in place of the token's own read lease
--   d  a downgrade: to read, in place of the token's own write lease
-- A k after an r, and the policy_arg 'retain' in acquire, say that the process of a read lease retains it: it grants reads
-- inside until it is recalled. In the queue an upgrade is before all writers, and writers before all readers, each in order of
-- arrival; see place. The meta hash has besides: streak, the writers in a row that have passed waiting readers; pass, the place
-- up to which readers go before the next writer; upgrade, the tokens of the waiting upgrade and of its read lease.
-- include: lib/token
local RETAIN, RETAINING = 'retain', 'rk'

-- purpose_of is the letter, or nil for another library's token. r and d are read leases; w, u and nil are write leases.
local function purpose_of(token)
  return string.match(token, FLAG, -20)
end
