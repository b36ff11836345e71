-- A module that does nothing: what looking flows up costs. FlowScope has one for the same purpose.
--
--   retroscope record -i eth0 --module examples/modules/noop.lua
local module = {}

module.mode = "direct" -- it never wants a dump
module.partition = "flow"

function module.handlePacket(key, state, pkt, isFirst)
  return false
end

return module
