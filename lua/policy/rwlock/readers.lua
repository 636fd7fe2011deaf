-- READERS is how much further back in the queue readers are than writers. The numbers are exact until the year 2112.
local READERS = '4500000000000000'
