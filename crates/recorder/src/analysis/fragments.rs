//! The flow of a later fragment, learned from the first fragments of datagrams, for triggers.
//!
//! A later fragment carries no ports. If such a fragment triggers a dump, the dump's own scan
//! learns the flow too late: the scan has then passed the older packets of the flow.

use retroscope_filter::{Template, Variable};
use retroscope_packet::{
    Datagrams, FlowKey, LinkType, Parsed, flow_of, fragment_of, may_be_fragment, parse,
};

/// Largest distance between a first and a later fragment, ns, because senders reuse
/// identifications. IPv6 waits for fragments for this time (RFC 8200, 4.5).
const APART_MAX_NS: u64 = 60_000_000_000;

/// Whether a template uses the flow of its trigger packet.
pub(crate) fn asks_for_flows(template: &Template) -> bool {
    let mut variables = template.variables().into_iter();
    variables.any(|it| matches!(it, Variable::Flow | Variable::CommunityId))
}

/// The most recent first fragments.
#[derive(Debug)]
pub(crate) struct FirstFragments {
    /// Whether a template, or the text of a module, may need flows. If not, nothing is learned.
    pub(crate) wanted: bool,
    /// The flow of each datagram, and the ring time of its first fragment, ns.
    flows: Datagrams<(FlowKey, i64)>,
}

impl FirstFragments {
    pub(crate) fn new(wanted: bool) -> Self {
        Self {
            wanted,
            flows: Datagrams::default(),
        }
    }

    /// Sets whether flows are needed. If not, forgets all fragments, because their identifications
    /// may be reused.
    pub(crate) fn want(&mut self, wanted: bool) {
        if self.wanted && !wanted {
            self.flows = Datagrams::default();
        }
        self.wanted = wanted;
    }

    /// Learns the flow of a packet that is a first fragment.
    #[inline]
    pub(crate) fn see(&mut self, link_type: LinkType, time_ns: i64, data: &[u8]) {
        if self.wanted && may_be_fragment(link_type, data) {
            self.learn(&parse(link_type, data), time_ns);
        }
    }

    fn learn(&mut self, packet: &Parsed, time_ns: i64) {
        if packet.is_later_fragment() {
            return;
        }
        let (Some(datagram), Some(flow)) = (fragment_of(packet), flow_of(packet)) else {
            return;
        };
        self.flows.insert(datagram, (flow, time_ns));
    }

    /// The flow of a later fragment with this time, if the first fragment of its datagram is
    /// remembered, with a time at most [`APART_MAX_NS`] earlier or later.
    pub(crate) fn flow(&self, packet: &Parsed, time_ns: i64) -> Option<FlowKey> {
        if !packet.is_later_fragment() {
            return None;
        }
        let (flow, first_ns) = self.flows.get(&fragment_of(packet)?)?;
        (time_ns.abs_diff(*first_ns) <= APART_MAX_NS).then_some(*flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP fragment; `port` is the source port of a first fragment.
    fn fragment(id: u16, port: u16, is_later: bool) -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 36, 0, 0, 0x20, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 9, 0,
            40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        if is_later {
            packet[6..8].copy_from_slice(&[0, 2]);
        }
        packet
    }

    fn first_fragments(template: &str) -> FirstFragments {
        FirstFragments::new(asks_for_flows(&Template::parse(template).unwrap()))
    }

    fn told(fragments: &FirstFragments, id: u16, time_ns: i64) -> Option<String> {
        let later = parse(LinkType::RAW, &fragment(id, 0xffff, true));
        let flow = fragments.flow(&later, time_ns);
        flow.map(|flow| flow.to_string())
    }

    #[test]
    fn a_later_fragment_has_the_flow_of_its_first() {
        let mut fragments = first_fragments("$flow and not port 9");
        let later = fragment(1, 0xffff, true);
        fragments.see(LinkType::RAW, 0, &later);
        assert_eq!(told(&fragments, 1, 0), None, "an orphan");
        fragments.see(LinkType::RAW, 5, &fragment(1, 7, false));
        fragments.see(LinkType::RAW, 5, &fragment(2, 8, false));
        let flow = |port| Some(format!("udp 10.0.0.1:{port} 10.0.0.2:9"));
        assert_eq!(told(&fragments, 1, 6), flow(7));
        assert_eq!(told(&fragments, 2, 4), flow(8), "stamped before its first");
        assert_eq!(told(&fragments, 3, 6), None);
        let whole = parse(LinkType::RAW, &fragment(1, 7, false));
        assert_eq!(fragments.flow(&whole, 6), None, "it tells its flow itself");
        fragments.see(LinkType::RAW, 7, &fragment(1, 70, false));
        assert_eq!(told(&fragments, 1, 8), flow(70), "the last one counts");
    }

    #[test]
    fn old_ones_say_nothing() {
        let mut fragments = first_fragments("$communityId");
        let apart_ns = i64::try_from(APART_MAX_NS).unwrap();
        fragments.see(LinkType::RAW, 5, &fragment(1, 7, false));
        assert!(told(&fragments, 1, 5 + apart_ns).is_some());
        assert_eq!(told(&fragments, 1, 6 + apart_ns), None);
    }

    #[test]
    fn nothing_is_learned_for_templates_that_do_not_ask() {
        let mut fragments = first_fragments("host $srcIP and $iface");
        fragments.see(LinkType::RAW, 5, &fragment(1, 7, false));
        assert_eq!(told(&fragments, 1, 5), None);
    }
}
