//! A shard in the inserter's thread: R-Scope's long queue emulation (2018, section 2.1).
//!
//! The inserter prefers storing packets to analyzing them. If the shard has analyzed all earlier
//! packets, it may analyze a plain burst in hand, whose frames are usually in a cache. Reading
//! frames of 1514 bytes back from the ring takes longer than trying a filter. Otherwise the shard
//! reads the ring, which is the long queue. The unanalyzed packets of the ring are the *backlog*.
//!
//! The ring may overwrite packets of the backlog, which count as missed. A source that is never dry
//! might get no analysis at all. So after [`NEVER_DRY_NS`] the inserter analyzes for about
//! [`TURN_NS`] each time when it has stored half of its share of the ring.
//!
//! By default, if the inserter is overloaded ([placement](super::placement)) and a CPU is free, the
//! analyzer's thread takes over the reader and its shard. The inserter takes both back when it is
//! no longer overloaded and the analyzer has read everything.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
};

use retroscope_capture::{Burst, FrameMeta};
use retroscope_ring::{Packet, Positions, Producer, Waker};

use crate::{
    analysis::{
        shard_reader::{STRIDE_NS, ShardReader},
        shard_slots::ShardSlots,
    },
    control::{lock, pulse::ThreadPulse, try_lock},
    intake::placement::{PlacementShared, ShardPlacement},
};

/// Bytes of a record in the ring in addition to the packet, unless the record needs an extension.
pub(crate) const DESCRIPTOR_BYTES: u64 = 16;
/// After an inserter has stored one part in 8 of its share of the ring since it last woke the
/// analyzer, its next publication wakes the analyzer.
const RING_SHARE: u64 = 8;
/// If a source was not dry for this time, ns, packets may be analyzed although more packets wait.
const NEVER_DRY_NS: i64 = 100_000_000;
/// In each step the inserter analyzes the backlog for about this time at most, ns.
const TURN_NS: i64 = 1_000_000;

/// The readers of shards that inserters may run, by producer. Until [`Self::end`], an empty place
/// means that the inserter has the reader.
#[derive(Debug)]
pub(crate) struct SharedReaders {
    places: Vec<Mutex<Option<Box<ShardReader>>>>,
    positions: Positions,
}

impl SharedReaders {
    /// For readers of one producer each, in the order of producers. `None` without readers.
    pub(crate) fn new(readers: Vec<ShardReader>) -> Option<Arc<Self>> {
        let positions = readers.first()?.positions();
        let places = (readers.into_iter()).map(|reader| Mutex::new(Some(Box::new(reader))));
        Some(Arc::new(Self {
            places: places.collect(),
            positions,
        }))
    }

    /// The analyzer runs the readers that inserters do not have, for about `most_ns` in all at
    /// most. Each reader gets an equal share of this time. Returns whether there were packets.
    pub(crate) fn step_for(&self, pulse: &ThreadPulse, most_ns: i64) -> bool {
        let share_ns = most_ns / i64::try_from(self.places.len()).unwrap_or(i64::MAX);
        let mut were_packets = false;
        for place in &self.places {
            if let Some(mut place) = try_lock(place)
                && let Some(reader) = place.as_mut()
            {
                let mut until_ns = None;
                were_packets |= reader.step_while(pulse, &mut |now_ns| {
                    now_ns < *until_ns.get_or_insert(now_ns.saturating_add(share_ns))
                });
                reader.release();
            }
        }
        were_packets
    }

