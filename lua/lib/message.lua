-- message: publishes to a keeper's channel. A message is a list of pairs, of which each is
-- a serial with a fence (the lease was granted), with a negative number of ms (retry then), with -1 (retry at once), or with
-- the word recall (give this lease back; see policy/rwlock/recall and policy/mutex/recall), or with a word that begins with broken
-- (somebody has ended this lease or request; see break).
-- include: lib/channels

-- subscribed says whether a keeper has subscribed at this server, or true if the server does not say.
local function subscribed(keeper)
  local channel = channel_prefix .. keeper
  -- inline: lib/listens
  return listens
end

-- send publishes a message and returns how many have received it: 1 if the server does not allow it. It does not if the keeper is not
-- subscribed here: a subscriber at a replica would receive the message without being counted, and would rely on a grant that is
-- undone.
local function send(keeper, text)
  if not subscribed(keeper) then return 0 end
  local receivers = pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel_prefix .. keeper, text)
  return type(receivers) == 'table' and 1 or receivers
end

-- grant_message is the pair that notifies a waiter of its grant.
local function grant_message(serial, fence)
  return serial .. ' ' .. (fence == now_us and now_us_text or string.format('%.0f', fence))
end
