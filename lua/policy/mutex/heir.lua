if outcome == GRANTED and not tombstone and not yields then heir = heads[1] end
