//! Modules in Rust.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use retroscope_flow::Key;

use crate::{DUMPS_MAX, Dump, Fault, Handler, Packet, Partition, Place, Plan};

/// A module in Rust: FlowScope's callbacks, by their names.
///
/// One value looks at all packets, or, where [`Self::partition`] allows it, one a shard. A call that panics loses its batch, as an error in Lua
/// does.
pub trait FlowModule: Send + fmt::Debug {
    /// What it remembers of a flow; of a new one the default.
    type State: Copy + Default + Send + fmt::Debug;

    /// What messages call it.
    fn name(&self) -> &str;

    /// Whether [`Self::extract_flow_key`] makes the keys; else they are those of `record --eve`.
    fn has_keys(&self) -> bool {
        false
    }

    /// The flow of a packet; `None`: it is not looked at.
    fn extract_flow_key(&mut self, _packet: &Packet<'_>) -> Option<Key> {
        None
    }

    /// Looks at a packet of a flow. True: dump the flow.
    fn handle_packet(
        &mut self,
        key: &Key,
        state: &mut Self::State,
        packet: &Packet<'_>,
        is_first: bool,
    ) -> bool;

    /// Whether it ever says that it [shunts](Self::shunts_rest) a flow.
    fn shunts(&self) -> bool {
        false
    }

    /// Whether nothing of a flow is wanted any more, asked behind [`Self::handle_packet`] where it [may say so](Self::shunts): an inserter sheds what comes
    /// of it, but for SYN, FIN and RST, as long as no trigger takes a packet of it.
    fn shunts_rest(&mut self, _key: &Key, _state: &Self::State) -> bool {
        false
    }

    /// Between two checks of all flows, of packet time; `None`: there are none, and flows are over by their time-outs.
    fn check_interval(&self) -> Option<Duration> {
        None
    }

    /// A check begins, at a packet time, ns since the UNIX epoch.
    fn check_initializer(&mut self, _time_ns: i64) {}

    /// Whether a flow is over: until when packets of it are wanted by a dump of it that is open, ns since the UNIX epoch; that may be past.
    fn check_expiry(&mut self, _key: &Key, _state: &mut Self::State) -> Option<i64> {
        None
    }

    /// A check is done; so many flows go on, and so many were over.
    fn check_finalizer(&mut self, _kept: u64, _over: u64) {}

    /// What is dumped of a flow: a dump expression, in which the packet fills in variables. `None`: what is configured.
    fn build_packet_filter(&mut self, _key: &Key, _state: &Self::State) -> Option<String> {
        None
    }

    /// Dumps of its that may be open at once.
    fn max_dumper_rules(&self) -> usize {
        DUMPS_MAX
    }

    /// Which packets one value has to see.
    fn partition(&self) -> Partition {
        Partition::None
    }
}

/// A [`FlowModule`] and its states.
#[derive(Debug)]
pub struct Compiled<M: FlowModule> {
    module: M,
    states: Vec<M::State>,
    shunted: u64,
}

impl<M: FlowModule> Compiled<M> {
    /// Without flows.
    pub fn new(module: M) -> Self {
        Self {
            module,
            states: Vec::new(),
            shunted: 0,
        }
    }

    /// The state of a flow.
    fn state(states: &mut Vec<M::State>, place: &Place) -> Option<usize> {
        let slot = place.slot as usize;
        if place.slot == Place::NO_SLOT {
            return None;
        }
        if slot >= states.len() {
            states.resize(slot + 1, M::State::default());
        }
        if place.is_first != 0 {
            states[slot] = M::State::default();
        }
        Some(slot)
    }
}

/// Runs a call of a module, which may panic.
fn attempt<M: FlowModule, R>(module: &mut M, call: impl FnOnce(&mut M) -> R) -> Result<R, Fault> {
    let result = catch_unwind(AssertUnwindSafe(|| call(module)));
    result.map_err(|panic| Fault {
        message: format!("{}: panicked: {}", module.name(), text(panic.as_ref())),
        done: 0,
    })
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    let made = panic.downcast_ref::<String>().map(String::as_str);
    literal.or(made).unwrap_or("for no reason told")
}

impl<M: FlowModule> Handler for Compiled<M> {
    fn name(&self) -> &str {
        self.module.name()
    }

    fn plan(&self) -> Plan {
        let check_interval = self.module.check_interval();
        Plan {
            state_bytes: size_of::<M::State>(),
            has_keys: self.module.has_keys(),
            check_interval,
            decides_expiry: check_interval.is_some(),
            dumps: true,
            dumps_max: self.module.max_dumper_rules(),
            partition: self.module.partition(),
            shunts: self.module.shunts(),
        }
    }

    fn keys(&mut self, packets: &[Packet<'_>], keys: &mut [Option<Key>]) -> Result<(), Fault> {
        attempt(&mut self.module, |module| {
            for (key, packet) in keys.iter_mut().zip(packets) {
                *key = module.extract_flow_key(packet);
            }
        })
    }

    fn handle(
        &mut self,
        packets: &[Packet<'_>],
        places: &[Place],
        dumps: &mut Vec<Dump>,
    ) -> Result<(), Fault> {
        let Self {
            module,
            states,
            shunted,
        } = self;
        let shunts = module.shunts();
        let mut done = 0;
        let handled = attempt(module, |module| {
            for (at, (packet, place)) in packets.iter().zip(places).enumerate() {
                if let Some(slot) = Self::state(states, place) {
                    let state = &mut states[slot];
                    if module.handle_packet(&place.key, state, packet, place.is_first != 0) {
                        let filter = module.build_packet_filter(&place.key, state);
                        let key = place.key;
                        dumps.push(Dump { at, key, filter });
                    }
                    if shunts && module.shunts_rest(&place.key, state) {
                        *shunted |= 1 << at;
                    }
                }
                done = at + 1;
            }
        });
        handled.map_err(|fault| Fault { done, ..fault })
    }

    fn take_shunted(&mut self) -> u64 {
        std::mem::take(&mut self.shunted)
    }

    fn check_begins(&mut self, time_ns: i64) -> Result<(), Fault> {
        attempt(&mut self.module, |module| module.check_initializer(time_ns))
    }

    fn check(&mut self, places: &[Place], over: &mut Vec<(usize, i64)>) -> Result<(), Fault> {
        let Self { module, states, .. } = self;
        attempt(module, |module| {
            for (at, place) in places.iter().enumerate() {
                let slot = Self::state(states, place);
                let until_ns =
                    slot.and_then(|slot| module.check_expiry(&place.key, &mut states[slot]));
                over.extend(until_ns.map(|until_ns| (at, until_ns)));
            }
        })
    }

    fn check_ends(&mut self, kept: u64, over: u64) -> Result<(), Fault> {
        attempt(&mut self.module, |module| {
            module.check_finalizer(kept, over)
        })
    }

    fn take_notes(&mut self) -> Vec<String> {
        Vec::new()
    }
}
