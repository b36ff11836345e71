-- The trusted part of modules, in addition to `prelude.lua`. The rules of that file apply here too:
-- user code gets no pointer. User code sees states and keys through objects of empty structs. The
-- name of a field leads to an accessor. What an object shows changes from packet to packet.
--
-- Called once, with the arguments of `module.rs` in the same order.
local shared, control_at, functions, check_state, state_fields, default_state, key_kinds = ...

local ffi, sheet, slots, hits, view, pkt = shared.ffi, shared.sheet, shared.slots, shared.hits, shared.view, shared.pkt
local no_slot, address_text = shared.no_slot, shared.address_text
local type, error, tostring, pairs, ipairs = type, error, tostring, pairs, ipairs
local loadstring, concat, floor, format = loadstring, table.concat, math.floor, string.format

-- The same layout as `BiflowKey`, `FlowPlace`, `MadeKey` and `ModuleSheet` in Rust.
ffi.cdef [[
  struct retroscope_key {
    uint8_t addresses[2][16];
    uint16_t ports[2];
    uint16_t vlans[3];
    uint8_t proto, family;
    uint32_t protocol;
  };
  struct retroscope_place { struct retroscope_key key; uint32_t slot; uint16_t is_first, is_reverse; };
  struct retroscope_made_key { uint8_t bytes[36]; uint32_t kind; };
  struct retroscope_control {
    const struct retroscope_place *places;
    uint8_t *states;
    struct retroscope_made_key keys[64];
    uint8_t over[4096];
    int64_t until_ns[4096];
  };
  struct retroscope_key_view { const struct retroscope_place *at; };
  struct retroscope_flow_key {};
]]
local NO_SLOT = 0xffffffff
local control = ffi.cast("struct retroscope_control *", control_at)

