-- channels: how the keepers' channels are named, and whether they are sharded. Wants settings, see lib/settings.
local sharded, channel_prefix = string.byte(settings) % 2 == 1, string.sub(settings, 15)
