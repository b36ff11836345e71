-- Dumps the connection of the trigger packet in both directions, without packets that carry no
-- data, such as TCP acknowledgments.
--
--   retroscope record -i eth0 --trigger 'tcp port 80' --dump-lua examples/dump-same-flow.lua
return function(trigger)
  local src, dst, src_port, dst_port = trigger:src(), trigger:dst(), trigger:src_port(), trigger:dst_port()
  if not src_port then return nil end

  local proto = trigger:proto()
  local here, there = net(src), net(dst)

  return function(pkt)
    if pkt:proto() ~= proto or pkt:payload_len() == 0 then return false end
    return (pkt:from(here) and pkt:to(there) and pkt:src_port() == src_port and pkt:dst_port() == dst_port)
      or (pkt:from(there) and pkt:to(here) and pkt:src_port() == dst_port and pkt:dst_port() == src_port)
  end
end