-- Makes an object that shows a struct with these fields. Returns the object, the holder of the
-- struct's address, the struct's type, and a spare struct.
local count, kept = 0, {}
local int64, uint64, istype = ffi.typeof("int64_t"), ffi.typeof("uint64_t"), ffi.istype
local function typed(fields, max_bytes, what)
  count = count + 1
  local name = "struct retroscope_fields_" .. count
  local text = { name, " { " }
  for n, field in ipairs(fields) do
    text[#text + 1] = field.kind .. " f" .. n .. (field.elements and "[" .. field.elements .. "]" or "") .. "; "
  end
  if #fields == 0 then text[#text + 1] = "uint8_t none; " end
  text[#text + 1] = "}; " .. name .. "_view { " .. name .. " *at; }; " .. name .. "_object {};"
  ffi.cdef(concat(text))
  local ctype = ffi.typeof(name)
  if ffi.sizeof(ctype) > max_bytes then
    error(format("%s: %d bytes, and %d at most are kept", what, ffi.sizeof(ctype), max_bytes), 0)
  end
  local holder = ffi.new(name .. "_view")

  -- Setters return a message if the value is invalid.
  local function wrong(field, expected, value)
    return format("'%s' takes %s, got %s", field.name, expected, type(value))
  end
  local getters, setters = {}, {}
  for n, field in ipairs(fields) do
    -- The text contains only our names: `f` and a number.
    local get, set = loadstring(format([[
      local holder = ...
      return function() return holder.at.f%d end, function(value) holder.at.f%d = value end
    ]], n, n))(holder)
    local elements = field.elements
    local expected = field.kind == "bool" and "boolean" or "number"
    local function check(value)
      if type(value) == expected or expected == "number" and (istype(int64, value) or istype(uint64, value)) then
        return nil
      end
      return wrong(field, "a " .. expected, value)
    end
    if elements and field.kind == "char" then
      getters[field.name] = function()
        local bytes, length = get(), elements
        while length > 0 and bytes[length - 1] == 0 do length = length - 1 end
        return ffi.string(bytes, length)
      end
      setters[field.name] = function(value)
        if type(value) ~= "string" then return wrong(field, "a string", value) end
        if #value > elements then
          return format("'%s' takes %d bytes, got %d", field.name, elements, #value)
        end
        ffi.fill(get(), elements)
        ffi.copy(get(), value, #value)
      end
    elseif elements then
      ffi.cdef(name .. "_array_" .. n .. " {};")
      local outside = format("'%s' has elements 0 to %d", field.name, elements - 1)
      local function set_element(at, value)
        if type(at) ~= "number" or not (at >= 0 and at < elements) then return outside end
        local what_is_wrong = check(value)
        if what_is_wrong then return what_is_wrong end
        get()[at] = value
      end
      local array = ffi.metatype(name .. "_array_" .. n, {
        __index = function(_, at)
          if type(at) == "number" and at >= 0 and at < elements then return get()[at] end
          error(outside, 2)
        end,
        __newindex = function(_, at, value)
          local what_is_wrong = set_element(at, value)
          if what_is_wrong then error(what_is_wrong, 2) end
        end,
        __len = function() return elements end,
        __tostring = function() return field.name end,
      })()
      getters[field.name] = function() return array end
      -- Assigns a list. Its first element becomes element 0, and missing elements become 0.
      setters[field.name] = function(value)
        if type(value) ~= "table" then return wrong(field, "a list", value) end
        ffi.fill(get(), ffi.sizeof(get()))
        for at, element in ipairs(value) do
          local what_is_wrong = set_element(at - 1, element)
          if what_is_wrong then return what_is_wrong end
        end
      end
    else
      getters[field.name] = get
      setters[field.name] = function(value)
        local what_is_wrong = check(value)
        if what_is_wrong then return what_is_wrong end
        set(value)
      end
    end
  end
  local function no_field(field) return format("%s has no field '%s'", what, tostring(field)) end
  local object = ffi.metatype(name .. "_object", {
    __index = function(_, field)
      local get = getters[field]
      if get then return get() end
      error(no_field(field), 2)
    end,
    __newindex = function(_, field, value)
      local set = setters[field]
      local what_is_wrong
      if set then what_is_wrong = set(value) else what_is_wrong = no_field(field) end
      if what_is_wrong then error(what_is_wrong, 2) end
    end,
    __tostring = function() return what end,
  })()
  -- The struct that the object shows while there is no packet or flow.
  local spare = ffi.new(ctype)
  kept[#kept + 1] = spare
  holder.at = spare
  return object, holder, ctype, spare
end

local state, state_holder, state_type, spare_state = typed(state_fields, 4096, "stateType")
local state_bytes = ffi.sizeof(state_type)
local state_pointer = ffi.typeof("$ *", state_type)

-- The initial state of a new flow.
for name, value in pairs(default_state) do state[name] = value end
local first_state = ffi.new(state_type, spare_state)
ffi.fill(spare_state, state_bytes)

-- The key of a flow that is based on headers.
local key_view, spare_key = ffi.new("struct retroscope_key_view"), ffi.new("struct retroscope_place")
local key_methods = {}
local function end_text(n)
  local key = key_view.at.key
  local family = key.family
  if family ~= 4 and family ~= 6 then return nil end
  local function word(at)
    local from = key.addresses[n] + at
    return ((from[0] * 0x100 + from[1]) * 0x100 + from[2]) * 0x100 + from[3]
  end
  return address_text(family, word(0), word(4), word(8), word(12))
end
function key_methods.ip()
  local family = key_view.at.key.family
  if family == 4 or family == 6 then return family end
  return nil
end
function key_methods.proto()
  local key = key_view.at.key
  if key.family == 4 or key.family == 6 then return key.proto end
  return nil
end
function key_methods.addr_a() return end_text(0) end
function key_methods.addr_b() return end_text(1) end
function key_methods.port_a() return key_view.at.key.ports[0] end
function key_methods.port_b() return key_view.at.key.ports[1] end
-- Whether the current packet goes from the first end to the second.
function key_methods.from_a() return key_view.at.is_reverse == 0 end
function key_methods.vlan()
  local tag = key_view.at.key.vlans[0]
  if tag >= 0x8000 then return tag - 0x8000 end
  return nil
end
local flow_key = ffi.metatype("struct retroscope_flow_key", {
  __index = key_methods,
  __tostring = function()
    local a, b = end_text(0), end_text(1)
    if not a then return "not IP" end
    local key = key_view.at.key
    return format("%d %s %d %s %d", key.proto, a, key.ports[0], b, key.ports[1])
  end,
})()

-- Keys that the module makes, by kind. Their bytes are copied into the spare structs, which the
-- objects show.
local keys, key_bytes, key_sizes = {}, {}, {}
for kind, fields in ipairs(key_kinds) do
  local object, _, ctype, spare = typed(fields, 36, "flowKeys[" .. kind .. "]")
  keys[kind], key_bytes[kind], key_sizes[kind] = object, spare, ffi.sizeof(ctype)
end
local kinds = #keys

local handle_packet, extract, build = functions.handlePacket, functions.extractFlowKey, functions.buildPacketFilter
local check_expiry, initialise, finalise = functions.checkExpiry, functions.checkInitializer, functions.checkFinalizer

-- Removes the packet, state and key, because objects that the module kept from an earlier call must
-- not lead to freed memory.
local function hide()
  view.slot = no_slot
  ffi.fill(spare_state, state_bytes)
  state_holder.at = spare_state
  key_view.at = spare_key
  for kind = 1, kinds do ffi.fill(key_bytes[kind], key_sizes[kind]) end
end

-- Shows the key of a place, and returns the object by which user code sees the key.
local function show_key(place)
  if kinds == 0 then
    key_view.at = place
    return flow_key
  end
  local kind = place.key.protocol
  ffi.copy(key_bytes[kind], place.key, key_sizes[kind])
  return keys[kind]
end

-- Passes the packets of the sheet to the module. `hits` gets the indices of the packets for which
-- the module requests a dump. `filters` gets the dump expressions, or false without an expression.
local filters = {}
local function handle()
  hide()
  local found = 0
  local places = control.places
  local states = ffi.cast(state_pointer, control.states)
  repeat
    local n = sheet.number
    local place = places + n
    if place.slot ~= NO_SLOT then
      view.slot = slots + n
      state_holder.at = states + place.slot
      local is_first = place.is_first ~= 0
      if is_first then ffi.copy(state_holder.at, first_state, state_bytes) end
      local key = show_key(place)
      if handle_packet(key, state, pkt, is_first) then
        local filter = false
        if build then
          filter = build(key, state)
          if filter == nil then
            filter = false
          elseif type(filter) ~= "string" then
            error("buildPacketFilter returned " .. type(filter) .. ", and should return a string", 0)
          elseif #filter > 4096 then
            error("buildPacketFilter returned more than 4096 bytes", 0)
          end
        end
        found = found + 1
        filters[found] = filter
        hits[found] = n
        hits[0] = found
      end
    end
    sheet.number = sheet.number + 1
  until sheet.number >= sheet.count
end

-- Lets the module make the keys of the packets of the sheet.
local first_key, second_key, third_key, fourth_key = keys[1], keys[2], keys[3], keys[4]
local function make_keys()
  hide()
  repeat
    local n = sheet.number
    view.slot = slots + n
    local made = control.keys + n
    for kind = 1, kinds do ffi.fill(key_bytes[kind], key_sizes[kind]) end
    local is_made, kind = extract(pkt, first_key, second_key, third_key, fourth_key)
    kind = kind == nil and 1 or kind
    made.kind = 0
    if is_made then
      if not keys[kind] then
        error("extractFlowKey returned kind " .. tostring(kind) .. ", and flowKeys has " .. kinds, 0)
      end
      made.kind = kind
      ffi.fill(made.bytes, 36)
      ffi.copy(made.bytes, key_bytes[kind], key_sizes[kind])
    end
    sheet.number = sheet.number + 1
  until sheet.number >= sheet.count
end

-- Converts a time from `pkt:time()` or `pkt:time_ns()`. Without a time the result is 0.
local function nanoseconds(time)
  if time == nil then return 0 end
  if istype(int64, time) or istype(uint64, time) then return time end
  if type(time) ~= "number" or not (time > -9e9 and time < 9e9) then
    error("checkExpiry returned " .. type(time) .. " as a time, and should return seconds since 1970", 0)
  end
  return int64(floor(time)) * 1000000000LL + int64((time - floor(time)) * 1e9)
end

-- Asks the module which of the first `flows` flows have ended.
local function check(flows, now)
  hide()
  local places = control.places
  local states = ffi.cast(state_pointer, control.states)
  for n = 0, flows - 1 do
    local place = places + n
    state_holder.at = states + place.slot
    local is_over, until_time = check_expiry(show_key(place), state, check_state, now)
    control.over[n] = is_over and 1 or 0
    if is_over then control.until_ns[n] = nanoseconds(until_time) end
  end
end

local function check_begins(now)
  hide()
  if initialise then initialise(check_state, now) end
end

local function check_ends(kept, over)
  hide()
  if finalise then finalise(check_state, kept, over) end
end

return state_bytes, filters, handle, make_keys, check_begins, check, check_ends
