-- Dumps all DNS packets of the client if the trigger packet is a DNS response, otherwise the flow
-- of the packet. The function returns a dump filter as for --dump, which runs without Lua.
--
--   retroscope record -i eth0 --trigger 'udp port 53' --dump-lua examples/dump-by-payload.lua
return function(trigger)
  -- The highest bit of the third byte of a DNS message is 1 in a response (RFC 1035, 4.1.1).
  local flags = trigger:payload_offset() and trigger:u8(trigger:payload_offset() + 2)
  if flags and flags >= 128 then
    return "host $dstIP and udp port 53" -- the client, with all its servers
  end
  return "$flow"
end
