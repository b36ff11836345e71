//! A bounded table of flows, for example the flows of one shard.
//!
//! A packet usually touches one cache line of the index and the two lines of its flow. A batch
//! first hashes all keys and loads these lines without waiting for one another. Then it counts.
//!
//! A full table evicts one flow for each new flow. It takes flows from the queue until the due time
//! of a flow is no later than its entry says, or until it has [`LOOKS`] flows. It evicts the flow
//! with the earliest due time among these flows.
//!
//! If all 96 candidate places of a flow are full, the flow in the first group that is due first is
//! evicted.
//!
//! An entry of the queue is valid if its stamp equals the stamp in its flow. Other entries are out
//! of date, and are skipped when extracted. An entry that is extracted before its flow is due is
//! inserted again. A flow that becomes due before its entry gets another entry, unless the queue
//! has twice as many entries as the table may have flows.

#[cfg(test)]
mod tests;

use std::hint::black_box;
use std::ops::Range;

use crate::flow::Flow;
use crate::index::{FlowIndex, addresses};
use crate::time_outs::TimeOuts;
use crate::{FlowPacket, MultiresolutionQueue, Secret, TimerEntry, TimerResolution, Timers};

/// Maximum number of packets that are looked up together.
pub(crate) const TOGETHER: usize = 64;
/// Maximum number of flows that a full table compares to choose the flow that it evicts.
const LOOKS: usize = 16;
/// Slots of 134 ms for 9 minutes, and slots of 8.6 s for 9.8 hours.
pub(crate) const RESOLUTIONS: [TimerResolution; 2] = [
    TimerResolution {
        bits: 27,
        slots: 4096,
    },
    TimerResolution {
        bits: 33,
        slots: 4096,
    },
];

/// Gets the addresses of memory that a table has reserved and not yet touched, for example to ask
/// the system for larger pages.
pub type Advise = fn(Range<*const u8>);

/// The reason why a flow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowEnd {
    /// No packet arrived during the time-out.
    TimeOut,
    /// A SYN began a new TCP connection.
    Reused,
    /// The table was full, and a new flow began.
    Full,
    /// All places for the hash of a new flow were taken.
    Crowded,
    /// The caller ended all flows.
    Finished,
}

/// Counters of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FlowTableCounters {
    /// Packets counted in flows.
    pub packets: u64,
    /// Flows that began.
    pub begun: u64,
    /// Flows ended by [`FlowEnd::TimeOut`].
    pub timed_out: u64,
    /// Flows ended by [`FlowEnd::Reused`].
    pub reused: u64,
    /// Flows ended by [`FlowEnd::Full`].
    pub full: u64,
    /// Flows ended by [`FlowEnd::Crowded`].
    pub crowded: u64,
    /// Flows ended by [`FlowEnd::Finished`].
    pub finished: u64,
    /// Flows ended by [`FlowTable::remove`].
    pub removed: u64,
}

/// A bounded table of flows: one thread, no lock.
#[derive(Debug)]
pub struct FlowTable<Q = MultiresolutionQueue> {
    secret: Secret,
    time_outs: TimeOuts,
    flows_max: usize,
    index: FlowIndex,
    /// Live flows, and free slots.
    flows: Vec<Flow>,
    free: Vec<u32>,
    queue: Q,
    counters: FlowTableCounters,
}

impl FlowTable {
    /// An empty table for `flows_max` flows, 1 to 2^32 - 1. It reserves 128 bytes for each flow,
    /// and touches this memory as flows begin.
    ///
    /// # Panics
    /// If `flows_max` is outside its range.
    #[must_use]
    pub fn new(flows_max: usize, time_outs: TimeOuts, secret: Secret) -> Self {
        Self::with_advice(flows_max, time_outs, secret, |_| {})
    }
}

