-- Tells each 5 seconds how many flows there are, how much they carried, and which were the largest. After FlowScope's liveStatistician.
--
--   retroscope record -i eth0 --module examples/modules/live-statistician.lua
local module = {}

local INTERVAL = 5 -- seconds
local IDLE = 30 -- a flow is over when no packet came for so many seconds
local TOP = 5 -- flows told by name

module.mode = "direct"

-- Of each flow: what it carried since the last check, and in all.
module.stateType = [[struct {
  uint64_t packets;
  uint64_t bytes;
  uint64_t all_bytes;
  double last_seen;
}]]

function module.handlePacket(key, state, pkt, isFirst)
  state.packets = state.packets + 1
  state.bytes = state.bytes + pkt:wire_len()
  state.last_seen = pkt:time()
  return false
end

module.checkInterval = INTERVAL

function module.checkInitializer(check, now)
  check.seconds = check.now and now - check.now or INTERVAL
  check.now = now
  check.flows, check.packets, check.bytes, check.top = 0, 0, 0, {}
end

function module.checkExpiry(key, state, check)
  local packets, bytes = tonumber(state.packets), tonumber(state.bytes)
  state.all_bytes = state.all_bytes + state.bytes
  state.packets, state.bytes = 0, 0
  check.flows = check.flows + (packets > 0 and 1 or 0)
  check.packets, check.bytes = check.packets + packets, check.bytes + bytes
  -- The largest first; a list this short needs no sorting.
  local top, at = check.top, 1
  while at <= TOP and top[at] and top[at].bytes >= bytes do at = at + 1 end
  if packets > 0 and at <= TOP then
    table.insert(top, at, { bytes = bytes, text = tostring(key) })
    top[TOP + 1] = nil
  end
  return check.now - state.last_seen > IDLE, state.last_seen
end

function module.checkFinalizer(check, kept, purged)
  local seconds = math.max(check.seconds, 0.001)
  print(string.format("%d active flows of %d, %d over, %.0f packets/s, %.3f Mbit/s", check.flows, kept + purged, purged,
    check.packets / seconds, check.bytes * 8 / seconds / 1e6))
  for _, flow in ipairs(check.top) do
    print(string.format("  %.3f Mbit/s  %s", flow.bytes * 8 / seconds / 1e6, flow.text))
  end
end

return module
