//! Looking at packets: 64 together, to find those that concern anything, and then one by one.
//!
//! Live, most packets match no rule, are no fragments, and come after every window that is over. That can be told from
//! packets alone, without the analyzer's state. From files every packet is looked at: there it moves the clock.

use std::ops::Range;

use retroscope_packet::LinkType;
use retroscope_ring::{Batch, Packet};

use super::{Core, STOP_DRAIN_NS};
use crate::{
    analysis::{
        chunk::{Chunk, MANY, Walk, fragments},
        triggers::RuleHit,
    },
    intake::lookout::Suspects,
};

impl Core {
    /// Looks at the packets of a batch: from files at each, live at those that concern anything.
    pub(super) fn look_at(&mut self, batch: &Batch<'_>) {
        if self.live && (self.wanted(batch.producer).nothing() || self.is_passed_by(batch)) {
            #[cfg(test)]
            {
                self.passed_by += batch.len();
            }
            self.analyzed += batch.len() as u64;
            return;
        }
        let mut chunk = Chunk::new();
        let mut packets = batch.iter();
        let mut record = batch.first;
        loop {
            if self.live {
                chunk.most = self.looks.stride.min(MANY);
            }
            let mut walk = Walk::new(packets.clone());
            let asked = packets.clone().take(chunk.most);
            self.ask_scripts((batch.producer, record), asked);
            let count = chunk.fill(&mut packets);
            if count == 0 {
                return;
            }
            for (interface, run) in chunk.runs() {
                let place = (batch.producer, record);
                self.look_at_run(place, &chunk, (interface, run), &mut walk);
            }
            record += count as u64;
            self.analyzed += count as u64;
            if self.live && self.looks.passed(count) && self.is_time_over() {
                let end = batch.first + batch.len() as u64;
                self.broken_off = Some((batch.producer, end - record));
                return;
            }
        }
    }

    /// Reads the clock amidst packets, and looks after what waits for it. Whether to look at packets no more.
    fn is_time_over(&mut self) -> bool {
        let mono_ns = self.common.clock.mono_ns();
        if self.looks.is_due(mono_ns) {
            self.look_after(self.common.clock.now(), None);
        }
        let stopping = self.common.control.stopping();
        stopping && mono_ns - *self.stopped_ns.get_or_insert(mono_ns) >= STOP_DRAIN_NS
    }

    /// Whether the inserter looked at the packets and found nothing that is wanted, and none is of a window that is over.
    fn is_passed_by(&self, batch: &Batch<'_>) -> bool {
        let none = |suspects: &Suspects| suspects.none_from(batch.producer, batch.first);
        let is_promised = self.is_promised(batch.producer);
        !self.closed.concerns(batch.oldest_ns, is_promised)
            && self.parts.suspects.as_ref().is_some_and(none)
    }

    /// The same for records of one interface. `first` is the number of the chunk's first record.
    fn look_at_run(
        &mut self,
        (producer, first): (usize, u64),
        chunk: &Chunk<'_>,
        (interface, run): (u16, Range<usize>),
        walk: &mut Walk<'_>,
    ) {
        // An interface that no inserter registered is unknown.
        let interface_info = self.names.interface(interface);
        let link_type = interface_info.map(|interface| interface.link_type);
        let mut wanted = self.wanted(producer);
        let mut of_rules = 0;
        let mut hits = Vec::new();
        if let Some(link_type) = link_type
            && wanted.hits
        {
            let frames = chunk.frames(run.clone());
            of_rules = self.parts.triggers.find(link_type, interface, frames);
            hits = std::mem::take(&mut self.parts.triggers.hits);
        }
        let live = self.live;
        // What scripts take is found like what rules take.
        of_rules |= self.parts.scripts.triggers.found(&run);
        let find = |wanted: Wanted| match link_type {
            _ if !live => u64::MAX >> (u64::BITS as usize - run.len()),
            Some(link_type) => wanted.find(of_rules, link_type, chunk, run.clone()),
            None => 0,
        };
        let (mut found, mut behind) = (find(wanted), u64::MAX);
        let mut left = hits.as_slice();
        if live && of_rules != 0 {
            // Behind the arrival of the packets, however long this thread stood still before: the latest end of a window that opens is
            // counted from here.
            self.director.mono_ns = self.common.clock.mono_ns();
        }
        while found & behind != 0 {
            let frame = (found & behind).trailing_zeros();
            behind = (u64::MAX << frame) << 1;
            let frame = frame as usize;
            let Some(packet) = walk.to(run.start + frame) else {
                break;
            };
            left = &left[left.partition_point(|hit| hit.frame < frame)..];
            let (its, behind_it) = left.split_at(left.partition_point(|hit| hit.frame == frame));
            left = behind_it;
            let record = first + (run.start + frame) as u64;
            self.packet((producer, record), &packet, its, run.start + frame);
            let wanted_now = self.wanted(producer);
            if wanted_now != wanted {
                wanted = wanted_now;
                found = find(wanted);
            }
        }
        self.parts.triggers.hits = hits;
    }

    /// Whether the clock that closes windows waits for a producer. Offline it is the packets' own.
    fn is_promised(&self, producer: usize) -> bool {
        self.live && self.promises.get(producer).copied().unwrap_or(true)
    }

    fn wanted(&self, producer: usize) -> Wanted {
        let armed = self.director.armed;
        Wanted {
            hits: armed,
            fragments: armed && self.fragments.wanted,
            until_ns: self.closed.until_ns(self.is_promised(producer)),
        }
    }

    /// Looks at a packet, with its hits of rules. It is the one at `place` of its chunk.
    fn packet(
        &mut self,
        (producer, record): (usize, u64),
        packet: &Packet<'_>,
        hits: &[RuleHit],
        place: usize,
    ) {
        if !self.live {
            self.offline_clock(record, packet);
        }
        if self
            .closed
            .concerns(packet.time_ns, self.is_promised(producer))
            && let Some(interface) = self.names.interface(packet.interface)
        {
            let offset_ns = self.stamps.offset_ns(producer, interface.source, record);
            self.closed
                .check(producer, record, interface, packet, offset_ns);
        }
        if !self.director.armed {
            return;
        }
        if let Some(interface) = self.names.interface(packet.interface) {
            self.fragments
                .see(interface.link_type, packet.time_ns, packet.data);
        }
        for hit in hits {
            let rule = self.parts.triggers.count(hit);
            self.hit(rule, (producer, record), packet);
        }
        for script in 0..self.parts.scripts.triggers.len() {
            if self.parts.scripts.triggers.takes(script, place) {
                let rule = self.parts.triggers.at_start() + script;
                self.hit(rule, (producer, record), packet);
            }
        }
    }
}

/// What is looked for. Any packet may change it that is looked at closely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    /// Packets that match a rule.
    hits: bool,
    /// Packets that may be fragments.
    fragments: bool,
    /// Packets of this time or before, ns.
    until_ns: Option<i64>,
}

impl Wanted {
    /// Whether nothing is.
    fn nothing(self) -> bool {
        !self.hits && !self.fragments && self.until_ns.is_none()
    }

    /// Which of the records of `chunk` at `run`, all of one link type, are wanted: bit `n` is that of the `n`th of them.
    /// `of_rules` are those that match a rule.
    fn find(self, of_rules: u64, link_type: LinkType, chunk: &Chunk<'_>, run: Range<usize>) -> u64 {
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

#[cfg(test)]
mod tests {
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
