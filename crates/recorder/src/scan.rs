//! The analyzer's quick look: finds the few packets that concern anything, and passes the others by.
//!
//! Live, most packets match no rule, are no fragments, and come after every window that is over. That can be told from a
//! packet alone, without the analyzer's state, so it is one loop over a batch. What it finds goes the long way, which
//! looks at everything again. From files every packet goes the long way: there it moves the clock.
//!
//! Cost: a packet is two comparisons and one run of each rule's program.

use retroscope_filter::Program;
use retroscope_packet::{LinkType, may_be_fragment};
use retroscope_ring::Packet;

use crate::{
    interfaces::InterfaceCache,
    predicate::{Rule, aux},
};

/// What a scan stops at. Decided again after every packet that it stopped at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Packets that may match a rule.
    pub(crate) hits: bool,
    /// Packets that may be fragments.
    pub(crate) fragments: bool,
    /// Packets of this time or before, ns.
    pub(crate) until_ns: Option<i64>,
}

/// The rules' programs by ring-wide interface, filled in as packets of new interfaces come.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    by_interface: Vec<Option<Known>>,
}

/// What is needed of an interface.
#[derive(Debug)]
struct Known {
    link_type: LinkType,
    /// Of the rules that apply to the link type.
    programs: Vec<Program>,
}

impl Wanted {
    /// Whether a scan would pass every packet by.
    fn nothing(self) -> bool {
        !self.hits && !self.fragments && self.until_ns.is_none()
    }
}

impl Scan {
    /// The first packet that concerns anything, with its record number. `packets` goes on behind it.
    pub(crate) fn next<'p>(
        &mut self,
        wanted: Wanted,
        rules: &mut [Rule],
        names: &mut InterfaceCache,
        packets: &mut impl Iterator<Item = (u64, Packet<'p>)>,
    ) -> Option<(u64, Packet<'p>)> {
        if wanted.nothing() {
            return None;
        }
        let mut next = packets.next()?;
        loop {
            let interface = next.1.interface;
            let Some(known) = self.known(interface, rules, names) else {
                // An interface that no inserter registered: the long way knows no more of it.
                next = packets.next()?;
                continue;
            };
            loop {
                if known.concerns(&wanted, &next.1) {
                    return Some(next);
                }
                next = packets.next()?;
                if next.1.interface != interface {
                    break;
                }
            }
        }
    }

    fn known(
        &mut self,
        interface: u16,
        rules: &mut [Rule],
        names: &mut InterfaceCache,
    ) -> Option<&Known> {
        let index = usize::from(interface);
        if index >= self.by_interface.len() {
            self.by_interface.resize_with(index + 1, || None);
        }
        let known = &mut self.by_interface[index];
        if known.is_none() {
            let link_type = names.interface(interface)?.link_type;
            let programs = rules.iter_mut().filter_map(|rule| rule.program(link_type));
            *known = Some(Known {
                link_type,
                programs: programs.cloned().collect(),
            });
        }
        known.as_ref()
    }
}

impl Known {
    #[inline]
    fn concerns(&self, wanted: &Wanted, packet: &Packet<'_>) -> bool {
        if wanted
            .until_ns
            .is_some_and(|until_ns| packet.time_ns <= until_ns)
        {
            return true;
        }
        if wanted.fragments && may_be_fragment(self.link_type, packet.data) {
            return true;
        }
        wanted.hits
            && self.programs.iter().any(|program| {
                program.run(packet.data, packet.wire_len, aux(packet.direction)) != 0
            })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use retroscope_capture::{InterfaceInfo, TimeDomain};
    use retroscope_ring::{Ring, RingConfig};

    use super::*;
    use crate::{
        interfaces::Interfaces,
        predicate::{Expressions, Texts},
        rig::udp,
    };

    /// Rules `udp port 9` and, for Ethernet only, a sender; interfaces 0 (raw IP) and 1 (Ethernet).
    fn rules_and_names() -> (Vec<Rule>, InterfaceCache) {
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let interfaces = Arc::new(Interfaces::default());
        for link_type in [LinkType::RAW, LinkType::ETHERNET] {
            let info = InterfaceInfo {
                name: String::new(),
                link_type,
                snaplen: 0,
                time_domain: TimeDomain::KernelSoftware,
                time_resolution_ns: 1,
            };
            interfaces.register(&ring, 0, &info).unwrap();
        }
        let triggers = ["udp port 9", "ether src 00:00:00:00:00:01"].map(str::to_owned);
        let texts = Texts {
            triggers: &triggers,
            dump: "",
            manual: "",
            filter: None,
        };
        let link_types = [LinkType::RAW, LinkType::ETHERNET];
        let expressions = Expressions::new(&texts, &link_types, &Vec::new, false).unwrap();
        (expressions.rules, InterfaceCache::new(interfaces))
    }

    fn packet(time_ns: i64, interface: u16, data: &[u8]) -> Packet<'_> {
        Packet {
            time_ns,
            wire_len: 100,
            interface,
            direction: 0,
            tag_restored: false,
            data,
        }
    }

    /// The records that a scan stops at.
    fn stops(wanted: Wanted, packets: &[Packet<'_>]) -> Vec<u64> {
        let (mut rules, mut names) = rules_and_names();
        let mut scan = Scan::default();
        let mut packets = (0..).zip(packets.iter().copied());
        let mut next = || scan.next(wanted, &mut rules, &mut names, &mut packets);
        std::iter::from_fn(|| next().map(|(record, _)| record)).collect()
    }

    #[test]
    fn it_stops_at_what_is_wanted_and_at_nothing_else() {
        let (hit, other) = (udp(1, 9, 0), udp(1, 7, 0));
        let mut ethernet = vec![0; 34];
        ethernet[11..14].copy_from_slice(&[1, 8, 0]);
        let arp = [&[0; 12][..], &[8, 6], &[0; 20]].concat();
        let packets = [
            packet(10, 0, &other),
            packet(11, 1, &ethernet),
            packet(12, 1, &arp),
            packet(13, 0, &hit),
            packet(14, 7, &hit), // of an interface that was not registered
            packet(5, 1, &arp),
            packet(15, 0, &hit[..10]),
            packet(16, 0, &hit),
        ];
        let none = Wanted {
            hits: false,
            fragments: false,
            until_ns: None,
        };
        assert!(stops(none, &packets).is_empty());
        assert_eq!(stops(Wanted { hits: true, ..none }, &packets), [1, 3, 7]);
        let late = Wanted {
            until_ns: Some(11),
            ..none
        };
        assert_eq!(stops(late, &packets), [0, 1, 5]);
        let fragments = Wanted {
            fragments: true,
            ..none
        };
        // Of raw IP every packet may be one.
        assert_eq!(stops(fragments, &packets), [0, 3, 6, 7]);
        ethernet[20] = 0x20;
        let fragment = [packet(0, 1, &arp), packet(0, 1, &ethernet)];
        assert_eq!(stops(fragments, &fragment), [1]);
    }
}
