-- Triggers on UDP from or to a port, like the filter `udp port 60000`.
--
--   retroscope record -i eth0 --trigger-lua examples/udp-port.lua
local port = 60000

return function(pkt)
  return pkt:is_udp() and pkt:has_port(port)
end
