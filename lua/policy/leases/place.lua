local function place(ticket)
  return ticket
end
