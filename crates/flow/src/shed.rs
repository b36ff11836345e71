//! Which packets of flows are kept where not all are: the beginnings.
//!
//! Time Machine's cutoff (Maier et al. 2008, "Enriching network security analysis with time travel", section 3): most bytes are in few large
//! flows, and what explains an event is mostly in the first bytes of a flow. Tail early drop (R-Scope paper, section 2.3): while there is more than can be kept,
//! connections keep their first packets, the fewer the longer that lasts.

use retroscope_packet::LinkType;

use crate::{
    AddressKind, Advise, Attribution, BiflowKey, DirectedKey, FlowPacket, FlowTable, Secret,
    TimeOuts, TrackerConfig, index::addresses,
};

/// Between two looks for flows that were silent, ns of packet time, and how many of them end with a packet.
const LOOK_NS: i64 = 1_000_000_000;
const ENDED_WITH_A_PACKET: usize = 8;

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

/// What somebody else said of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// All of it is kept.
    Exempt,
    /// Nothing of it is wanted since this time, ns, until it begins anew (R-Scope paper, section 2.3: `conn.shunt`).
    Shunted {
        /// Of the packet that led to it.
        at_ns: i64,
    },
}

/// Why a packet is not kept. Where several would not keep it, the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShedCause {
    /// Its class of flows keeps less.
    Cutoff,
    /// The [limit](Shedder::set_limit).
    Limit,
    /// [`TailDrop`].
    TailDrop,
    /// Its flow is [shunted](Mark::Shunted).
    Shunt,
}

impl ShedCause {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Cutoff, Self::Limit, Self::TailDrop, Self::Shunt];
}

/// One direction of a flow that may be dropped before it comes to a [`Shedder`], or is to come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOver {
    /// The flow, and the direction.
    pub ends: DirectedKey,
    /// Dropped until it was silent for so long, ns, and why its last packet was not kept; `None`: it is to come.
    pub dropped: Option<(i64, ShedCause)>,
}

/// Hand-overs that wait at most: beyond, flows go on to come, and are handed over later.
const HAND_OVERS_MAX: usize = 256;
/// A flow that comes all the same is handed over again after so long, ns. Who drops takes a packet now and then, but may have forgotten it for others.
const HANDED_OVER_NS: i64 = 1_000_000_000;
/// A flow that begins anew after a shorter silence is not handed over, ns: those who drop it tell only now and then that it goes on.
const SILENCE_MIN_NS: i64 = 1_000_000_000;
/// So much shorter is the silence that ends dropping, ns: longer than packets are dropped without one that comes. A flow that begins anew here then does so there.
const SILENCE_MARGIN_NS: i64 = 200_000_000;

/// From a threshold of so many packets on all of a connection are kept; the first period of congestion halves it.
const TAIL_DROP_BEGINS: u32 = 4096;
/// Where all flows may be shed, one that was silent for so long begins anew, ns.
const IDLE_NS: i64 = 60_000_000_000;

/// How many packets of a connection are kept, both directions together: the paper's `ted_thr`.
///
/// It is halved by a period of congestion, down to a minimum, and one more after each other period. The paper prints `min(ted_thr / 2, ted_min)` and says "down to
/// a minimum", which is the `max` here. Until the first congestion, and from 4,096 packets on, all are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailDrop {
    min: u32,
    threshold: u32,
}

impl TailDrop {
    /// That keeps the first `min` packets of a connection in any case, 1 to 4,096.
    #[must_use]
    pub fn new(min: u32) -> Self {
        Self {
            min: min.clamp(1, TAIL_DROP_BEGINS),
            threshold: TAIL_DROP_BEGINS,
        }
    }

    /// A period is over, in which there was congestion or not.
    pub fn period(&mut self, is_congested: bool) {
        self.threshold = match is_congested {
            true => (self.threshold / 2).max(self.min),
            false => (self.threshold + 1).min(TAIL_DROP_BEGINS),
        };
    }

    /// How many packets of a connection are kept; `None`: all.
    #[must_use]
    pub fn packets_max(&self) -> Option<u32> {
        (self.threshold < TAIL_DROP_BEGINS).then_some(self.threshold)
    }
}

