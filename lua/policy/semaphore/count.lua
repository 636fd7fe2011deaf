-- count: sets used and spent from c, of which the first two are their scores, or false.
used, spent = -(c[1] or 0), -(c[2] or 0)
if not c[1] and not c[2] then spent = call('ZCARD', lock) end
