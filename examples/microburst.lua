-- Triggers if more than 1 MB arrives within a millisecond of packet time (8 Gbit/s). This burst
-- fills the buffers of a switch, although the average over a second is low.
--
--   retroscope record -i eth0 -w dumps --trigger-lua examples/microburst.lua --dump '' --past 50ms --future 50ms
local LIMIT = 1000000 -- bytes on the wire

local millisecond, bytes = nil, 0

return function(pkt)
  local now = math.floor(pkt:time() * 1000)
  if now ~= millisecond then
    millisecond, bytes = now, 0
  end
  local before = bytes
  bytes = bytes + pkt:wire_len()
  return before <= LIMIT and bytes > LIMIT
end
