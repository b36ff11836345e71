-- Prints every 5 seconds the number of flows, their packets and bits per second, and the largest
-- flows. Like FlowScope's liveStatistician.
--
--   retroscope record -i eth0 --module examples/modules/live-statistician.lua
local module = {}

local INTERVAL = 5 -- seconds
local IDLE = 30 -- seconds without a packet after which a flow ends
local TOP = 5 -- number of flows in the list of the largest

module.mode = "direct"

-- `packets` and `bytes` count since the last check, `all_bytes` since the flow began.
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
  -- Insert in order, largest flow first.
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
