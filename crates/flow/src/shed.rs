//! Load shedding: decides which packets of a flow are kept, usually the first packets.
//!
//! The cutoff is Time Machine's (Maier et al. 2008, "Enriching network security analysis with time
//! travel", section 3). Most bytes are in few large flows, and the first bytes of a flow usually
//! explain an event.
//!
//! Tail early drop is from the R-Scope paper, section 2.3. The longer an overload lasts, the fewer
//! packets of each connection are kept, down to a minimum.

use retroscope_packet::LinkType;

use crate::{
    AddressKind, Advise, Attribution, BiflowKey, DirectedKey, FlowPacket, FlowTable, Secret,
    TimeOuts, TrackerConfig, index::addresses,
};

/// Packet time from the end of a search for silent flows to the next search, ns.
const LOOK_NS: i64 = 1_000_000_000;
/// Maximum number of silent flows that a search ends during the call for one packet. The search
/// continues with the next packet.
const ENDED_WITH_A_PACKET: usize = 8;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A limit on the kept payload of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cutoff {
    /// Bytes of payload for each direction. The cutoff keeps a packet if its direction sent fewer
    /// bytes before.
    pub bytes: u64,
    /// Time without a packet in either direction, ns, at least 1. After this time the bytes of both
    /// directions count from 0 again.
    pub refill_ns: i64,
}

/// A decision of another part of the recorder about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// All packets of the flow are kept.
    Exempt,
    /// Packets of the flow without SYN, FIN and RST are dropped until the flow begins again
    /// (R-Scope paper, section 2.3: `conn.shunt`).
    Shunted {
        /// Time of the packet that caused the shunt, ns.
        at_ns: i64,
    },
}

/// Why a packet is not kept. If there are several causes, the first one in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShedCause {
    /// The cutoff of the flow's class.
    Cutoff,
    /// The limit of [`Shedder::set_limit`].
    Limit,
    /// Tail early drop: see [`TailDrop`].
    TailDrop,
    /// The flow of the packet is [shunted](Mark::Shunted).
    Shunt,
}

impl ShedCause {
    /// All causes, in their order.
    pub const ALL: [Self; 4] = [Self::Cutoff, Self::Limit, Self::TailDrop, Self::Shunt];
}

/// An order for the capture engine: drop one direction of a flow before the packets reach the
/// [`Shedder`], or pass the direction again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOver {
    /// The flow and the direction.
    pub ends: DirectedKey,
    /// For a drop: the silence in ns after which the engine passes the direction again, and why the
    /// last packet was not kept. `None`: pass the direction.
    pub dropped: Option<(i64, ShedCause)>,
}

/// If the list of pending hand-overs has at least this length, no further flow is handed over until
/// a later packet of the flow. Flows that are taken back may make the list longer.
const HAND_OVERS_MAX: usize = 256;
/// A flow whose packets still arrive is handed over again after this time, ns. The engine may have
/// removed the flow to make room for another flow.
const HANDED_OVER_NS: i64 = 1_000_000_000;
/// A flow that begins again after a silence shorter than this is not handed over, ns. The engine
/// reports only now and then that the flow continues.
const SILENCE_MIN_NS: i64 = 1_000_000_000;
/// The engine ends dropping after a silence that is shorter by this margin, ns. The margin exceeds
/// the interval in which the engine passes no packet. So a flow that begins again here also begins
/// again in the engine.
const SILENCE_MARGIN_NS: i64 = 200_000_000;

/// The first and largest threshold, packets. At this threshold all packets are kept.
const TAIL_DROP_BEGINS: u32 = 4096;
/// Silence, ns, after which a flow begins again for tail early drop, for shunts, and for a limit
/// without a cutoff.
const IDLE_NS: i64 = 60_000_000_000;

/// The threshold of tail early drop: the number of packets that each connection keeps, both
/// directions together (`ted_thr` of the paper).
///
/// A congested period halves the threshold, down to a minimum. Any other period adds one packet, up
/// to 4,096. The paper prints `min(ted_thr / 2, ted_min)` and says "down to a minimum", which is
/// the `max` here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailDrop {
    min: u32,
    threshold: u32,
}

impl TailDrop {
    /// A threshold of at least `min` packets of a connection, 1 to 4,096. It starts at 4,096.
    #[must_use]
    pub fn new(min: u32) -> Self {
        Self {
            min: min.clamp(1, TAIL_DROP_BEGINS),
            threshold: TAIL_DROP_BEGINS,
        }
    }

    /// Reports the end of a period.
    pub fn period(&mut self, is_congested: bool) {
        self.threshold = match is_congested {
            true => (self.threshold / 2).max(self.min),
            false => (self.threshold + 1).min(TAIL_DROP_BEGINS),
        };
    }

    /// The number of packets that each connection keeps. `None`, at 4,096: all packets.
    #[must_use]
    pub fn packets_max(&self) -> Option<u32> {
        (self.threshold < TAIL_DROP_BEGINS).then_some(self.threshold)
    }
}

/// The configuration of a [`Shedder`]. The default keeps all packets.
#[derive(Debug, Clone, Default)]
pub struct ShedderConfig {
    /// The cutoff of each class of flows, at most 65,536.
    pub cutoffs: Vec<Cutoff>,
    /// Tail early drop for all flows.
    pub tail_drop: Option<TailDrop>,
    /// Flows may be marked as shunted.
    pub shunts: bool,
    /// A [limit](Shedder::set_limit) may be set.
    pub has_limit: bool,
}