impl<Q: Timers> FlowTable<Q> {
    /// As [`FlowTable::new`], with any queue. `advise` gets the reserved memory. A packet touches
    /// two random places of this memory, so in a large table with pages of 4 KiB both accesses
    /// usually miss the TLB.
    ///
    /// # Panics
    /// As [`FlowTable::new`].
    #[must_use]
    pub fn with_advice(
        flows_max: usize,
        time_outs: TimeOuts,
        secret: Secret,
        advise: Advise,
    ) -> Self {
        assert!(
            flows_max > 0 && u32::try_from(flows_max).is_ok(),
            "{flows_max} flows"
        );
        let flows = Vec::with_capacity(flows_max);
        advise(addresses(&flows));
        Self {
            secret,
            time_outs,
            flows_max,
            index: FlowIndex::new(flows_max, advise),
            flows,
            free: Vec::new(),
            queue: Q::empty(),
            counters: FlowTableCounters::default(),
        }
    }

    /// Counts packets in their flows. `ended` gets each flow that ends: see [`FlowEnd`].
    #[inline]
    pub fn update(&mut self, packets: &[FlowPacket], ended: impl FnMut(&Flow, FlowEnd)) {
        self.update_each(packets, |_, _| {}, ended);
    }

    /// As [`Self::update`]. `counted` gets, for each packet in order, the slot of its flow, below
    /// `flows_max`, and whether the packet begins the flow. A slot may go to another flow after its
    /// flow ends, even within this call.
    #[inline]
    pub fn update_each(
        &mut self,
        packets: &[FlowPacket],
        mut counted: impl FnMut(u32, bool),
        mut ended: impl FnMut(&Flow, FlowEnd),
    ) {
        for packets in packets.chunks(TOGETHER) {
            let mut hashes = [0; TOGETHER];
            for (hash, packet) in hashes.iter_mut().zip(packets) {
                *hash = self.secret.hash(&packet.ends.key);
            }
            // Short loops of independent reads, so that the processor does many reads at a time.
            // `black_box` keeps reads whose values are not used.
            let hashes = &hashes[..packets.len()];
            let read = hashes.iter().map(|hash| self.index.touch(*hash));
            black_box(read.fold(0, |sum, read| sum ^ read));
            let mut found = [None; TOGETHER];
            for (found, hash) in found.iter_mut().zip(hashes) {
                *found = self.index.candidate(*hash);
            }
            let read = found.iter().flatten().map(|slot| {
                let flow = &self.flows[*slot as usize];
                flow.first_ns ^ flow.last_ns
            });
            black_box(read.fold(0, |sum, read| sum ^ read));
            for ((packet, &hash), found) in packets.iter().zip(hashes).zip(found) {
                let found = found
                    .filter(|slot| self.is_at(*slot, packet))
                    .or_else(|| self.index.find(hash, |slot| self.is_at(slot, packet)));
                let (slot, begins) = match found {
                    Some(slot) => (slot, self.add(slot, packet, &mut ended)),
                    None => (self.begin(hash, packet, &mut ended), true),
                };
                counted(slot, begins);
            }
            self.counters.packets += packets.len() as u64;
        }
    }

    /// Ends the flows that are due at `now_ns`, unless [`TimeOuts::has_end`] is false. Flows that
    /// became due within the last 134 ms may stay, or 8.6 s if their time-outs exceed 9 minutes. A
    /// flow may stay longer, for example if the queue was too full for another entry.
    pub fn expire(&mut self, now_ns: i64, ended: impl FnMut(&Flow, FlowEnd)) {
        self.expire_some(now_ns, usize::MAX, ended);
    }

    /// As [`Self::expire`], for at most `most` entries of the queue. Returns false if it stopped
    /// after `most` entries.
    pub fn expire_some(
        &mut self,
        now_ns: i64,
        most: usize,
        mut ended: impl FnMut(&Flow, FlowEnd),
    ) -> bool {
        let mut looked = 0;
        while self.time_outs.has_end {
            if looked == most {
                return false;
            }
            looked += 1;
            let Some(entry) = self.queue.extract_due(stamp(now_ns)) else {
                break;
            };
            let Some(due_ns) = self.due_of(entry) else {
                continue;
            };
            if due_ns <= now_ns {
                self.end(entry.item, FlowEnd::TimeOut, &mut ended);
            } else {
                self.insert(entry.item, stamp(due_ns));
            }
        }
        self.queue.advance(stamp(now_ns));
        true
    }

