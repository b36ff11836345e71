-- Dumps QUIC connections whose client changes its address or port, for example a telephone that
-- leaves the wireless network. FlowScope has a module for the same purpose.
--
--   retroscope record -i eth0 --module examples/modules/quic-migration.lua
--
-- Packets with the same destination connection identifier are one flow (RFC 8999, 5.1 and 5.2).
-- Only long headers have the identifier's length, so the module compares the first 8 bytes in both
-- kinds of headers. Packets with a shorter identifier are skipped. The module also reads Google's
-- QUIC before version 46, which real captures contain: flags in the first byte, and after it 8
-- bytes of identifier if bit 3 is set.
local module = {}

local QUIC_PORT = 443
local LENGTH = 8

module.flowKeys = { "struct { char connection[8]; }" }
-- Last known address and port of the client. The text of an IPv6 address needs up to 45 bytes.
module.stateType = "struct { char client[51]; uint16_t client_port; uint32_t moves; }"

function module.extractFlowKey(pkt, key)
  -- Only packets of clients: packets of servers have the client's identifier.
  if not pkt:is_udp() or pkt:dst_port() ~= QUIC_PORT or pkt:is_later_fragment() then return false end
  local start, length = pkt:payload_offset(), pkt:payload_len()
  if not start or length < 1 + LENGTH then return false end
  local first = pkt:u8(start)
  local at
  if bit.band(first, 0x80) ~= 0 then
    -- Long header: flags, version, length of the identifier, identifier.
    local id_length = pkt:u8(start + 5)
    if not id_length or id_length < LENGTH or length < 6 + LENGTH then return false end
    at = start + 6
  elseif bit.band(first, 0x40) ~= 0 or bit.band(first, 0x08) ~= 0 then
    -- Short header, or old Google QUIC with an identifier: flags, identifier.
    at = start + 1
  else
    return false
  end
  local id = pkt:bytes(at, LENGTH)
  if not id then return false end
  key.connection = id
  return true
end

function module.handlePacket(key, state, pkt, isFirst)
  local source, port = pkt:src(), pkt:src_port()
  if isFirst then
    state.client, state.client_port = source, port
    return false
  end
  if state.client == source and state.client_port == port then return false end
  print(string.format("%s %d is at %s %d now", state.client, state.client_port, source, port))
  state.client, state.client_port = source, port
  state.moves = state.moves + 1
  return true
end

-- All QUIC packets of the server, so the dump has the client's old and new address.
function module.buildPacketFilter(key, state)
  return "udp port " .. QUIC_PORT .. " and host $dstIP"
end

return module
