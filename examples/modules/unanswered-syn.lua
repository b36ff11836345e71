-- Dumps TCP connection attempts without an answer: the second retransmission of a SYN triggers if
-- no packet of the other side was seen in the meantime.
--
--   retroscope record -i eth0 -w dumps --past 10s --module examples/modules/unanswered-syn.lua
local module = {}

local SYN, ACK, RST = 0x02, 0x10, 0x04
local ATTEMPTS = 3

-- SYNs of each side since the last packet of the other side. Index 0 is the key's first end, 1 the
-- second end.
module.stateType = "struct { uint8_t attempts[2]; }"

function module.handlePacket(key, state, pkt, isFirst)
  local flags = pkt:tcp_flags()
  if not flags then return false end
  local side = key:from_a() and 0 or 1
  state.attempts[1 - side] = 0
  if bit.band(flags, SYN + ACK + RST) ~= SYN then return false end
  state.attempts[side] = math.min(state.attempts[side] + 1, ATTEMPTS + 1)
  return state.attempts[side] == ATTEMPTS
end

return module