    /// Ends all flows.
    pub fn finish(&mut self, mut ended: impl FnMut(&Flow, FlowEnd)) {
        while let Some(entry) = self.queue.extract_due(u64::MAX) {
            if self.due_of(entry).is_some() {
                self.end(entry.item, FlowEnd::Finished, &mut ended);
            }
        }
        self.queue = Q::empty();
    }

    /// Ends the flow in a slot, if any.
    pub fn remove(&mut self, slot: u32) {
        if self.flow(slot).is_some() {
            self.counters.removed += 1;
            self.free(slot);
            // Otherwise, entries of removed flows leave the queue only at their due time, or when
            // the table is full.
            if self.queue.len() > 3 * self.flows_max {
                self.delete_stale_entries();
            }
        }
    }

    #[cold]
    fn delete_stale_entries(&mut self) {
        let mut valid = Vec::with_capacity(self.len());
        while let Some(entry) = self.queue.extract_early() {
            if self.due_of(entry).is_some() {
                valid.push((entry.stamp, entry.item));
            }
        }
        // An entry of a removed flow may equal the entry of the flow that has its slot now.
        valid.sort_unstable();
        valid.dedup();
        for (stamp, item) in valid {
            self.queue.insert(TimerEntry { stamp, item });
        }
    }

    /// The flow in a slot, if any.
    #[must_use]
    pub fn flow(&self, slot: u32) -> Option<&Flow> {
        self.flows.get(slot as usize).filter(|flow| flow.is_live())
    }

