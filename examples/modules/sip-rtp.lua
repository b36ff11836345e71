-- Dumps telephone calls: SIP signalling, and the media streams that it negotiates. SIP carries SDP
-- (RFC 8866) with the address and ports of each side for sound and video. A filter cannot know
-- these ports in advance.
--
--   retroscope record -i eth0 --past 60s --module examples/modules/sip-rtp.lua
local module = {}

local SIP_PORT = 5060
local MEDIA = 4 -- maximum number of streams in one SDP body

module.stateType = "struct { char media[200]; }"

-- Returns the rest of the first SDP line after position `from` that begins with `name`, and the
-- position of the line's end.
local function line(text, name, from)
  local at
  if from == 1 and text:sub(1, #name) == name then
    at = 1
  else
    at = text:find("\n" .. name, from, true)
    if not at then return nil end
    at = at + 1
  end
  local stop = text:find("\r", at, true) or text:find("\n", at, true) or #text + 1
  return text:sub(at + #name, stop - 1), stop
end

-- Splits a line at spaces.
local function words(text)
  local all, from = {}, 1
  while from <= #text do
    local stop = text:find(" ", from, true) or #text + 1
    if stop > from then all[#all + 1] = text:sub(from, stop - 1) end
    from = stop + 1
  end
  return all
end

-- Whether the text is an address, and not a network. The sender of the packet chose the text, and
-- the text becomes part of a filter, so anything else must be refused.
local function is_address(text)
  return not text:find("/", 1, true) and (pcall(net, text))
end

-- Returns the dump filters of the streams in an SDP body, for RTP and RTCP:
-- "host 192.0.2.1 and udp portrange 4000-4001".
local function streams(body)
  local found = {}
  local connection = line(body, "c=IN IP", 1) -- "4 192.0.2.1"
  local address = connection and words(connection)[2]
  local from = 1
  while address and #found < MEDIA do
    local media, stop = line(body, "m=", from)
    if not media then break end
    local port = tonumber(words(media)[2])
    -- A connection line after the media line describes only this stream.
    local own, own_at = line(body, "c=IN IP", stop)
    local _, next_at = line(body, "m=", stop)
    local its = address
    if own and (not next_at or own_at < next_at) then its = words(own)[2] or address end
    if is_address(its) and port and port == math.floor(port) and port > 0 and port < 65535 then
      found[#found + 1] = string.format("host %s and udp portrange %d-%d", its, port, port + 1)
    end
    from = stop
  end
  return found
end

function module.handlePacket(key, state, pkt, isFirst)
  if not pkt:has_port(SIP_PORT) or not pkt:contains("m=") then return false end
  local payload = pkt:payload()
  local body = payload:find("\r\n\r\n", 1, true)
  if not body then return false end
  local before = state.media
  for _, stream in ipairs(streams(payload:sub(body + 4))) do
    local all = state.media == "" and stream or state.media .. ") or (" .. stream
    if not state.media:find(stream, 1, true) and #all <= 200 then state.media = all end
  end
  return state.media ~= before
end

function module.buildPacketFilter(key, state)
  return "$flow or (" .. state.media .. ")"
end

return module
