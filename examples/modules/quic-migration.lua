-- Dumps QUIC connections whose client changes its address or port, as a telephone does that leaves the wireless network. After FlowScope's
-- module of the same purpose.
--
--   retroscope record -i eth0 --module examples/modules/quic-migration.lua
--
-- A flow is here what has the same destination connection identifier: RFC 8999, 5.1 and 5.2. Packets with a long header tell its length, those
-- with a short header do not; the first 8 bytes are taken of both, as far as there are so many. Google's QUIC before version 46 (flags in the
-- first byte, 8 bytes behind it where bit 3 says so) is read too: real captures have it.
local module = {}

local QUIC_PORT = 443
local LENGTH = 8

module.flowKeys = { "struct { char connection[8]; }" }
-- Where its packets came from first, as a packet tells it: "192.0.2.7 50123". IPv6 needs 45 bytes.
module.stateType = "struct { char client[51]; uint16_t client_port; uint32_t moves; }"

function module.extractFlowKey(pkt, key)
  -- Only what clients send: servers answer with an identifier of the client's.
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
    -- Short header, or an old one with an identifier: flags, identifier.
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

-- All that this client and its server say to each other, at the new place and the old one.
function module.buildPacketFilter(key, state)
  return "udp port " .. QUIC_PORT .. " and host $dstIP"
end

return module
