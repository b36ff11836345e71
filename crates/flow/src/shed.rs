//! Which packets of flows are kept where not all are: the beginnings.
//!
//! Time Machine's cutoff (Maier et al. 2008, "Enriching network security analysis with time travel", section 3): most bytes are in few large
//! flows, and what explains an event is mostly in the first bytes of a flow.

use retroscope_packet::LinkType;

use crate::{Advise, Attribution, Family, FlowTable, Key, Packet, Secret, TimeOuts, TrackerConfig};

/// Between two looks for flows that were silent, ns of packet time.
const LOOK_NS: i64 = 1_000_000_000;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// How much of a flow is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutoff {
    /// Bytes of payload of each direction: a packet is kept if fewer were sent before it.
    pub bytes: u64,
    /// After so long without a packet in either direction a flow is kept from its beginning again, ns, at least 1.
    pub refill_ns: i64,
}

/// Decides which packets are kept, for one thread.
///
/// A packet is kept if its direction of its flow has sent fewer bytes of payload before it than the cutoff, counted by IP's lengths, whatever TCP sent
/// twice included. A SYN, FIN or RST always is. A SYN without ACK begins its flow anew, as [`Cutoff::refill_ns`] without a packet does, kept or not. Later
/// fragments are of the flow of their first one. What is not IP, or whose flow cannot be told, is kept.
///
/// Flows that have to make room for others are kept from their beginning again.
#[derive(Debug)]
pub struct Shedder {
    cutoffs: Vec<Cutoff>,
    attribution: Attribution,
    table: FlowTable,
    states: Vec<State>,
    look_ns: i64,
}

/// By the slot of its flow.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Bytes of payload that each direction has sent.
    bytes: [u64; 2],
    last_ns: i64,
    /// The number of its cutoff; `None`: all of it is kept.
    class: Option<u16>,
    is_exempt: bool,
}

impl Shedder {
    /// For flows of classes with these cutoffs, at most 65,536; of `config` the number of flows, their VLANs and fragments are asked for.
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn new(
        cutoffs: Vec<Cutoff>,
        config: &TrackerConfig,
        secret: Secret,
        advise: Advise,
    ) -> Self {
        let refills = cutoffs.iter().map(|cutoff| cutoff.refill_ns);
        let time_outs = TimeOuts::idle(refills.max().unwrap_or(1).max(1));
        Self {
            cutoffs,
            attribution: Attribution::new(config.has_vlans, config.joins_fragments),
            table: FlowTable::with_advice(config.flows_max, time_outs, secret, advise),
            states: Vec::new(),
            look_ns: i64::MIN,
        }
    }

    /// Whether a packet is kept, whose captured bytes are `data`. `class` tells the number of a flow's cutoff by its first packet, or that all of it is
    /// kept; `is_exempt` is asked where a packet of a flow would be shed, until it says yes.
    pub fn keeps(
        &mut self,
        link_type: LinkType,
        (time_ns, wire_len): (i64, u32),
        data: &[u8],
        class: impl FnOnce() -> Option<u16>,
        is_exempt: impl FnOnce(&Key) -> bool,
    ) -> bool {
        let found = self.attribution.frame(link_type, data, time_ns, wire_len);
        let Some(packet) = found else {
            return true;
        };
        if !matches!(packet.ends.key.family(), Family::V4 | Family::V6) {
            return true;
        }
        if time_ns >= self.look_ns {
            self.table.expire(time_ns, |_, _| {});
            self.look_ns = time_ns.saturating_add(LOOK_NS);
        }
        self.keeps_of_flow(&packet, class, is_exempt)
    }

    fn keeps_of_flow(
        &mut self,
        packet: &Packet,
        class: impl FnOnce() -> Option<u16>,
        is_exempt: impl FnOnce(&Key) -> bool,
    ) -> bool {
        let (mut slot, mut begins) = (0, false);
        self.table.update_each(
            std::slice::from_ref(packet),
            |of, its_first| (slot, begins) = (of as usize, its_first),
            |_, _| {},
        );
        if slot >= self.states.len() {
            self.states.resize(slot + 1, State::default());
        }
        let state = &mut self.states[slot];
        let cutoff = |class: Option<u16>| self.cutoffs.get(usize::from(class?));
        let is_silent = |refill_ns| packet.time_ns.saturating_sub(state.last_ns) >= refill_ns;
        let flags = packet.tcp_flags.unwrap_or(0);
        if begins
            || flags & (SYN | ACK) == SYN
            || cutoff(state.class).is_some_and(|of| is_silent(of.refill_ns))
        {
            *state = State {
                class: class(),
                is_exempt: state.is_exempt && !begins,
                last_ns: packet.time_ns,
                bytes: [0; 2],
            };
        }
        state.last_ns = state.last_ns.max(packet.time_ns);
        let sent = &mut state.bytes[usize::from(packet.ends.is_reverse)];
        let before = *sent;
        *sent = before.saturating_add(packet.payload_bytes.into());
        if flags & (SYN | FIN | RST) != 0
            || state.is_exempt
            || cutoff(state.class).is_none_or(|of| before < of.bytes)
        {
            return true;
        }
        state.is_exempt = is_exempt(&packet.ends.key);
        state.is_exempt
    }
}

#[cfg(test)]
mod tests;