impl ShedderConfig {
    /// How long the shedder remembers a silent flow, ns, unless the table is full.
    #[must_use]
    pub fn silence_ns_max(&self) -> i64 {
        let refills = self.cutoffs.iter().map(|cutoff| cutoff.refill_ns);
        let is_idle = self.tail_drop.is_some() || self.shunts || self.has_limit;
        let least = if is_idle { IDLE_NS } else { 1 };
        refills.fold(least, i64::max)
    }
}

/// Decides which packets are kept. A shedder belongs to one thread.
///
/// A packet is kept if its direction of the flow sent fewer bytes of payload than the cutoff before
/// this packet. The lengths in headers count, TCP retransmissions included. Packets that are not
/// IP, of unknown flows, of exempt flows, or with SYN, FIN or RST are kept.
///
/// A SYN without ACK starts the flow anew, and so does [`Cutoff::refill_ns`] without a packet.
///
/// Further rules, if configured:
///
/// - With a [`TailDrop`] the packet must also be one of the first packets of the flow, both
///   directions together.
/// - A limit applies like a cutoff, in addition to the cutoff.
/// - If a flow was [shunted](Mark::Shunted) after it began, its later packets are not kept until
///   the flow begins again.
///
/// For tail early drop and shunts a flow begins again after 60 s without a packet. The limit begins
/// again together with the flow's cutoff, or after 60 s if the flow has no cutoff.
#[derive(Debug)]
pub struct Shedder {
    config: ShedderConfig,
    /// Number of changes of the cutoffs.
    version: u32,
    limit: Option<u64>,
    /// Packets that the shedder decided about.
    asked: u64,
    attribution: Attribution,
    table: FlowTable,
    states: Vec<ShedState>,
    look_ns: i64,
    /// Pending hand-overs. `None` if no engine drops packets.
    hand_overs: Option<Vec<HandOver>>,
    has_new_hand_overs: bool,
}

/// The state of a flow, by the slot of the flow.
#[derive(Debug, Clone, Copy, Default)]
struct ShedState {
    /// Bytes of payload that each direction sent since the flow last began again.
    bytes: [u64; 2],
    /// Packets of both directions since the flow began or began again.
    packets: u32,
    last_ns: i64,
    /// Time of the SYN that started the flow anew. Without a SYN: the earliest time of a packet,
    /// ns.
    first_ns: i64,
    has_syn: bool,
    /// Number of the last kept packet of the flow: see [`Shedder::sheds`].
    last: Option<u64>,
    /// Index of the flow's cutoff in the cutoffs of `version`. `None`: the flow has no cutoff.
    class: Option<u16>,
    version: u32,
    is_exempt: bool,
    /// Time at which each direction was handed over last. `None`: the engine passes the direction.
    handed_ns: [Option<i64>; 2],
}

impl ShedState {
    /// Hands over the direction of a dropped packet, or takes back the direction of a kept packet.
    /// `silence_ns`: the silence after which the flow begins again.
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
    /// A shedder without flows. It uses the number of flows and the settings for VLANs and
    /// fragments of `tracker`.
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

    /// Starts or stops the hand-over of flows to an engine that drops packets before they arrive
    /// here.
    ///
    /// The engine must still pass packets with FIN, SYN or RST, and about one packet each 100 ms
    /// while the flow continues. A SYN without ACK must end dropping in both directions.
    pub fn set_hands_over(&mut self, hands_over: bool) {
        self.hand_overs = hands_over.then(Vec::new);
    }

    /// Stops handing over flows. Flows that were handed over are still taken back.
    pub fn end_hand_overs(&mut self) {
        self.has_new_hand_overs = false;
    }

    /// Takes the pending hand-overs.
    pub fn take_hand_overs(&mut self) -> Vec<HandOver> {
        self.hand_overs.as_mut().map_or(Vec::new(), std::mem::take)
    }

    /// Replaces the cutoffs. No [`Cutoff::refill_ns`] may exceed the initial
    /// [`ShedderConfig::silence_ns_max`]. The next packet of a known flow determines its class
    /// again; the bytes that the flow has sent still count.
    pub fn set_cutoffs(&mut self, cutoffs: Vec<Cutoff>) {
        self.config.cutoffs = cutoffs;
        self.version = self.version.wrapping_add(1);
    }

    /// The tail early drop, for reports of periods.
    pub fn tail_drop(&mut self) -> Option<&mut TailDrop> {
        self.config.tail_drop.as_mut()
    }

    /// Limits each direction of all flows except exempt flows to about this number of bytes of
    /// payload. `None` removes the limit.
    pub fn set_limit(&mut self, limit: Option<u64>) {
        self.limit = limit;
    }

    /// Why a packet with these captured bytes is not kept. `None`: the packet is kept.
    ///
    /// `class` is called when a flow begins or begins again, and after a change of the cutoffs. It
    /// returns the index of the flow's cutoff, or `None` if the flow has no cutoff.
    ///
    /// `mark` is called if a packet would be shed. If flows may be shunted, `mark` is called for
    /// all packets after the first packet of the flow. It is not called for exempt flows and for
    /// packets with SYN, FIN or RST. Its numbers count the calls of this function, from 0: the last
    /// kept packet of the flow, and this packet.
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
        // A stamp far in the future must not postpone the next search.
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
        // If this packet's flow evicts another flow, `before` becomes the key of the other flow.
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
        // Absolute, because the last stamp may be wrong and far in the future.
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
            // The engine may have missed the restart, or may have seen the restart before the flow
            // was handed over.
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
        // Nobody can have shunted a flow that begins with this packet.
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
