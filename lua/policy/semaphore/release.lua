-- include: lib/clock
-- include: policy/semaphore/remove
outcome = remove(token, cancel == '1') and GRANTED or REFUSED
-- Permits that would have returned by the clock are available sooner than the first waiter was told.
freed = cancel == '1' and outcome == GRANTED
