-- include: lib/fence
if outcome == GRANTED and not tombstone then heir = call('ZRANGE', queue, '0', '0')[1] end
