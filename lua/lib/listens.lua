-- listens: whether somebody has subscribed to the channel at this server, or true if the server does not say.
local count = pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)
local listens = not count[2] or count[2] > 0
