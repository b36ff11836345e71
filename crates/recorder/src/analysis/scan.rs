//! The analyzer's quick look: finds the few packets that concern anything, so that the others can be passed by.
//!
//! Live, most packets match no rule, are no fragments, and come after every window that is over. That can be told from
//! packets alone, without the analyzer's state, for up to 64 of them at once. What is found is looked at one by one. From
//! files every packet is: there it moves the clock.

use std::ops::Range;

use retroscope_filter::Frame;
use retroscope_packet::{LinkType, may_be_fragment};

use crate::analysis::chunk::Chunk;

/// What is looked for. Any packet may change it that is looked at closely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Packets that match a rule.
    pub(crate) hits: bool,
    /// Packets that may be fragments.
    pub(crate) fragments: bool,
    /// Packets of this time or before, ns.
    pub(crate) until_ns: Option<i64>,
}

impl Wanted {
    /// Whether nothing is.
    pub(crate) fn nothing(self) -> bool {
        !self.hits && !self.fragments && self.until_ns.is_none()
    }

    /// Which of the records of `chunk` at `run`, all of one link type, are wanted: bit `n` is that of the `n`th of them.
    /// `of_rules` are those that match a rule.
    pub(crate) fn find(
        self,
        of_rules: u64,
        link_type: LinkType,
        chunk: &Chunk<'_>,
        run: Range<usize>,
    ) -> u64 {
        let mut found = if self.hits { of_rules } else { 0 };
        if let Some(until_ns) = self.until_ns {
            found |= chunk.those(run.clone(), |time_ns| time_ns <= until_ns);
        }
        if self.fragments {
            found |= fragments(link_type, chunk.frames(run));
        }
        found
    }
}

/// The frames that may be fragments.
pub(crate) fn fragments(link_type: LinkType, frames: &[Frame<'_>]) -> u64 {
    frames.iter().enumerate().fold(0, |set, (index, frame)| {
        let may_be = may_be_fragment(link_type, frame.data());
        set | u64::from(may_be) << index
    })
}

#[cfg(test)]
mod tests {
    use retroscope_ring::Packet;

    use super::*;
    use crate::tests::rig::udp;

    const NOTHING: Wanted = Wanted {
        hits: false,
        fragments: false,
        until_ns: None,
    };

    /// Finds among packets with these time stamps and bytes, of which 1 and 3 match a rule.
    fn found(wanted: Wanted, link_type: LinkType, packets: &[(i64, &[u8])]) -> u64 {
        let packets = packets.iter().map(|&(time_ns, data)| Packet {
            time_ns,
            wire_len: 100,
            interface: 0,
            direction: 0,
            tag_restored: false,
            data,
        });
        let mut chunk = Chunk::new();
        let count = chunk.fill(packets);
        wanted.find(0b1010, link_type, &chunk, 0..count)
    }

    #[test]
    fn it_finds_what_is_wanted_and_nothing_else() {
        let mut ethernet = vec![0; 34];
        ethernet[11..14].copy_from_slice(&[1, 8, 0]);
        let arp = [&[0; 12][..], &[8, 6], &[0; 20]].concat();
        let mut fragment = ethernet.clone();
        fragment[20] = 0x20;
        let packets: [(i64, &[u8]); 5] = [
            (10, &ethernet),
            (11, &arp),
            (12, &fragment),
            (5, &ethernet[..10]),
            (13, &arp),
        ];
        let found = |wanted| found(wanted, LinkType::ETHERNET, &packets);
        assert!(NOTHING.nothing());
        assert_eq!(found(NOTHING), 0);
        let hits = Wanted {
            hits: true,
            ..NOTHING
        };
        assert_eq!(found(hits), 0b1010);
        let late = Wanted {
            until_ns: Some(10),
            ..NOTHING
        };
        assert_eq!(found(late), 0b1001);
        let fragments = Wanted {
            fragments: true,
            ..NOTHING
        };
        assert_eq!(found(fragments), 0b1100, "one that is cut short may be one");
        let all = Wanted {
            until_ns: Some(10),
            fragments: true,
            ..hits
        };
        assert_eq!(found(all), 0b1111);
        assert!(!hits.nothing() && !late.nothing() && !fragments.nothing());
    }

    #[test]
    fn of_raw_ip_every_packet_may_be_a_fragment() {
        let packet = udp(1, 7, 0);
        let fragments = Wanted {
            fragments: true,
            ..NOTHING
        };
        assert_eq!(found(fragments, LinkType::RAW, &[(1, &packet)]), 1);
    }
}
