if outcome == GRANTED and not tombstone then heir = heads[1] end
