-- Dumps all packets from or to the network of the trigger packet's source: a /24 of IPv4 or a /64
-- of IPv6.
--
--   retroscope record -i eth0 --trigger 'udp port 60000' --dump-lua examples/dump-same-net.lua
return function(trigger)
  local ip = trigger:ip()
  if not ip then
    return nil -- no IP, no dump
  end
  local name = trigger:src() .. (ip == 4 and "/24" or "/64")
  local source = net(name)

  -- The second result is the name of the dump in reports. Triggers with the same name share a dump.
  return function(pkt)
    return pkt:host(source)
  end, "net " .. source.text
end
