-- settings: the keeper's settings that do not change from call to call. They are one argument, because the server takes some time
-- for each, and have fixed places in it, because most scripts need only some of them:
--
--   <kind, 1 digit><metadata_ttl, 13 digits><channel_prefix>
--
--   kind            the sum of 1: messages go by sharded channels; 2: metadata_ttl is less than an hour; see lib/epoch
--   metadata_ttl    ms for which the metadata of a name is kept
--   channel_prefix  of the keepers' channels
local metadata_ttl = tonumber(string.sub(settings, 2, 14))
