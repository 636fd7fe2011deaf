-- settings: the keeper's settings, which do not change from call to call. They are one argument, because the server takes
-- some time for each, and most scripts end before they need them:
--
--   <metadata_ttl> <heartbeat_ttl> <sharded> <channel_prefix>
--
--   metadata_ttl    ms for which the metadata of a name is kept
--   heartbeat_ttl   ms for which a heartbeat counts
--   sharded         1: messages go by sharded channels, 0: by plain ones
--   channel_prefix  of the keepers' channels
local metadata_ttl, heartbeat_ttl, sharded, channel_prefix = string.match(settings, '^(%d+) (%d+) ([01]) (.*)$')
metadata_ttl, heartbeat_ttl = tonumber(metadata_ttl), tonumber(heartbeat_ttl)
