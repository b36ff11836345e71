//! The analyzer's quick look: finds the few packets that concern anything, so that the others can be passed by.
//!
//! Live, most packets match no rule, are no fragments, and come after every window that is over. That can be told from
//! packets alone, without the analyzer's state, for up to 64 of them at once. What is found goes the long way, which looks
//! at everything again. From files every packet goes the long way: there it moves the clock.

use std::ops::Range;

use retroscope_filter::{Filter, Frame, Mode};
use retroscope_packet::{LinkType, may_be_fragment};

use crate::{chunk::Chunk, interfaces::InterfaceCache, predicate::Rule};

/// What a scan finds. Any packet may change it that goes the long way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Packets that match a rule.
    pub(crate) hits: bool,
    /// Packets that may be fragments.
    pub(crate) fragments: bool,
    /// Packets of this time or before, ns.
    pub(crate) until_ns: Option<i64>,
}

/// The rules' filters by ring-wide interface, filled in as packets of new interfaces come.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    by_interface: Vec<Option<Known>>,
}

/// What is needed of an interface.
#[derive(Debug)]
struct Known {
    link_type: LinkType,
    /// Of the rules that apply to the link type, with the mode they are compiled for.
    filters: Vec<(Filter, Mode)>,
}

impl Wanted {
    /// Whether a scan would find nothing.
    pub(crate) fn nothing(self) -> bool {
        !self.hits && !self.fragments && self.until_ns.is_none()
    }
}

impl Scan {
    /// Which of the records of `chunk` at `run`, all of `interface`, concern anything: bit `n` is that of the `n`th of them.
    pub(crate) fn find(
        &mut self,
        wanted: Wanted,
        rules: &mut [Rule],
        names: &mut InterfaceCache,
        chunk: &Chunk<'_>,
        (interface, run): (u16, Range<usize>),
    ) -> u64 {
        if wanted.nothing() {
            return 0;
        }
        // The long way knows no more of an interface that no inserter registered.
        let known = self.known(interface, rules, names);
        known.map_or(0, |known| known.find(wanted, chunk, (interface, run)))
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
            let filters = rules.iter_mut().filter_map(|rule| rule.filter(link_type));
            *known = Some(Known {
                link_type,
                filters: filters
                    .map(|(filter, mode)| (filter.clone(), mode))
                    .collect(),
            });
        }
        known.as_ref()
    }
}

impl Known {
    /// As [`Scan::find`], of records of this interface.
    fn find(
        &self,
        wanted: Wanted,
        chunk: &Chunk<'_>,
        (interface, run): (u16, Range<usize>),
    ) -> u64 {
        let mut found = 0;
        if let Some(until_ns) = wanted.until_ns {
            found |= chunk.those(run.clone(), |time_ns| time_ns <= until_ns);
        }
        let frames = chunk.frames(run);
        if wanted.fragments {
            found |= self.fragments(frames);
        }
        if wanted.hits {
            for (filter, mode) in &self.filters {
                let link = (self.link_type, *mode);
                found |= filter.matches_many(link, interface, frames);
            }
        }
        found
    }

    fn fragments(&self, frames: &[Frame<'_>]) -> u64 {
        frames.iter().enumerate().fold(0, |set, (index, frame)| {
            let may_be = may_be_fragment(self.link_type, frame.data());
            set | u64::from(may_be) << index
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use retroscope_capture::{InterfaceInfo, TimeDomain};
    use retroscope_ring::{Packet, Ring, RingConfig};

    use super::*;
    use crate::{
        interfaces::Interfaces,
        predicate::{Expressions, Texts},
        rig::udp,
    };

    /// Rules `udp port 9`, for Ethernet only a sender, and a string in the payload; interfaces 0 (raw IP) and 1 (Ethernet).
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
        let triggers = [
            "udp port 9",
            "ether src 00:00:00:00:00:01",
            "payload contains \"hay!\" and udp",
        ]
        .map(str::to_owned);
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

    /// The packets that a scan finds.
    fn found(wanted: Wanted, packets: &[Packet<'_>]) -> Vec<usize> {
        let (mut rules, mut names) = rules_and_names();
        let mut scan = Scan::default();
        let mut chunk = Chunk::new();
        chunk.fill(packets.iter().copied());
        let mut found = Vec::new();
        for (interface, run) in chunk.runs() {
            let set = scan.find(
                wanted,
                &mut rules,
                &mut names,
                &chunk,
                (interface, run.clone()),
            );
            found.extend(run.clone().filter(|n| set >> (n - run.start) & 1 == 1));
        }
        found
    }

    #[test]
    fn it_finds_what_is_wanted_and_nothing_else() {
        let (hit, other) = (udp(1, 9, 0), udp(1, 7, 0));
        let word = udp(1, 7, u32::from_be_bytes(*b"hay!"));
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
            packet(17, 0, &word),
        ];
        let none = Wanted {
            hits: false,
            fragments: false,
            until_ns: None,
        };
        assert!(found(none, &packets).is_empty());
        assert_eq!(found(Wanted { hits: true, ..none }, &packets), [1, 3, 7, 8]);
        let late = Wanted {
            until_ns: Some(11),
            ..none
        };
        assert_eq!(found(late, &packets), [0, 1, 5]);
        let fragments = Wanted {
            fragments: true,
            ..none
        };
        // Of raw IP every packet may be one.
        assert_eq!(found(fragments, &packets), [0, 3, 6, 7, 8]);
        ethernet[20] = 0x20;
        let fragment = [packet(0, 1, &arp), packet(0, 1, &ethernet)];
        assert_eq!(found(fragments, &fragment), [1]);
    }
}
