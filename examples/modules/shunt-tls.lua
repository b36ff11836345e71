-- Keeps the readable part of TLS: the handshake, with names and certificates, and the first
-- encrypted record of each side. The rest of the connection is shunted: it is not recorded, except
-- SYN, FIN and RST, unless a trigger matches a packet of the connection.
--
--   retroscope record -i eth0 --ring 4GiB --module examples/modules/shunt-tls.lua --trigger 'icmp[0] = 3'
local module = {}

-- Content types of records: RFC 8446, section 5.1. In TLS 1.3 the server's encrypted handshake has
-- the type of application data too.
local HANDSHAKE, APPLICATION_DATA = 22, 23
local RECORDS = 16 -- number of records that are inspected in a segment

-- For each direction: whether a handshake was seen, and whether data was seen.
module.stateType = "struct { bool hello[2], data[2]; }"

function module.handlePacket(key, state, pkt, isFirst)
  if pkt:is_tcp() and not (state.data[0] and state.data[1]) then
    local side = key:from_a() and 0 or 1
    local at, left = pkt:payload_offset(), pkt:payload_len()
    for _ = 1, RECORDS do
      -- A record's header: type, version 3.x, length.
      if not at or left < 5 or pkt:u8(at + 1) ~= 3 then break end
      local kind, length = pkt:u8(at), pkt:u16(at + 3)
      if kind == HANDSHAKE then
        state.hello[side] = true
      elseif kind == APPLICATION_DATA and state.hello[0] and state.hello[1] then
        state.data[side] = true
      end
      at, left = at + 5 + length, left - 5 - length
    end
  end
  -- Repeat this for each packet that still arrives: the recorder may have lost the mark.
  if state.data[0] and state.data[1] then pkt:shunt() end
  return false
end

return module
