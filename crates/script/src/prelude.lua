-- The trusted part of every script's state. Except for trusted scripts, only this file and
-- `module.lua` have `ffi`; user code gets accessors that check every offset.
--
-- Rules for this file. A violation gives user code the memory of the process:
--
-- 1. No cdata pointer reaches code in the sandbox: results are nil, numbers, strings, booleans, our
--    own tables, and 64-bit integers. The packet of a batch is cdata of a struct without fields.
--    LuaJIT therefore treats its methods as constants, and the struct has no content to read.
-- 2. A value from user code is an offset or a length only after `type(value) == "number"`: `1ULL`
--    and `-1LL` are literals of LuaJIT, and their comparisons and sums wrap.
-- 3. Nothing is looked up in a table that user code can write to, nor through a string's metatable.
--
-- Called once, with the arguments of `machine.rs` in the same order. Returns user code's
-- environment, the functions that `machine.rs` calls, and the table of helpers for `module.lua`.
local sheet_at, hits_at, find_at, want_at, address_text, network, join, note, trusted, script_text = ...

local ffi, bit = ffi, bit
local band, bor, rshift = bit.band, bit.bor, bit.rshift
local type, error, select, setmetatable, getmetatable = type, error, select, setmetatable, getmetatable
local pairs, tonumber, tostring = pairs, tonumber, tostring
local byte, find, gmatch = string.byte, string.find, string.gmatch

-- The same layout as in `slot.rs` and `sheet.rs`.
ffi.cdef [[
  struct retroscope_slot {
    const uint8_t *data;
    int64_t time_ns;
    uint32_t len, wire_len;
    uint16_t interface, link_type;
    uint8_t direction, ip, later_fragment;
    int16_t proto, tcp_flags, vlan;
    int32_t ether_type, src_port, dst_port, payload, payload_len, network, transport, icmp;
    uint32_t src[4], dst[4];
  };
  struct retroscope_sheet { uintptr_t packets; int32_t count, number; uint32_t facts, shunts; uint8_t shunted[64];
    struct retroscope_slot slots[64]; };
  struct retroscope_view { const struct retroscope_slot *slot; };
  struct packet {};
  typedef void (*retroscope_want)(const struct retroscope_sheet *sheet, uint32_t facts);
  typedef int64_t (*retroscope_find)(const uint8_t *data, size_t len, const char *needle, size_t needle_len);
]]

local sheet = ffi.cast("struct retroscope_sheet *", sheet_at)
local slots = ffi.cast("const struct retroscope_slot *", sheet.slots)
local hits = ffi.cast("uint32_t *", hits_at)
local find_bytes = ffi.cast("retroscope_find", find_at)
local want_facts = ffi.cast("retroscope_want", want_at)
local int64 = ffi.typeof("int64_t")

-- Raises an error with the position of the caller's caller: the line in the user's script.
local function wrong(what, value)
  error(what .. " expected, got " .. type(value), 3)
end

