-- Does nothing, and so shows what looking up flows costs. FlowScope has a module for the same
-- purpose.
--
--   retroscope record -i eth0 --module examples/modules/noop.lua
local module = {}

module.mode = "direct" -- never dumps
module.partition = "flow"

function module.handlePacket(key, state, pkt, isFirst)
  return false
end

return module
