-- A dump whose expression depends on the trigger packet: its text is compiled like that of --dump, and runs without Lua.
--
--   retroscope record -i eth0 --trigger 'udp port 53' --dump-lua examples/dump-by-payload.lua
return function(trigger)
  -- The third byte of a DNS message tells a response from a query.
  local flags = trigger:payload_offset() and trigger:u8(trigger:payload_offset() + 2)
  if flags and flags >= 128 then
    return "host $dstIP and udp port 53" -- the client, whoever it asks
  end
  return "$flow"
end