    /// All inserters have ended: analyzes the rest, as [`ShardReader::end`].
    pub(crate) fn end(&self, pulse: &ThreadPulse) {
        for place in &self.places {
            if let Some(mut reader) = lock(place).take() {
                while reader.step_while(pulse, &mut |_| true) {}
                reader.end();
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn is_inserters(&self, producer: usize) -> bool {
        lock(&self.places[producer]).is_none()
    }
}

/// When the source was last asked for packets, ns of the monotonic clock.
struct SourcePoll(Option<i64>);

impl SourcePoll {
    /// Whether [`STRIDE_NS`] have passed since the source was last asked. The first call counts as
    /// asking.
    fn is_due(&mut self, now_ns: i64) -> bool {
        let asked_ns = *self.0.get_or_insert(now_ns);
        let is_due = now_ns.saturating_sub(asked_ns) >= STRIDE_NS;
        if is_due {
            self.0 = Some(now_ns);
        }
        is_due
    }
}

#[derive(Debug, Clone)]
pub(crate) struct InlineParts {
    pub(crate) slots: Arc<ShardSlots>,
    pub(crate) readers: Arc<SharedReaders>,
    pub(crate) analyzer: Waker,
    pub(crate) placing: Arc<PlacementShared>,
}

/// The burst that an inserter stores.
#[derive(Clone, Copy)]
pub(crate) struct InHand<'a> {
    pub(crate) burst: Burst<'a>,
    /// Whether packets may wait at the queue that lends the burst
    /// ([`Queue::has_more`](retroscope_capture::Queue::has_more)).
    pub(crate) is_followed: &'a dyn Fn() -> bool,
    /// Whether more packets may wait there than an engine leaves while it rests
    /// ([`Queue::is_behind`](retroscope_capture::Queue::is_behind)).
    pub(crate) is_behind: &'a dyn Fn() -> bool,
}

#[cfg(test)]
impl<'a> InHand<'a> {
    pub(crate) fn alone(burst: Burst<'a>) -> Self {
        Self {
            burst,
            is_followed: &|| false,
            is_behind: &|| false,
        }
    }
}

impl<'a> Deref for InHand<'a> {
    type Target = Burst<'a>;

    fn deref(&self) -> &Burst<'a> {
        &self.burst
    }
}

#[derive(Debug)]
pub(crate) struct Inline {
    parts: InlineParts,
    producer: usize,
    /// The reader with its shard, while this thread analyzes.
    reader: Option<Box<ShardReader>>,
    placement: ShardPlacement,
    /// Whether there is new work for the analyzer since it was last woken.
    is_due: bool,
    /// Bytes stored since the analyzer was last woken. At `unread_max` bytes the inserter wakes the
    /// analyzer.
    unread: u64,
    unread_max: u64,
    /// The producer's last watermark, ns; `i64::MIN` before the first watermark.
    watermark_ns: i64,
    /// All packets older than this ring time are analyzed, and their hits queued, ns.
    analyzed_ns: i64,
    /// When the source was last dry, ns of the monotonic clock.
    dry_ns: i64,
    /// Bytes stored since the source was last dry, or since the last analysis of a source that is
    /// not dry.
    unturned: u64,
    /// The pulse of the inserter's thread.
    pulse: ThreadPulse,
}

impl Inline {
    /// `pulse` counts the turns of the inserter's thread.
    pub(crate) fn new(parts: InlineParts, producer: usize, pulse: ThreadPulse) -> Self {
        Self {
            unread_max: parts.placing.part_of_ring(RING_SHARE),
            producer,
            reader: None,
            placement: ShardPlacement::new(Arc::clone(&parts.placing)),
            is_due: false,
            unread: 0,
            watermark_ns: i64::MIN,
            analyzed_ns: i64::MIN,
            dry_ns: i64::MIN,
            unturned: 0,
            pulse,
            parts,
        }
    }

    /// Whether the shard is here and has not analyzed all of the `stored` records.
    pub(crate) fn has_backlog(&self, stored: u64) -> bool {
        self.reader
            .as_ref()
            .is_some_and(|reader| reader.looked() < stored)
    }

    /// Packets are about to be stored: takes, keeps or leaves the shard.
    pub(crate) fn before_storing(&mut self, producer: &Producer) {
        let stored = producer.stored();
        let is_read =
            self.reader.is_some() || self.parts.readers.positions.get(self.producer) == stored;
        if !self.placement.is_inline(is_read) {
            return self.leave();
        }
        if self.reader.is_none() && is_read {
            self.take();
        }
        self.is_due |= self.reader.is_none();
    }

    fn take(&mut self) {
        // This thread does not wait for the analyzer, which has this lock while it runs the reader.
        let Some(mut place) = try_lock(&self.parts.readers.places[self.producer]) else {
            return;
        };
        if let Some(mut reader) = place.take() {
            match reader.take_shard() {
                true => {
                    self.reader = Some(reader);
                    self.analyzed_ns = self.watermark_ns;
                }
                false => *place = Some(reader),
            }
        }
    }

    /// Plain frames of one interface were stored as records from `first` on. Analyzes frames if the
    /// shard is here, the source is not behind and there is no backlog. The frames' ring time is
    /// stamp less `offset_ns`. `bytes`: approximate captured bytes of all.
    pub(crate) fn after_storing(
        &mut self,
        first: u64,
        (interface, offset_ns): (u16, i64),
        burst: &InHand<'_>,
        (frames, bytes): (&[FrameMeta], u64),
    ) {
        self.count_stored(frames.len() as u64, bytes);
        let Some(reader) = &mut self.reader else {
            return;
        };
        if reader.looked() != first || (burst.is_behind)() {
            return;
        }
        let packets = frames.iter().map(|meta| Packet {
            time_ns: meta.time_ns.wrapping_sub(offset_ns),
            wire_len: meta.wire_len,
            interface,
            direction: meta.direction as u8,
            tag_restored: meta.vlan.is_some(),
            shard: 0,
            data: &burst.memory[meta.offset..meta.offset + meta.captured_len as usize],
        });
        let mut poll = SourcePoll(None);
        let go_on = &mut |now_ns| !(poll.is_due(now_ns) && (burst.is_followed)());
        reader.analyze_in_hand(self.producer, packets, &self.pulse, go_on);
    }