/// What a [`Shedder`] goes by; by default it keeps all.
#[derive(Debug, Clone, Default)]
pub struct ShedderConfig {
    /// Of classes of flows, at most 65,536.
    pub cutoffs: Vec<Cutoff>,
    /// Drops tails of all flows.
    pub tail_drop: Option<TailDrop>,
    /// Flows may be marked as shunted.
    pub shunts: bool,
    /// There may be a [limit](Shedder::set_limit).
    pub has_limit: bool,
}

impl ShedderConfig {
    /// For how long flows are known without a packet, ns: no [`Cutoff::refill_ns`] means more.
    #[must_use]
    pub fn silence_ns_max(&self) -> i64 {
        let refills = self.cutoffs.iter().map(|cutoff| cutoff.refill_ns);
        let is_idle = self.tail_drop.is_some() || self.shunts || self.has_limit;
        let least = if is_idle { IDLE_NS } else { 1 };
        refills.fold(least, i64::max)
    }
}

/// Decides which packets are kept, for one thread.
///
/// A packet is kept if its direction of its flow has sent fewer bytes of payload before it than the cutoff, counted by IP's lengths, whatever TCP sent
/// twice included. A SYN, FIN or RST always is. A SYN without ACK begins its flow anew, as [`Cutoff::refill_ns`] without a packet does, kept or not. Later
/// fragments are of the flow of their first one. What is not IP, or whose flow cannot be told, is kept. With a [`TailDrop`] a packet has to be one of the first
/// of its flow, too, of both directions; with a limit it has to be below that as if it were a cutoff. Of a flow that is marked as [shunted](Mark::Shunted) since it began, none is kept. For these,
/// and where there is no cutoff, a flow begins anew after 60 s without a packet.
///
/// Flows that have to make room for others are kept from their beginning again.
#[derive(Debug)]
pub struct Shedder {
    config: ShedderConfig,
    /// How often the cutoffs were changed.
    version: u32,
    limit: Option<u64>,
    /// Packets that it was asked about.
    asked: u64,
    attribution: Attribution,
    table: FlowTable,
    states: Vec<ShedState>,
    look_ns: i64,
    /// `None`: nobody drops packets before.
    hand_overs: Option<Vec<HandOver>>,
    has_new_hand_overs: bool,
}

/// By the slot of its flow.
///
/// What a cutoff goes by begins anew after [`Cutoff::refill_ns`], the rest after [`IDLE_NS`]; with a SYN all does.
#[derive(Debug, Clone, Copy, Default)]
struct ShedState {
    /// Bytes of payload that each direction has sent.
    bytes: [u64; 2],
    /// Packets of both.
    packets: u32,
    last_ns: i64,
    /// The SYN that began it anew, or else its first packet by time, ns.
    first_ns: i64,
    has_syn: bool,
    /// The number of its last packet that was kept, among those that the shedder was asked about.
    last: Option<u64>,
    /// The number of its cutoff, among those of this version; `None`: all of it is kept.
    class: Option<u16>,
    version: u32,
    is_exempt: bool,
    /// When each direction was handed over last; `None`: it is to come.
    handed_ns: [Option<i64>; 2],
}

impl ShedState {
    /// Hands over the direction of a packet that was not kept, or takes back what is kept again.
    fn hand_over(
        &mut self,
        ends: DirectedKey,
        (time_ns, silence_ns): (i64, i64),
        shed: Option<ShedCause>,
        to: &mut Vec<HandOver>,
    ) {
        if let Some(cause) = shed {
            let handed_ns = &mut self.handed_ns[usize::from(ends.is_reverse)];
            let is_due = handed_ns.is_none_or(|at| time_ns.saturating_sub(at) >= HANDED_OVER_NS);
            if is_due && silence_ns >= SILENCE_MIN_NS && to.len() < HAND_OVERS_MAX {
                *handed_ns = Some(time_ns);
                let dropped = Some((silence_ns - SILENCE_MARGIN_NS, cause));
                to.push(HandOver { ends, dropped });
            }
            return;
        }
        // The other direction may be beyond its cutoff.
        let is_it = [false, true].map(|is_reverse| is_reverse == ends.is_reverse || self.is_exempt);
        self.take_back(ends.key, is_it, to);
    }

