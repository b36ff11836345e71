//! What the analyzer does between the packets that its [shard](crate::analysis::shard) looks at, and with what that finds.

use retroscope_ring::{Batch, Packet};

use super::{Core, STOP_DRAIN_NS};
use crate::{
    analysis::{
        chunk::MANY,
        director::{Hit, HitOrder},
        predicate::Expression,
        shard::{Findings, Shard, Sought},
    },
    control::hits::Refusal,
    intake::lookout::Suspects,
};

impl Core {
    /// Hands the packets of a batch to the shard; live it looks after clocks and commands amidst them.
    pub(super) fn look_at(&mut self, shard: &mut Shard, batch: &Batch<'_>) {
        let wants_nothing = || shard.wants_nothing(self.sought(batch.producer));
        if self.live && (wants_nothing() || self.is_passed_by(batch)) {
            #[cfg(test)]
            {
                self.passed_by += batch.len();
            }
            self.analyzed += batch.len() as u64;
            return;
        }
        let mut packets = batch.iter();
        let mut record = batch.first;
        loop {
            let most = if self.live {
                self.looks.stride.min(MANY)
            } else {
                MANY
            };
            let count = shard.look((batch.producer, record), &mut packets, most, self);
            if count == 0 {
                return;
            }
            record += count as u64;
            self.analyzed += count as u64;
            if self.live && self.looks.passed(count) && self.is_time_over(shard) {
                let end = batch.first + batch.len() as u64;
                self.broken_off = Some((batch.producer, end - record));
                return;
            }
        }
    }

    /// Reads the clock amidst packets, and looks after what waits for it. Whether to look at packets no more.
    fn is_time_over(&mut self, shard: &mut Shard) -> bool {
        let mono_ns = self.common.clock.mono_ns();
        if self.looks.is_due(mono_ns) {
            self.look_after(shard, self.common.clock.now(), None);
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

    /// Whether the clock that closes windows waits for a producer. Offline it is the packets' own.
    fn is_promised(&self, producer: usize) -> bool {
        self.live && self.promises.get(producer).copied().unwrap_or(true)
    }
}

impl Findings for Core {
    fn sought(&self, producer: usize) -> Sought {
        Sought {
            hits: self.director.armed,
            until_ns: self.closed.until_ns(self.is_promised(producer)),
        }
    }

    fn before_hits(&mut self) {
        if self.live {
            // Behind the arrival of the packets, however long this thread stood still before: the latest end of a window that opens is
            // counted from here.
            self.director.mono_ns = self.common.clock.mono_ns();
        }
    }

    fn packet(&mut self, (producer, record): (usize, u64), packet: &Packet<'_>) {
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
    }

    fn hit(&mut self, order: HitOrder, expression: Result<Expression, Refusal>) {
        self.settle_live();
        let hit = Hit {
            order,
            terms: self.terms_of(order.rule),
            expression,
        };
        self.director.hit(hit, &mut self.orders);
        self.execute();
    }
}