    /// `bytes`: captured bytes of all these records.
    pub(crate) fn count_stored(&mut self, records: u64, bytes: u64) {
        let stored_bytes = bytes + records * DESCRIPTOR_BYTES;
        self.placement.stored(stored_bytes);
        self.unread += stored_bytes;
        self.unturned += stored_bytes;
    }

    /// Leaves the next records, and the backlog, to the analyzer.
    fn leave(&mut self) {
        self.is_due = true;
        if let Some(mut reader) = self.reader.take() {
            if reader.promises_watermarks() {
                // Until the analyzer reads on, only packets before this time are surely analyzed.
                self.parts.slots.of(self.producer).promise(self.analyzed_ns);
            }
            reader.put_back();
            *lock(&self.parts.readers.places[self.producer]) = Some(reader);
        }
    }

    /// Whether the inserter must not wait for its source: there is a backlog, or the analyzer lacks
    /// hits.
    pub(crate) fn is_busy(&self, stored: u64) -> bool {
        self.has_backlog(stored) || (self.reader.as_ref()).is_some_and(|it| it.has_hits())
    }

    /// The producer is about to promise this watermark, if any. Gives the hits to the analyzer, and
    /// says up to which time all packets are analyzed.
    pub(crate) fn before_watermark(&mut self, stored: u64, watermark_ns: Option<i64>) {
        self.watermark_ns = watermark_ns.unwrap_or(self.watermark_ns);
        let Some(reader) = &mut self.reader else {
            return;
        };
        self.is_due |= reader.has_hits();
        let is_whole = reader.flush_hits() && reader.looked() >= stored;
        if is_whole {
            self.analyzed_ns = self.watermark_ns;
        }
        let is_sure = is_whole || !reader.promises_watermarks();
        let sure_ns = if is_sure { i64::MAX } else { self.analyzed_ns };
        self.parts.slots.of(self.producer).promise(sure_ns);
    }

    /// As [`ShardPlacement::observe_wait`].
    pub(crate) fn after_wait(&mut self, now_ns: i64, queueing_delay_ns: i64) {
        self.placement.observe_wait(now_ns, queueing_delay_ns);
    }

    /// All `stored` records were published. Wakes the analyzer if it has something to do. Returns
    /// whether there were hits, ended flows or records for the analyzer.
    pub(crate) fn after_publish(&mut self, stored: u64, is_dry: bool, now_ns: i64) -> bool {
        if is_dry {
            (self.dry_ns, self.unturned) = (now_ns, 0);
        }
        let has_caught_up = is_dry && !self.has_backlog(stored);
        self.placement.observe_drain(has_caught_up, now_ns);
        if let Some(reader) = &mut self.reader {
            self.is_due |= reader.after_publish(now_ns);
        }
        if self.is_due || self.unread >= self.unread_max {
            self.parts.analyzer.wake();
            self.unread = 0;
        }
        std::mem::take(&mut self.is_due)
    }

    /// Analyzes the backlog for about [`TURN_NS`] at most. For a dry source the analysis ends early
    /// when the source may have packets again (`has_more`). For another source this does nothing,
    /// unless the source has not been dry for [`NEVER_DRY_NS`] and half of the inserter's share of
    /// the ring was stored.
    pub(crate) fn work_off(
        &mut self,
        stored: u64,
        (is_dry, now_ns): (bool, i64),
        has_more: impl Fn() -> Option<bool>,
    ) {
        let Some(reader) = self.reader.as_mut().filter(|it| it.looked() < stored) else {
            return;
        };
        if !is_dry {
            let is_starved = now_ns.saturating_sub(self.dry_ns) >= NEVER_DRY_NS
                && self.unturned >= self.parts.placing.part_of_ring(2);
            if !is_starved {
                return;
            }
            self.unturned = 0;
        }
        let until_ns = now_ns.saturating_add(TURN_NS);
        let (mut poll, mut end_ns) = (SourcePoll(Some(now_ns)), now_ns);
        reader.step_while(&self.pulse, &mut |now_ns| {
            end_ns = now_ns;
            now_ns < until_ns && !(is_dry && poll.is_due(now_ns) && has_more() != Some(false))
        });
        // If the engine cannot tell, the source was dry when packets were last fetched.
        if is_dry && reader.looked() >= stored && has_more() != Some(true) {
            self.placement.observe_drain(true, end_ns);
        }
    }

    /// The longest analysis of packets without a reading of the clock since the last call, ns.
    pub(crate) fn take_longest_ns(&self) -> i64 {
        self.parts
            .slots
            .of(self.producer)
            .counters
            .take_longest_ns()
    }

    /// As [`ShardPlacement::observe_overlong`].
    pub(crate) fn observe_overlong(&mut self, now_ns: i64) -> bool {
        self.placement.observe_overlong(now_ns)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let reader = self.reader.as_mut();
        reader.map(|it| it.take_notices()).unwrap_or_default()
    }
}

impl Drop for Inline {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
pub(crate) use tests::inline as inline_of_test;

#[cfg(test)]
mod tests;
