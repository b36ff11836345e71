-- Triggers on UDP over IPv4 whose payload begins with a string (listing 1 of the FlowScope paper).
--
--   retroscope record -i eth0 --trigger-lua examples/payload-begins-with.lua
local text = "EXAMPLE"

return function(pkt)
  return pkt:ip() == 4 and pkt:is_udp() and pkt:startswith(text)
end
