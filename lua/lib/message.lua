-- message: publishes to a keeper's channel. A message is a list of pairs, of which each is a serial with a fence (the lease was
-- granted), with a negative number of ms (retry then; -1: at once), or with a word that begins with broken (somebody has ended this
-- lease or request; see break).

-- channel_of returns the channel of a keeper, which its id says (see lib/constants), and the commands that count its subscribers and
-- publish to it. It returns nil if the id does not say it.
local function channel_of(keeper)
  local way, tag = string.match(keeper, WAY), string.match(meta, '^(.*):[^:]*:meta$')
  if way == 's' then return tag .. ':wake:' .. keeper, 'SHARDNUMSUB', 'SPUBLISH' end
  local length = tonumber(way)
  if not length then return nil end
  return string.sub(string.match(tag, '^{([^}]*)}$') or tag, 1, length) .. 'wake:' .. keeper, 'NUMSUB', 'PUBLISH'
end

-- subscribed says whether a keeper has subscribed at this server, or true if that is not known: the server, or the keeper's id, does not
-- say.
local function subscribed(keeper)
  local channel, numsub = channel_of(keeper)
  local count = channel and pcall('PUBSUB', numsub, channel)
  return not count or not count[2] or count[2] > 0
end

-- publish publishes a message, and returns how many have received it, or nil if that is not known. Nobody may rely on it: it also
-- reaches a subscriber at a replica, which is not counted.
local function publish(keeper, text)
  local channel, _, command = channel_of(keeper)
  local receivers = channel and pcall(command, channel, text)
  return type(receivers) == 'number' and receivers or nil
end

-- send publishes a message, unless the keeper is not subscribed here, and says whether it was received, as far as is known. A
-- subscriber at a replica would receive the message without being counted, and would rely on a grant that is undone.
local function send(keeper, text)
  return subscribed(keeper) and publish(keeper, text) ~= 0
end
