//! Looking at packets: 64 together, to find those that concern anything, and then one by one.

use std::ops::Range;

use retroscope_ring::{Batch, Packet};

use super::Core;
use crate::{
    analysis::{
        chunk::{Chunk, Walk},
        scan::Wanted,
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
            return;
        }
        let mut chunk = Chunk::new();
        let mut packets = batch.iter();
        let mut record = batch.first;
        loop {
            let mut walk = Walk::new(packets.clone());
            self.ask_scripts((batch.producer, record), packets.clone());
            let count = chunk.fill(&mut packets);
            if count == 0 {
                return;
            }
            for (interface, run) in chunk.runs() {
                let place = (batch.producer, record);
                self.look_at_run(place, &chunk, (interface, run), &mut walk);
            }
            record += count as u64;
        }
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
        // Of an interface that no inserter registered nothing is known.
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
            hits = self.parts.triggers.take_hits();
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
            self.director.set_mono(self.common.clock.clock().mono_ns());
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
        self.parts.triggers.give_back(hits);
    }

    /// Whether the clock that closes windows waits for a producer. Offline it is the packets' own.
    fn is_promised(&self, producer: usize) -> bool {
        self.live && self.promises.get(producer).copied().unwrap_or(true)
    }

    fn wanted(&self, producer: usize) -> Wanted {
        let armed = self.director.armed();
        Wanted {
            hits: armed,
            fragments: armed && self.fragments.wanted(),
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
        if !self.director.armed() {
            return;
        }
        if let Some(interface) = self.names.interface(packet.interface) {
            self.fragments
                .see(interface.link_type, packet.time_ns, packet.data);
        }
        for hit in hits {
            self.parts.triggers.count(hit.rule);
            self.hit(hit.rule, (producer, record), packet);
        }
        for script in 0..self.parts.scripts.triggers.len() {
            if self.parts.scripts.triggers.takes(script, place) {
                self.hit(
                    self.parts.triggers.len() + script,
                    (producer, record),
                    packet,
                );
            }
        }
    }
}
