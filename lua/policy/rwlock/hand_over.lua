if heir_purpose == 'w' then count_streak(heir, number) end
fence = next_fence()
put(heir, heir_until - now, fence, true, flags == RETAINING)
