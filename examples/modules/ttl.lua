-- Dumps flows whose packets from one side have very different times to live. Reasons are another
-- route, spoofed packets, or injected packets: a reset from a middlebox has rarely passed as many
-- hops as packets of its supposed sender. Like FlowScope's TTL analysis.
--
--   retroscope record -i eth0 --module examples/modules/ttl.lua
local module = {}

local DIFFERENCE = 5 -- hops; differences of one or two are normal

-- For each direction. Index 0 is packets of the key's first end, 1 of the second end.
module.stateType = "struct { uint8_t least[2], most[2]; bool told; }"

function module.handlePacket(key, state, pkt, isFirst)
  local ttl = pkt:ttl()
  if not ttl or state.told then return false end
  local n = key:from_a() and 0 or 1
  if state.most[n] == 0 then
    state.least[n], state.most[n] = ttl, ttl
    return false
  end
  state.least[n] = math.min(state.least[n], ttl)
  state.most[n] = math.max(state.most[n], ttl)
  if state.most[n] - state.least[n] < DIFFERENCE then return false end
  state.told = true
  print(string.format("%s: times to live from %s are %d to %d", tostring(key), pkt:src(), state.least[n], state.most[n]))
  return true
end

return module
