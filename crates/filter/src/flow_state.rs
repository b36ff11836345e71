//! The fragmented datagrams of the flow that a filter follows.

use std::net::IpAddr;

use retroscope_packet::proto::{SCTP, TCP, UDP};
use retroscope_packet::{Datagrams, FlowKey, FragmentKey, Parsed, flow_of, fragment_of};

use crate::filled::{FlowTerm, TermValues};

/// Fragmented datagrams that a filter has seen while it follows a flow. The caller needs a separate
/// state for each [`crate::Filter`] and for each pass over the packets.
///
/// A later fragment of TCP, UDP or SCTP carries no ports. It belongs to the flow if the first
/// fragment of its datagram does.
#[derive(Debug, Clone, Default)]
pub struct FlowState {
    /// Whether a datagram belongs to the flow.
    datagrams: Datagrams<bool>,
    /// Whether a datagram was evicted because there were too many. Its later fragments may then be
    /// missed.
    pub has_forgotten: bool,
    /// Flow of a trigger packet that is a later fragment, once the first fragment shows the flow.
    learned: Option<FlowKey>,
}

impl FlowState {
    pub(crate) fn new(terms: &TermValues) -> Self {
        let mut state = Self::default();
        if let Some(datagram) = terms.datagram() {
            state.datagrams.insert(datagram, true);
        }
        state
    }

    /// Learns from the first fragment of a datagram. Returns the key of the datagram, whose later
    /// fragments are then decided. `None` for any other packet, and if the packet's or the filter's
    /// flow is unknown.
    pub(crate) fn observe(&mut self, term: FlowTerm, packet: &Parsed) -> Option<FragmentKey> {
        let datagram = fragment_of(packet).filter(|_| !packet.is_later_fragment())?;
        let flow = flow_of(packet)?;
        if let FlowTerm::Datagram(of_trigger) = term
            && of_trigger == datagram
            && self.learned.is_none()
        {
            self.learned = Some(flow);
        }
        let key = self.key(term)?;
        self.has_forgotten |= self.datagrams.insert(datagram, flow == key);
        Some(datagram)
    }

    /// Whether a packet belongs to the flow. `None` if that is not known yet.
    pub(crate) fn belongs(&self, term: FlowTerm, packet: &Parsed) -> Option<bool> {
        let datagram = fragment_of(packet);
        if let FlowTerm::Datagram(of_trigger) = term
            && datagram == Some(of_trigger)
        {
            return Some(true);
        }
        let Some(key) = self.key(term) else {
            return Some(false);
        };
        // The flow's ports are unknown, so the addresses and the protocol decide.
        if let FlowKey::Ip { proto, .. } = key
            && matches!(proto, TCP | UDP | SCTP)
        {
            return Some(could_belong(key, packet));
        }
        match (flow_of(packet), datagram) {
            (Some(flow), _) => Some(flow == key),
            (None, Some(datagram)) if packet.is_later_fragment() => {
                let known = self.datagrams.get(&datagram).copied();
                known.or_else(|| (!could_belong(key, packet)).then_some(false))
            }
            _ => Some(false),
        }
    }

    fn key(&self, term: FlowTerm) -> Option<FlowKey> {
        match term {
            FlowTerm::Key { key, .. } => Some(key),
            FlowTerm::Datagram(_) => self.learned,
        }
    }
}

/// Compares the addresses with those of an IP flow, and the protocol if the packet shows its
/// protocol, but no ports.
fn could_belong(key: FlowKey, packet: &Parsed) -> bool {
    let Some(ip) = packet.network else {
        return false;
    };
    let between = |proto: u8, low: IpAddr, high: IpAddr| {
        ip.proto.is_none_or(|of_packet| of_packet == proto)
            && ((ip.src, ip.dst) == (low, high) || (ip.src, ip.dst) == (high, low))
    };
    match key {
        FlowKey::Ports { proto, low, high } => between(proto, low.addr, high.addr),
        FlowKey::Ip { proto, low, high } => between(proto, low, high),
        FlowKey::Mac { .. } | FlowKey::Link { .. } => false,
    }
}
