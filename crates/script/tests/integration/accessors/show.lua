-- Prints the results of the accessors for a packet. The test passes an offset as the packet's time.
local function hex(text)
  if text == nil then return "nil" end
  local digits = {}
  for n = 1, #text do digits[n] = ("%02x"):format(text:byte(n)) end
  return "<" .. table.concat(digits) .. ">"
end

local half = net("128.0.0.0/1")
local low = net("::/1")

return function(pkt)
  local at = tonumber(pkt:time_ns())
  print(pkt:len(), pkt:wire_len(), pkt:interface(), pkt:link_type(), pkt:inbound(), pkt:outbound())
  print(pkt:u8(at), pkt:u16(at), pkt:u32(at), hex(pkt:bytes(at, 3)), hex(pkt:bytes(at, 0)), pkt:u8(at + 0.5))
  print(pkt:ip(), pkt:proto(), pkt:is_tcp(), pkt:is_udp(), pkt:is_later_fragment(), pkt:src(), pkt:dst())
  print(pkt:src_port(), pkt:dst_port(), pkt:has_port(at), pkt:tcp_flags(), pkt:vlan(), pkt:ether_type())
  print(pkt:from(half), pkt:to(half), pkt:host(half), pkt:from(low), pkt:to(low), pkt:host(low))
  print(pkt:payload_len(), hex(pkt:payload()), hex(pkt:payload(2)))
  local some = pkt:bytes(at, 3) or "none"
  print(pkt:startswith(some), pkt:contains(some), pkt:startswith(""), pkt:contains(""))
  print(pkt:ttl(), pkt:tos(), pkt:tcp_seq(), pkt:tcp_ack(), pkt:tcp_window(), pkt:icmp_type(), pkt:icmp_code(), pkt:network_offset(), pkt:arp())
  local offset = pkt:payload_offset()
  return offset == nil or (offset >= 0 and offset <= pkt:len())
end
