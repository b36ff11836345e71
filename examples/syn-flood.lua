-- Triggers on the 1,000th TCP connection request to one host within a second of packet time, and
-- sometimes again on later requests. If the
-- requests of a second go to more than 10,000 hosts, each count may be too small, by at most one
-- ten-thousandth of all requests.
--
--   retroscope record -i eth0 --trigger-lua examples/syn-flood.lua --dump 'host $dstIP and tcp'
local limit = 1000
local SYN, ACK = 0x02, 0x10

local second, seen, hosts = nil, {}, 0

return function(pkt)
  local flags = pkt:tcp_flags()
  if not flags or bit.band(flags, SYN + ACK) ~= SYN then return false end

  local now = math.floor(pkt:time())
  if now ~= second then
    second, seen, hosts = now, {}, 0
  end
  local host = pkt:dst()
  if seen[host] then
    seen[host] = seen[host] + 1
    return seen[host] == limit
  end
  if hosts < 10000 then
    seen[host], hosts = 1, hosts + 1
    return false
  end
  -- Senders decide how fast the table grows. A full table loses one request of each host (Misra and
  -- Gries 1982), so requests to many hosts do not hide a flood to one host.
  for other, count in pairs(seen) do
    if count > 1 then
      seen[other] = count - 1
    else
      seen[other], hosts = nil, hosts - 1
    end
  end
  return false
end