    /// All flows, in no order.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter().filter(|flow| flow.is_live())
    }

    /// The slots of all flows are below this number.
    #[must_use]
    pub fn slots(&self) -> u32 {
        u32::try_from(self.flows.len()).expect("new() has seen to it")
    }

    /// The number of flows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    /// Whether the table has no flows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> FlowTableCounters {
        self.counters
    }

    /// Bytes allocated: at most about 400 for each of `flows_max` flows, plus 10 MiB.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + self.flows.capacity() * size_of::<Flow>()
            + self.free.capacity() * size_of::<u32>()
            + self.queue.memory_bytes()
    }

    #[inline]
    fn is_at(&self, slot: u32, packet: &FlowPacket) -> bool {
        let flow = &self.flows[slot as usize];
        flow.key == packet.ends.key && flow.is_live()
    }

    /// Counts a packet in the flow of its key, or begins a new flow. Returns whether a new flow
    /// began.
    #[inline]
    fn add(
        &mut self,
        slot: u32,
        packet: &FlowPacket,
        ended: &mut impl FnMut(&Flow, FlowEnd),
    ) -> bool {
        let flow = &mut self.flows[slot as usize];
        let (idle_before, stage) = (flow.idle_ns(&self.time_outs), flow.stage());
        let end = if !self.time_outs.has_end {
            None
        } else if idle_before <= packet.time_ns && flow.due_ns(&self.time_outs) <= packet.time_ns {
            Some(FlowEnd::TimeOut)
        } else {
            flow.is_begun_anew_by(packet).then_some(FlowEnd::Reused)
        };
        if let Some(end) = end {
            ended(flow, end);
            *flow = Flow::new(packet, flow.queued);
            *self.ended_by(end) += 1;
            self.counters.begun += 1;
        }
        let flow = &mut self.flows[slot as usize];
        flow.add(packet);
        // The latest packet is no earlier than before, so the due time is no earlier.
        if end.is_none() && flow.stage() == stage {
            return false;
        }
        if flow.idle_ns(&self.time_outs) < idle_before {
            let due_ns = flow.due_ns(&self.time_outs);
            self.hasten(slot, stamp(due_ns));
        }
        end.is_some()
    }

    /// Begins a flow whose key is not in the table, and returns its slot.
    fn begin(
        &mut self,
        hash: u64,
        packet: &FlowPacket,
        ended: &mut impl FnMut(&Flow, FlowEnd),
    ) -> u32 {
        let mut flow = Flow::new(packet, 0);
        flow.add(packet);
        let due = stamp(flow.due_ns(&self.time_outs));
        self.counters.begun += 1;
        let Some(room) = self.index.room(hash) else {
            return self.replace_neighbour(hash, flow, ended);
        };
        if self.len() == self.flows_max {
            self.evict_first(ended);
        }
        if self.queue.is_empty() {
            self.queue.advance(stamp(packet.time_ns));
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flows.push(flow);
            u32::try_from(self.flows.len() - 1).expect("new() has seen to it")
        });
        self.flows[slot as usize] = flow;
        self.index.insert(hash, slot, room);
        self.insert(slot, due);
        slot
    }

    #[cold]
    fn evict_first(&mut self, ended: &mut impl FnMut(&Flow, FlowEnd)) {
        let mut looked_at = [(u64::MAX, 0); LOOKS];
        let mut looks = 0;
        while looks < LOOKS
            && let Some(entry) = self.queue.extract_early()
        {
            let Some(due_ns) = self.due_of(entry) else {
                continue;
            };
            looked_at[looks] = (stamp(due_ns), entry.item);
            looks += 1;
            if stamp(due_ns) <= entry.stamp {
                break;
            }
        }
        let looked_at = &looked_at[..looks];
        let first = looked_at.iter().min().copied();
        for &(due, slot) in looked_at.iter().filter(|other| Some(**other) != first) {
            self.insert(slot, due);
        }
        if let Some((_, slot)) = first {
            self.end(slot, FlowEnd::Full, ended);
        }
    }

    /// Ends a flow in the first group of `hash`. The new `flow` takes over its slot and its queue
    /// entry, so a sender that aims at one group cannot fill the queue.
    #[cold]
    fn replace_neighbour(
        &mut self,
        hash: u64,
        mut flow: Flow,
        ended: &mut impl FnMut(&Flow, FlowEnd),
    ) -> u32 {
        let due_ns = |slot: &u32| self.flows[*slot as usize].due_ns(&self.time_outs);
        let slot = self.index.neighbours(hash).min_by_key(due_ns);
        let slot = slot.expect("the group is full");
        flow.queued = self.flows[slot as usize].queued;
        self.end(slot, FlowEnd::Crowded, ended);
        self.free.pop();
        self.flows[slot as usize] = flow;
        let room = self.index.room(hash).expect("one has gone");
        self.index.insert(hash, slot, room);
        self.hasten(slot, stamp(flow.due_ns(&self.time_outs)));
        slot
    }

    fn end(&mut self, slot: u32, end: FlowEnd, ended: &mut impl FnMut(&Flow, FlowEnd)) {
        ended(&self.flows[slot as usize], end);
        *self.ended_by(end) += 1;
        self.free(slot);
    }

    fn free(&mut self, slot: u32) {
        let flow = &mut self.flows[slot as usize];
        flow.free();
        let hash = self.secret.hash(&flow.key);
        self.index.remove(hash, slot);
        self.free.push(slot);
    }

    fn ended_by(&mut self, end: FlowEnd) -> &mut u64 {
        match end {
            FlowEnd::TimeOut => &mut self.counters.timed_out,
            FlowEnd::Reused => &mut self.counters.reused,
            FlowEnd::Finished => &mut self.counters.finished,
            FlowEnd::Full => &mut self.counters.full,
            FlowEnd::Crowded => &mut self.counters.crowded,
        }
    }

    /// The due time of an entry's flow. `None` if the entry is out of date.
    fn due_of(&self, entry: TimerEntry) -> Option<i64> {
        let flow = &self.flows[entry.item as usize];
        let counts = flow.is_live() && flow.queued == entry.stamp;
        counts.then(|| flow.due_ns(&self.time_outs))
    }

    /// Inserts an entry for a flow into the queue. Other entries of the flow become out of date.
    fn insert(&mut self, slot: u32, stamp: u64) {
        self.flows[slot as usize].queued = stamp;
        self.queue.insert(TimerEntry { stamp, item: slot });
    }

    /// Makes the queue return a flow at an earlier time, unless the queue is too full.
    #[cold]
    fn hasten(&mut self, slot: u32, stamp: u64) {
        if stamp < self.flows[slot as usize].queued && self.queue.len() < 2 * self.flows_max {
            self.insert(slot, stamp);
        }
    }
}

/// A stamp of the queue. Stamps have the order of the times.
fn stamp(time_ns: i64) -> u64 {
    time_ns.cast_unsigned() ^ 1 << 63
}
