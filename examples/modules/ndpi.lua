-- Prints the protocol of each flow, which nDPI recognizes on any port, and dumps the flows of some
-- protocols. The module calls a C library, so it needs the key lua-trusted. libndpi 4.2 is Debian
-- 12's package libndpi4.2. The module refuses other versions, because their structures differ.
--
--   retroscope record -i eth0 --set lua-trusted=true --module examples/modules/ndpi.lua
local ffi = require("ffi")

-- Protocols whose flows are dumped. `ndpiReader -H` and nDPI's ndpi_protocol_ids.h list the names.
local WANTED = { SIP = true, Tor = true, BitTorrent = true, KakaoTalk = true }
local PACKETS_MAX = 16 -- number of packets of a flow that nDPI inspects
local FLOWS_MAX = 8192 -- inspected at once; a further flow replaces the oldest

-- Declarations of ndpi_api.h, ndpi_typedefs.h and ndpi_define.h of version 4.2.
ffi.cdef([[
  typedef struct { uint16_t master, app; int category; } ndpi_protocol;
  typedef struct { uint32_t bits[16]; } ndpi_bitmask;
  char *ndpi_revision(void);
  void *ndpi_init_detection_module(uint32_t prefs);
  void ndpi_set_protocol_detection_bitmask2(void *module, const ndpi_bitmask *bitmask);
  void ndpi_finalize_initialization(void *module);
  uint32_t ndpi_detection_get_sizeof_ndpi_flow_struct(void);
  ndpi_protocol ndpi_detection_process_packet(void *module, void *flow, const uint8_t *packet, uint16_t length, uint64_t time_ms);
  void ndpi_free_flow_data(void *flow);
  char *ndpi_get_proto_name(void *module, uint16_t protocol);
]])
local ndpi = ffi.load("libndpi.so.4.2")
local revision = ffi.string(ndpi.ndpi_revision())
assert(revision:sub(1, 4) == "4.2.", "libndpi 4.2 is wanted, and this is " .. revision)

local detection = ndpi.ndpi_init_detection_module(0)
local all = ffi.new("ndpi_bitmask")
ffi.fill(all, ffi.sizeof(all), 0xff)
ndpi.ndpi_set_protocol_detection_bitmask2(detection, all)
ndpi.ndpi_finalize_initialization(detection)

-- One nDPI structure for each inspected flow, reused in turn. `takes` counts the uses of each
-- structure.
local size = ndpi.ndpi_detection_get_sizeof_ndpi_flow_struct()
local memory = ffi.new("uint8_t[?]", FLOWS_MAX * size)
local takes = ffi.new("uint32_t[?]", FLOWS_MAX)
local next_place = 0

local module = {}

module.stateType = "struct { uint32_t place, take; uint8_t packets; bool decided; }"

function module.handlePacket(key, state, pkt, isFirst)
  if state.decided or not pkt:ip() then return false end
  if isFirst then
    local place = next_place
    next_place = (place + 1) % FLOWS_MAX
    if takes[place] > 0 then ndpi.ndpi_free_flow_data(memory + place * size) end
    ffi.fill(memory + place * size, size)
    takes[place] = takes[place] + 1
    state.place, state.take = place, takes[place]
  end
  state.packets = state.packets + 1
  if takes[state.place] ~= state.take or state.packets > PACKETS_MAX then
    state.decided = true
    return false
  end
  local start = pkt:network_offset()
  local length = math.min(pkt:len() - start, 65535)
  local found = ndpi.ndpi_detection_process_packet(detection, memory + state.place * size, pkt:pointer() + start, length, pkt:time() * 1000)
  local protocol = found.app ~= 0 and found.app or found.master
  if protocol == 0 then return false end
  state.decided = true
  local name = ffi.string(ndpi.ndpi_get_proto_name(detection, protocol))
  print(tostring(key) .. " speaks " .. name)
  return WANTED[name] or false
end

return module