    /// Takes directions back, of those that were handed over.
    fn take_back(&mut self, key: BiflowKey, directions: [bool; 2], to: &mut Vec<HandOver>) {
        for is_reverse in [false, true] {
            let at = usize::from(is_reverse);
            if directions[at] && self.handed_ns[at].take().is_some() {
                let ends = DirectedKey { key, is_reverse };
                let dropped = None;
                to.push(HandOver { ends, dropped });
            }
        }
    }
}

impl Shedder {
    /// Of `tracker` the number of flows, their VLANs and fragments are asked for.
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn new(
        config: ShedderConfig,
        tracker: &TrackerConfig,
        secret: Secret,
        advise: Advise,
    ) -> Self {
        let time_outs = TimeOuts::idle(config.silence_ns_max());
        let states = Vec::with_capacity(tracker.flows_max);
        advise(addresses(&states));
        Self {
            config,
            version: 0,
            limit: None,
            asked: 0,
            attribution: Attribution::new(tracker.has_vlans, tracker.joins_fragments),
            table: FlowTable::with_advice(tracker.flows_max, time_outs, secret, advise),
            states,
            look_ns: i64::MIN,
            hand_overs: None,
            has_new_hand_overs: true,
        }
    }

    /// Whether flows are handed over from now on to somebody who drops them before: one direction at a time, but for packets with FIN, SYN or RST, and for one each 100 ms
    /// as long as the flow goes on. A SYN without ACK ends it for both directions.
    pub fn set_hands_over(&mut self, hands_over: bool) {
        self.hand_overs = hands_over.then(Vec::new);
    }

    /// Hands over no more flows; those that were are still told when they are to come again.
    pub fn end_hand_overs(&mut self) {
        self.has_new_hand_overs = false;
    }

    /// What is to be dropped before, and what is to come again.
    pub fn take_hand_overs(&mut self) -> Vec<HandOver> {
        self.hand_overs.as_mut().map_or(Vec::new(), std::mem::take)
    }

    /// Other cutoffs from now on, whose flows are silent for no more than [`ShedderConfig::silence_ns_max`] of the start. The class of a flow that is known is
    /// told by its next packet, and what it has sent counts.
    pub fn set_cutoffs(&mut self, cutoffs: Vec<Cutoff>) {
        self.config.cutoffs = cutoffs;
        self.version = self.version.wrapping_add(1);
    }

    /// What drops tails, to be told of periods.
    pub fn tail_drop(&mut self) -> Option<&mut TailDrop> {
        self.config.tail_drop.as_mut()
    }

    /// Keeps at most so many bytes of payload of each direction of any flow from now on, whatever its class; `None`: as its class says.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Why a packet is not kept, whose captured bytes are `data`; `None`: it is. `class` tells the number of a flow's cutoff by its first packet, or that all of it is
    /// kept. `mark` is asked where a packet of a flow would be shed, and where flows may be shunted, until it says that the flow is exempt. It is told which of the packets that the
    /// shedder was asked about, from 0, was the last one that was kept of the flow, and which is this one.
    pub fn sheds(
        &mut self,
        link_type: LinkType,
        (time_ns, wire_len): (i64, u32),
        data: &[u8],
        class: impl FnOnce() -> Option<u16>,
        mark: impl FnOnce(&BiflowKey, (Option<u64>, u64)) -> Option<Mark>,
    ) -> Option<ShedCause> {
        self.asked += 1;
        let packet = self
            .attribution
            .frame(link_type, data, time_ns, wire_len)
            .filter(|packet| {
                matches!(packet.ends.key.family(), AddressKind::V4 | AddressKind::V6)
            })?;
        // A stamp far in the future must not put off the next look.
        if time_ns >= self.look_ns || self.look_ns.saturating_sub(time_ns) > LOOK_NS {
            let most = ENDED_WITH_A_PACKET;
            if self.table.expire_some(time_ns, most, |_, _| {}) {
                self.look_ns = time_ns.saturating_add(LOOK_NS);
            }
        }
        self.sheds_of_flow(&packet, class, mark)
    }

