-- Dumps flows whose packets from one side come with very different times to live: another route, a spoofed packet, or somebody who injects
-- packets (a reset from a middlebox has rarely come as many hops as its supposed sender's packets). After FlowScope's TTL analysis.
--
--   retroscope record -i eth0 --module examples/modules/ttl.lua
local module = {}

local DIFFERENCE = 5 -- hops; routes differ by one or two all the time

-- By direction: from the key's first end, and from its second one.
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