-- The accessors of the slot in `view`. User code calls them as methods of the packet. They ignore
-- the argument `self`, so `pkt.len` has the same result for any object.
local function accessors(view)
  local pkt = {}

  function pkt.len() return view.slot.len end
  function pkt.wire_len() return view.slot.wire_len end
  function pkt.interface() return view.slot.interface end
  function pkt.link_type() return view.slot.link_type end
  function pkt.inbound() return view.slot.direction == 1 end
  function pkt.outbound() return view.slot.direction == 2 end
  -- Seconds, to about a quarter of a microsecond, the precision of a double.
  function pkt.time() return tonumber(view.slot.time_ns) * 1e-9 end
  function pkt.time_ns() return int64(view.slot.time_ns) end

  function pkt.u8(_, offset)
    if type(offset) ~= "number" then wrong("an offset", offset) end
    local slot = view.slot
    if offset >= 0 and offset + 1 <= slot.len then
      return slot.data[offset]
    end
    return nil
  end
  function pkt.u16(_, offset)
    if type(offset) ~= "number" then wrong("an offset", offset) end
    local slot = view.slot
    if offset >= 0 and offset + 2 <= slot.len then
      local at = slot.data + offset
      return at[0] * 0x100 + at[1]
    end
    return nil
  end
  function pkt.u32(_, offset)
    if type(offset) ~= "number" then wrong("an offset", offset) end
    local slot = view.slot
    if offset >= 0 and offset + 4 <= slot.len then
      local at = slot.data + offset
      return ((at[0] * 0x100 + at[1]) * 0x100 + at[2]) * 0x100 + at[3]
    end
    return nil
  end
  function pkt.bytes(_, offset, length)
    if type(offset) ~= "number" then wrong("an offset", offset) end
    if type(length) ~= "number" then wrong("a length", length) end
    local slot = view.slot
    if offset >= 0 and length >= 0 and offset + length <= slot.len then
      return ffi.string(slot.data + offset, length)
    end
    return nil
  end

  function pkt.ip()
    local ip = view.slot.ip
    if ip ~= 0 then return ip end
    return nil
  end
  function pkt.proto()
    local proto = view.slot.proto
    if proto >= 0 then return proto end
    return nil
  end
  function pkt.is_tcp() return view.slot.proto == 6 end
  function pkt.is_udp() return view.slot.proto == 17 end
  function pkt.is_later_fragment() return view.slot.later_fragment == 1 end
  function pkt.src_port()
    local port = view.slot.src_port
    if port >= 0 then return port end
    return nil
  end
  function pkt.dst_port()
    local port = view.slot.dst_port
    if port >= 0 then return port end
    return nil
  end
  function pkt.has_port(_, port)
    if type(port) ~= "number" then wrong("a port", port) end
    local slot = view.slot
    return port >= 0 and (slot.src_port == port or slot.dst_port == port)
  end
  function pkt.tcp_flags()
    local flags = view.slot.tcp_flags
    if flags >= 0 then return flags end
    return nil
  end
  function pkt.vlan()
    local vlan = view.slot.vlan
    if vlan >= 0 then return vlan end
    return nil
  end
  function pkt.ether_type()
    local ether_type = view.slot.ether_type
    if ether_type >= 0 then return ether_type end
    return nil
  end

  -- If these offsets are set, the needed bytes were captured: see `slot.rs` and `packet::Parsed`.
  function pkt.ttl()
    local slot = view.slot
    if slot.network < 0 then return nil end
    return slot.data[slot.network + (slot.ip == 4 and 8 or 7)]
  end
  function pkt.tos()
    local slot = view.slot
    if slot.network < 0 then return nil end
    local at = slot.data + slot.network
    if slot.ip == 4 then return at[1] end
    return band(at[0], 15) * 16 + rshift(at[1], 4)
  end
  local function tcp_word(at)
    local slot = view.slot
    if slot.tcp_flags < 0 or slot.transport < 0 then return nil end
    local from = slot.data + slot.transport + at
    return ((from[0] * 0x100 + from[1]) * 0x100 + from[2]) * 0x100 + from[3]
  end
  function pkt.tcp_seq() return tcp_word(4) end
  function pkt.tcp_ack() return tcp_word(8) end
  function pkt.tcp_window()
    local slot = view.slot
    if slot.tcp_flags < 0 or slot.payload < 0 then return nil end
    local at = slot.data + slot.transport
    return at[14] * 0x100 + at[15]
  end
  function pkt.icmp_type()
    local icmp = view.slot.icmp
    if icmp >= 0 then return rshift(icmp, 8) end
    return nil
  end
  function pkt.icmp_code()
    local icmp = view.slot.icmp
    if icmp >= 0 then return band(icmp, 255) end
    return nil
  end
  -- For ARP of IPv4 over Ethernet (RFC 826): the operation and both addresses.
  function pkt.arp()
    local slot = view.slot
    if slot.ether_type ~= 0x806 or slot.payload < 0 or slot.payload_len < 28 then return nil end
    local at = slot.data + slot.payload
    if at[0] ~= 0 or at[1] ~= 1 or at[2] ~= 8 or at[3] ~= 0 or at[4] ~= 6 or at[5] ~= 4 then return nil end
    local function address(from)
      local word = ((from[0] * 0x100 + from[1]) * 0x100 + from[2]) * 0x100 + from[3]
      return address_text(4, word, 0, 0, 0)
    end
    return at[6] * 0x100 + at[7], address(at + 14), address(at + 24)
  end

  function pkt.src()
    local slot = view.slot
    if slot.ip ~= 0 then
      return address_text(slot.ip, slot.src[0], slot.src[1], slot.src[2], slot.src[3])
    end
    return nil
  end
  function pkt.dst()
    local slot = view.slot
    if slot.ip ~= 0 then
      return address_text(slot.ip, slot.dst[0], slot.dst[1], slot.dst[2], slot.dst[3])
    end
    return nil
  end
  local function within(ip, address, net)
    if type(net) ~= "table" then wrong("a network, as net() makes it,", net) end
    if ip ~= net.ip then return false end
    local mask, of = net.mask, net.address
    return band(address[0], mask[1]) == of[1]
      and (ip == 4 or (band(address[1], mask[2]) == of[2] and band(address[2], mask[3]) == of[3]
        and band(address[3], mask[4]) == of[4]))
  end
  function pkt.from(_, net) return within(view.slot.ip, view.slot.src, net) end
  function pkt.to(_, net) return within(view.slot.ip, view.slot.dst, net) end
  function pkt.host(_, net)
    local slot = view.slot
    return within(slot.ip, slot.src, net) or within(slot.ip, slot.dst, net)
  end

  function pkt.network_offset()
    local at = view.slot.network
    if at >= 0 then return at end
    return nil
  end
  function pkt.payload_offset()
    local at = view.slot.payload
    if at >= 0 then return at end
    return nil
  end
  function pkt.payload_len()
    local slot = view.slot
    if slot.payload >= 0 then return slot.payload_len end
    return nil
  end
  function pkt.payload(_, length)
    local slot = view.slot
    local have = slot.payload_len
    if length ~= nil then
      if type(length) ~= "number" then wrong("a length", length) end
      if not (length >= 0) then return nil end
      if length < have then have = length end
    end
    if slot.payload >= 0 then return ffi.string(slot.data + slot.payload, have) end
    return nil
  end
  function pkt.startswith(_, text)
    if type(text) ~= "string" then wrong("a string", text) end
    local slot = view.slot
    local n = #text
    if slot.payload < 0 or slot.payload_len < n then return false end
    local at = slot.data + slot.payload
    -- The first byte excludes most packets without making a string.
    return n == 0 or (at[0] == byte(text, 1) and ffi.string(at, n) == text)
  end
  function pkt.contains(_, text)
    if type(text) ~= "string" then wrong("a string", text) end
    local slot = view.slot
    return slot.payload >= 0 and find_bytes(slot.data + slot.payload, slot.payload_len, text, #text) >= 0
  end
  return pkt
end

-- Standard output is for data, so printed text becomes a message.
local concat = table.concat
local function print_note(...)
  local words = {}
  for n = 1, select("#", ...) do words[n] = tostring((select(n, ...))) end
  note(concat(words, "\t"))
end

-- The environment of user code: the names listed here, and later `net` and `partition`.
--
-- Omitted on purpose:
--
-- - everything that reaches other environments, byte code, files or the machine (debug, io, os,
--   package, ffi, jit, load, dofile, require, getfenv, setfenv, newproxy, string.dump,
--   collectgarbage)
-- - coroutines
-- - functions that run for long without executing a Lua instruction, because nothing can stop them:
--   patterns and sort
local function sandbox()
  local function some_of(library, names)
    local some = {}
    for name in names:gmatch("%w+") do some[name] = library[name] end
    return some
  end
  local env = some_of(_G, "assert error ipairs next pairs pcall rawequal rawget rawset select setmetatable tonumber tostring type unpack")
  env.bit = some_of(bit, "arshift band bnot bor bswap bxor lshift rol ror rshift tobit tohex")
  env.math = some_of(math, "abs ceil cos deg exp floor fmod frexp huge ldexp log log10 max min modf pi pow rad random sin sqrt tan")
  env.string = some_of(string, "byte char len lower rep reverse sub upper")
  env.table = some_of(table, "concat insert maxn remove")
  env._G = env

  function env.getmetatable(value)
    if type(value) == "table" then return getmetatable(value) end
  end
  -- For a table the library would call __tostring from C, and a table that recurses would exhaust
  -- the native stack.
  local format = string.format
  function env.string.format(text, ...)
    for n = 1, select("#", ...) do
      if type((select(n, ...))) == "table" then error("string.format of a table: use tostring", 2) end
    end
    return format(text, ...)
  end
  -- Only plain search, with a bounded number of steps.
  function env.string.find(text, needle, from, plain)
    if type(text) ~= "string" then wrong("a string", text) end
    if type(needle) ~= "string" then wrong("a string", needle) end
    if not plain and find(needle, "[%^%$%*%+%?%.%(%)%[%]%%%-]") then
      error("string.find without patterns only: pass true as the fourth argument", 2)
    end
    if #text * #needle > 16777216 then error("string.find in so much text", 2) end
    return find(text, needle, from, true)
  end
  -- The library moves all elements from the position to the length in C. In an empty table these
  -- are 2^31 elements if the position is below 1 or wraps to such a position. The length may be far
  -- from the number of elements if a table has holes.
  local insert = table.insert
  function env.table.insert(list, ...)
    if select("#", ...) ~= 1 then
      local at = ...
      if type(list) ~= "table" then wrong("a table", list) end
      if type(at) ~= "number" then wrong("a position", at) end
      if not (at >= 1 and at < 0x80000000 and #list - at < 0x800000) then
        error("table.insert at a position below 1, or far from the end", 2)
      end
    end
    insert(list, ...)
  end
  env.print = print_note
  -- ("text"):find(…) reaches the same functions.
  local strings = getmetatable("")
  strings.__index = env.string
  strings.__metatable = false
  return env
end

local env = trusted and _G or sandbox()
env.net = network
-- `machine.rs` gives `join` only to scripts whose text names `partition.join`.
if join then
  env.partition = {
    join = function(to, pair)
      local joined, why, is_misuse = join(to, pair)
      if is_misuse then error(why, 2) end
      return joined, why
    end,
  }
end
if trusted then env.print = print_note end

-- The facts that each accessor needs, by the numbers of `slot.rs`.
local BYTES, HEADERS = 1, 8
local needs = {}
for need, names in pairs({
  [1] = "len u8 u16 u32 bytes pointer",
  [0] = "shunt",
  [2] = "wire_len interface link_type inbound outbound time time_ns",
  [4] = "ip proto is_tcp is_udp is_later_fragment src_port dst_port has_port tcp_flags",
}) do
  for name in gmatch(names, "[%w_]+") do needs[name] = need end
end

-- Facts of accessors that the script's text names are read for every packet. An accessor that the
-- script reaches in another way requests its facts when it is called.
local function on_demand(methods)
  local function need_of(name) return needs[name] or BYTES + HEADERS end
  for word in gmatch(script_text, "[%a_][%w_]*") do
    if methods[word] then sheet.facts = bor(sheet.facts, need_of(word)) end
    if word == "shunt" then sheet.shunts = 1 end
  end
  local asking = {}
  for name, accessor in pairs(methods) do
    local need = need_of(name)
    asking[name] = band(sheet.facts, need) == need and accessor or function(...)
      if band(sheet.facts, need) ~= need then want_facts(sheet, need) end
      return accessor(...)
    end
  end
  return asking
end

local function new_view()
  local view = ffi.new("struct retroscope_view")
  local methods = accessors(view)
  if trusted then
    function methods.pointer() return view.slot.data end
  end
  return view, methods
end

-- The slot while there is no packet, for a script that kept its packet: it has no content.
local no_slot = ffi.new("struct retroscope_slot")
for _, field in pairs({ "proto", "tcp_flags", "vlan", "ether_type", "src_port", "dst_port", "payload", "payload_len", "network", "transport",
  "icmp" }) do
  no_slot[field] = -1
end

local view, methods = new_view()
view.slot = no_slot
-- Rust looks for marks of shunted flows only if the text of the script or module names `shunt`.
function methods.shunt()
  if view.slot == no_slot then error("shunt: there is no packet", 2) end
  if sheet.shunts == 0 then error("shunt: the script's text has to name it", 2) end
  sheet.shunted[sheet.number] = 1
end
local pkt = ffi.metatype("struct packet", {
  __index = on_demand(methods),
  __tostring = function() return "packet" end,
})()

-- Finds the packets of the sheet that `keep` matches. `hits[0]` is their number, and the following
-- words are their indices. The number is always right: matches before an error count.
--
-- The index of the packet is a field rather than a variable. Otherwise traces that leave the fast
-- path of the loop would pass it on as a floating-point number through the stack, and the loop
-- would wait for these conversions. The caller sets the index to 0 and gives a packet, because
-- LuaJIT interprets code before the loop and before its first round.
local function batch(keep)
  local found = 0
  repeat
    view.slot = slots + sheet.number
    if keep(pkt) then
      found = found + 1
      hits[found] = sheet.number
      hits[0] = found
    end
    sheet.number = sheet.number + 1
  until sheet.number >= sheet.count
end

-- The result of `main` for the first packet. The bytes of the packet are kept with it, because a
-- predicate may read the trigger packet later.
local copies = setmetatable({}, { __mode = "k" })
local function derive(main)
  view.slot = no_slot
  local held, pkt = new_view()
  local text = ffi.string(slots[0].data, slots[0].len)
  local slot = ffi.new("struct retroscope_slot", slots[0])
  slot.data = ffi.cast("const uint8_t *", text)
  held.slot = slot
  copies[held] = { text, slot }
  local value, name = main(pkt)
  return value, name
end

return env, batch, derive, {
  ffi = ffi, sheet = sheet, slots = slots, hits = hits, view = view, pkt = pkt, no_slot = no_slot, address_text = address_text,
}
