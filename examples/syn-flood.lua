-- Triggers on the 1,000th TCP connection request to one host within a second of packet time.
--
--   retroscope record -i eth0 --trigger-lua examples/syn-flood.lua --dump 'host $dstIP and tcp'
local limit = 1000
local SYN, ACK = 0x02, 0x10

local second, seen, hosts = nil, {}, 0

return function(pkt)
  local flags = pkt:tcp_flags()
  if not flags or bit.band(flags, SYN + ACK) ~= SYN then return false end

  local now = math.floor(pkt:time())
  -- The table is cleared each second and at 10,000 hosts, because senders decide how fast it grows.
  if now ~= second or hosts == 10000 then
    second, seen, hosts = now, {}, 0
  end
  local host = pkt:dst()
  if not seen[host] then
    seen[host], hosts = 0, hosts + 1
  end
  seen[host] = seen[host] + 1
  return seen[host] == limit
end
