-- Triggers on the 50th TCP reset within a second of packet time.
--
--   retroscope record -i eth0 -w dumps --trigger-lua examples/rst-storm.lua --dump 'tcp[tcpflags] & tcp-rst != 0'
local LIMIT = 50
local RST = 0x04

local second, resets = nil, 0

return function(pkt)
  local flags = pkt:tcp_flags()
  if not flags or bit.band(flags, RST) == 0 then return false end
  local now = math.floor(pkt:time())
  if now ~= second then
    second, resets = now, 0
  end
  resets = resets + 1
  return resets == LIMIT
end