    fn sheds_of_flow(
        &mut self,
        packet: &FlowPacket,
        class: impl FnOnce() -> Option<u16>,
        mark: impl FnOnce(&BiflowKey, (Option<u64>, u64)) -> Option<Mark>,
    ) -> Option<ShedCause> {
        // Where the flow of this packet has its slot from another one, that one's key is the one that was there.
        let (mut slot, mut begins, mut before) = (0, false, packet.ends.key);
        self.table.update_each(
            std::slice::from_ref(packet),
            |of, its_first| (slot, begins) = (of as usize, its_first),
            |flow, _| before = flow.key,
        );
        if slot >= self.states.len() {
            self.states.resize(slot + 1, ShedState::default());
        }
        let state = &mut self.states[slot];
        let cutoff = |class: Option<u16>| self.config.cutoffs.get(usize::from(class?));
        let mut class = Some(class);
        if begins || state.version != self.version {
            state.class = class.take().and_then(|class| class());
            state.version = self.version;
        }
        // Also where the last stamp was wrong, and lies far in the future.
        let silent_ns = packet
            .time_ns
            .saturating_sub(state.last_ns)
            .saturating_abs();
        let flags = packet.tcp_flags.unwrap_or(0);
        let is_syn = flags & (SYN | ACK) == SYN;
        let refill_ns = cutoff(state.class).map_or(IDLE_NS, |of| of.refill_ns);
        let is_refilled = begins || is_syn || silent_ns >= refill_ns;
        let is_anew = begins || is_syn || silent_ns >= IDLE_NS;
        if is_refilled || is_anew {
            // Whoever drops them may not have seen that, or seen it before they got the flow.
            if let Some(hand_overs) = &mut self.hand_overs {
                state.take_back(before, [true; 2], hand_overs);
            }
            state.last_ns = packet.time_ns;
        }
        if is_refilled {
            state.class = class.map_or(state.class, |class| class());
            state.bytes = [0; 2];
        }
        if is_anew {
            (state.first_ns, state.has_syn, state.packets) = (packet.time_ns, is_syn, 0);
        }
        if begins {
            (state.is_exempt, state.last) = (false, None);
        }
        if !state.has_syn {
            state.first_ns = state.first_ns.min(packet.time_ns);
        }
        state.last_ns = state.last_ns.max(packet.time_ns);
        let sent = &mut state.bytes[usize::from(packet.ends.is_reverse)];
        let before = *sent;
        *sent = before.saturating_add(packet.payload_bytes.into());
        let packets_max = self.config.tail_drop.and_then(|of| of.packets_max());
        let is_tail = packets_max.is_some_and(|packets_max| state.packets >= packets_max);
        state.packets = state.packets.saturating_add(1);
        let is_beyond = cutoff(state.class).is_some_and(|of| before >= of.bytes);
        let is_over_limit = self.limit.is_some_and(|limit| before >= limit);
        let number = self.asked - 1;
        let surplus = match (is_beyond, is_over_limit, is_tail) {
            (true, ..) => Some(ShedCause::Cutoff),
            (_, true, _) => Some(ShedCause::Limit),
            (.., true) => Some(ShedCause::TailDrop),
            (false, false, false) => None,
        };
        // Nobody has seen a flow that begins with this packet.
        let may_be_shunted = self.config.shunts && !begins;
        let is_certain = flags & (SYN | FIN | RST) != 0 || state.is_exempt;
        let shed = if is_certain || surplus.is_none() && !may_be_shunted {
            None
        } else {
            match mark(&packet.ends.key, (state.last, number)) {
                Some(Mark::Exempt) => {
                    state.is_exempt = true;
                    None
                }
                Some(Mark::Shunted { at_ns }) if may_be_shunted && at_ns >= state.first_ns => {
                    surplus.or(Some(ShedCause::Shunt))
                }
                Some(Mark::Shunted { .. }) | None => surplus,
            }
        };
        if shed.is_none() {
            state.last = Some(number);
        }
        if let Some(hand_overs) = &mut self.hand_overs
            && (flags & (SYN | FIN | RST) == 0 || state.is_exempt)
        {
            let refill_ns = cutoff(state.class).map_or(IDLE_NS, |of| of.refill_ns);
            let silence = (packet.time_ns, refill_ns.min(IDLE_NS));
            if shed.is_none() || self.has_new_hand_overs {
                state.hand_over(packet.ends, silence, shed, hand_overs);
            }
        }
        shed
    }
}

#[cfg(test)]
mod ted_tests;
#[cfg(test)]
mod tests;
