-- score: of the member that has the fence of a lease. Wants retained: its process is to grant reads by it.
local score = fence == now_us and now_us_text or fence
if retained then score = fence + RETAINED - ENDLESS end
