-- recall: notifies the process that retains the owner's lease that somebody else asks for the lock. Wants owner and TOKEN. It does so
-- once: the meta field recalled is then the owner, so that renew replies that it was recalled. If memory is full, or without
-- metadata, the field is not written, and each request notifies. Nobody knows whether the message was received, so it frees nothing.
-- inline: lib/channels
local keeper, serial, _, _, flags = string.match(owner, TOKEN, -199)
if flags == 'k' and call('HGET', meta, 'recalled') ~= owner then
  if seq > 0 then pcall('HSET', meta, 'recalled', owner) end
  pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel_prefix .. keeper, serial .. ' recall')
end
