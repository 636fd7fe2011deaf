local function ticket_of(at)
  return at
end
