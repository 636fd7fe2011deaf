-- message: publishes to a keeper's channel. A message is a list of pairs, of which each is a serial with a fence (the lease was
-- granted), with a negative number of ms (retry then; -1: at once), with the word recall (give this lease back), or with a word that
-- begins with broken (somebody has ended this lease or request; see break).

-- subscribed says whether a keeper has subscribed at this server, or true if the server does not say.
local function subscribed(run, keeper)
  local sharded, channel = string.sub(run.settings, 1, 1) == '1', string.sub(run.settings, 15) .. keeper
  local count = pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)
  return not count[2] or count[2] > 0
end

-- reachable says whether a waiter can receive a message, or needs none.
local function reachable(run, keeper, flags)
  if run.unreachable[keeper] then return false end
  return string.find(flags, 's', 1, true) ~= nil or subscribed(run, keeper)
end

-- publish publishes a message, and returns how many have received it, or the error if the server does not allow it. Nobody knows
-- whether a subscriber has received it.
local function publish(run, keeper, text)
  local sharded, channel = string.sub(run.settings, 1, 1) == '1', string.sub(run.settings, 15) .. keeper
  return pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, text)
end

-- send publishes a message and returns how many have received it: 1 if the server does not allow it. It does not if the keeper is not
-- subscribed here: a subscriber at a replica would receive the message without being counted, and would rely on a grant that is
-- undone.
local function send(run, keeper, text)
  if not subscribed(run, keeper) then return 0 end
  local receivers = publish(run, keeper, text)
  return type(receivers) == 'table' and 1 or receivers
end
