//! The contents of the history, slot by slot, for a diagram.
//!
//! Without peaks ([`peaks`]), a timeline reads no packets. The packets and bytes of each bucket
//! then count as evenly distributed over the bucket's time range.

pub(crate) mod peaks;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Mutex,
};

use retroscope_ring::{Attached, AttachedBucket, CopyError, Step};

use self::peaks::{PeakBucket, PeakReading, PeakSums, Peaks, RECORDS_MAX, SeriesBy};
use crate::{
    CommandError, INTERFACE_DOWN, RecorderHandle,
    control::{common::RecorderShared, lock},
    query::contents::offset_ns,
};

/// Largest number of slots.
pub const SLOTS_MAX: usize = 2000;
/// Maximum number of trigger times that are kept.
const TRIGGERS_KEPT: usize = 65_536;

/// A request for a timeline. Times are stamps, ns since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineRequest {
    /// Start; `None`: the oldest packet; for a live recording without packets, its start.
    pub from_ns: Option<i64>,
    /// End, included; `None`: now, or from files the newest packet.
    pub to_ns: Option<i64>,
    /// Number of slots, 1 to [`SLOTS_MAX`].
    pub slots: usize,
    /// The series of the peaks; `None`: no peaks.
    pub peaks: Option<SeriesBy>,
}

/// Counts of the history by slot. The lists have one entry per slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Start of the first slot, ns since the epoch.
    pub from_ns: i64,
    /// Length of a slot, ns.
    pub slot_ns: i64,
    /// From here on the ring has everything that was stored, ns since the epoch. `None`: packets
    /// come from files, and no packet was overwritten.
    pub whole_from_ns: Option<i64>,
    /// The longest time range of one bucket that overlaps the timeline, ns.
    pub resolution_ns: i64,
    /// Packets in the ring; `None`: the whole slot is overwritten, before the recording, or in the
    /// future.
    pub packets: Vec<Option<u64>>,
    /// Captured bytes of the packets in the ring.
    pub bytes: Vec<Option<u64>>,
    /// Packets lost before the ring, or shed, by cause. A loss counts as evenly distributed between
    /// two readings of a counter.
    pub lost: BTreeMap<&'static str, Vec<u64>>,
    /// Losses are known up to here, ns since the epoch; `None`: not known yet.
    pub losses_known_to_ns: Option<i64>,
    /// Whether an interface was down or removed, or its engine failed.
    pub down: Vec<bool>,
    /// Triggered dumps; `None`: the slot is in the future, or the recorder has forgotten a trigger
    /// at or after the start of the slot.
    pub triggers: Vec<Option<u64>>,
    /// Peaks, if requested.
    pub peaks: Option<Peaks>,
}

/// The trigger times of the last dumps, written by the dumper.
#[derive(Debug, Default)]
pub(crate) struct TriggerLog(Mutex<TriggerTimes>);

#[derive(Debug, Default)]
struct TriggerTimes {
    /// Stamps, ns.
    last_ns: VecDeque<i64>,
    /// The latest stamp that was forgotten.
    forgotten_ns: Option<i64>,
}

impl TriggerLog {
    /// Adds the trigger of a dump, with this stamp.
    pub(crate) fn add(&self, stamp_ns: i64) {
        let mut triggered = lock(&self.0);
        triggered.last_ns.push_back(stamp_ns);
        if triggered.last_ns.len() > TRIGGERS_KEPT {
            let first_ns = triggered.last_ns.pop_front();
            triggered.forgotten_ns = triggered.forgotten_ns.max(first_ns);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct TimelineSlots {
    from_ns: i64,
    slot_ns: i64,
    count: usize,
}

impl TimelineSlots {
    /// Divides a closed time range. There may be fewer slots than requested, because a slot has a
    /// whole number of nanoseconds. A slot has at most 2^62 ns (146 years), so there may be up to 4
    /// slots if fewer are requested.
    fn new((from_ns, to_ns): (i64, i64), slots: usize) -> Self {
        let ns = (i128::from(to_ns) - i128::from(from_ns)).unsigned_abs() + 1;
        let slot_ns = ns.div_ceil(slots as u128).clamp(1, 1 << 62);
        let count = usize::try_from(ns.div_ceil(slot_ns)).unwrap_or(slots);
        Self {
            from_ns,
            slot_ns: i64::try_from(slot_ns).unwrap_or(i64::MAX),
            count: count.max(1),
        }
    }

    fn bounds(&self, slot: usize) -> (i128, i128) {
        let begin = i128::from(self.from_ns) + i128::from(self.slot_ns) * slot as i128;
        (begin, begin + i128::from(self.slot_ns))
    }

    fn last_ns(&self) -> i64 {
        let (_, behind) = self.bounds(self.count - 1);
        i64::try_from(behind - 1).unwrap_or(i64::MAX)
    }

    fn of(&self, stamp_ns: i64) -> Option<usize> {
        let behind = i128::from(stamp_ns) - i128::from(self.from_ns);
        let slot = usize::try_from(behind.div_euclid(self.slot_ns.into())).ok();
        slot.filter(|slot| *slot < self.count)
    }

    /// Distributes `total` evenly over a closed time range and gives each slot its part. If the
    /// range is within the slots, the parts add up to `total`.
    fn spread(&self, (first_ns, last_ns): (i64, i64), total: u64, mut add: impl FnMut(usize, u64)) {
        let (first, end) = (i128::from(first_ns), i128::from(last_ns) + 1);
        let (from, _) = self.bounds(0);
        let slot_of = |ns: i128| (ns - from).div_euclid(self.slot_ns.into()).max(0);
        let last_slot = slot_of(end - 1).min(self.count as i128 - 1);
        if end <= from || end <= first {
            return;
        }
        let before = |ns: i128| {
            let ns = ns.clamp(first, end) - first;
            // Cannot overflow: less than 2^64 times at most 2^64.
            let part = u128::from(total) * ns.unsigned_abs() / (end - first).unsigned_abs();
            u64::try_from(part).unwrap_or(total)
        };
        for slot in slot_of(first)..=last_slot {
            let Ok(slot) = usize::try_from(slot) else {
                return;
            };
            let (begin, behind) = self.bounds(slot);
            let until = if behind >= end { total } else { before(behind) };
            let part = until.saturating_sub(before(begin));
            add(slot, part);
        }
    }
}

/// Packets somewhere within a closed range of stamps, ns.
#[derive(Debug, Clone, Copy)]
struct TimelinePackets {
    span_ns: (i64, i64),
    packets: u64,
    bytes: u64,
}

impl Timeline {
    /// `present`: the buckets, without packets that `counted` has. Packets before `whole_from_ns`
    /// may be gone. `losses`: cause, time range, number of packets.
    fn new(
        slots: TimelineSlots,
        (present, counted): (&[TimelinePackets], Option<PeakSums>),
        (whole_from_ns, now_ns): (Option<i64>, i64),
        losses: impl Iterator<Item = (&'static str, (i64, i64), u64)>,
        triggers: &TriggerLog,
    ) -> Self {
        let count = slots.count;
        let (mut packets, mut bytes) = (vec![0; count], vec![0; count]);
        if let Some(counted) = &counted {
            packets.clone_from(&counted.all.packets);
        }
        for stretch in present {
            slots.spread(stretch.span_ns, stretch.packets, |slot, part| {
                packets[slot] += part
            });
            slots.spread(stretch.span_ns, stretch.bytes, |slot, part| {
                bytes[slot] += part
            });
        }
        let oldest_ns = present.iter().map(|stretch| stretch.span_ns.0).min();
        let known_from_ns = match (whole_from_ns, oldest_ns) {
            (Some(whole_ns), Some(oldest_ns)) => Some(whole_ns.min(oldest_ns)),
            (whole_ns, _) => whole_ns,
        };
        let is_known = |slot: &usize| {
            let (begin, behind) = slots.bounds(*slot);
            begin <= now_ns.into() && known_from_ns.is_none_or(|from_ns| behind > from_ns.into())
        };
        let known = |counts: Vec<u64>| {
            let each = counts.into_iter().enumerate();
            each.map(|(slot, count)| Some(count).filter(|_| is_known(&slot)))
                .collect()
        };
        let (mut lost, mut down) = (BTreeMap::new(), vec![false; count]);
        for (cause, span_ns, total) in losses {
            if cause == INTERFACE_DOWN {
                // One unit for each nanosecond: each slot that the outage touches gets a part.
                let end_ns = span_ns.1.min(now_ns);
                let ns = end_ns.saturating_sub(span_ns.0).max(0).unsigned_abs() + 1;
                slots.spread((span_ns.0, end_ns), ns, |slot, part| down[slot] |= part > 0);
                continue;
            }
            let own = lost.entry(cause).or_insert_with(|| vec![0; count]);
            slots.spread(span_ns, total, |slot, part| own[slot] += part);
        }
        let triggered = lock(&triggers.0);
        let mut started = vec![0_u64; count];
        for slot in triggered.last_ns.iter().filter_map(|ns| slots.of(*ns)) {
            started[slot] += 1;
        }
        let is_remembered = |slot: usize| {
            let (begin, _) = slots.bounds(slot);
            let is_past = begin <= now_ns.into();
            is_past && triggered.forgotten_ns.is_none_or(|ns| begin > ns.into())
        };
        let each = started.into_iter().enumerate();
        let triggers = each.map(|(slot, count)| Some(count).filter(|_| is_remembered(slot)));
        let packets: Vec<Option<u64>> = known(packets);
        Self {
            from_ns: slots.from_ns,
            slot_ns: slots.slot_ns,
            whole_from_ns,
            resolution_ns: 0,
            peaks: counted.map(|counted| counted.peaks(slots, &packets)),
            packets,
            bytes: known(bytes),
            lost,
            losses_known_to_ns: None,
            down,
            triggers: triggers.collect(),
        }
    }

    /// `start_mono_ns`: live, a time of the monotonic clock before the first packet, ns.
    fn of(
        common: &RecorderShared,
        start_mono_ns: Option<i64>,
        request: &TimelineRequest,
    ) -> Result<Self, CommandError> {
        let refused = |why: String| Err(CommandError::Refused(why));
        if !(1..=SLOTS_MAX).contains(&request.slots) {
            return refused(format!("a timeline has 1 to {SLOTS_MAX} slots"));
        }
        let own = |_: CopyError| CommandError::Ended;
        let ring = common.ring.attached();
        let buckets = ring.buckets().map_err(own)?;
        let steps = ring.steps().map_err(own)?;
        let mut present: Vec<PeakBucket> = buckets
            .into_iter()
            .filter_map(|bucket| PeakBucket::new(bucket, &steps))
            .collect();
        let now = common.clock.now();
        let start_ns = start_mono_ns.map(|start_ns| {
            let since_ns = now.mono_ns.saturating_sub(start_ns);
            common.stamp_ns(now.ring_ns.saturating_sub(since_ns))
        });
        let newest_ns = present.iter().map(|it| it.stretch.span_ns.1).max();
        let now_ns = if common.is_live() {
            Some(now.ring_ns.saturating_add(now.offset_ns))
        } else {
            newest_ns
        };
        let oldest_ns = present.iter().map(|it| it.stretch.span_ns.0).min();
        let Some((now_ns, from_ns)) = now_ns.zip(request.from_ns.or(oldest_ns).or(start_ns)) else {
            return refused("nothing is recorded yet".to_owned());
        };
        let to_ns = request.to_ns.unwrap_or(now_ns);
        if to_ns < from_ns {
            return refused("the timeline ends before it begins".to_owned());
        }
        let slots = TimelineSlots::new((from_ns, to_ns), request.slots);
        let sums = match request.peaks {
            Some(by) => {
                let (interfaces, _) = ring.interfaces().map_err(own)?;
                let reading = PeakReading {
                    ring: &common.ring,
                    cache: &common.peaks,
                    steps: &steps,
                    interfaces: &interfaces,
                    slots,
                    by,
                    records: RECORDS_MAX,
                };
                Some(reading.read(&mut present))
            }
            None => None,
        };
        let present: Vec<TimelinePackets> = present.iter().map(|it| it.stretch).collect();
        // Must be read after the peaks: a bucket that was overwritten meanwhile then counts as
        // overwritten.
        let whole_from_ns = evicted_to_ns(&ring, &steps).map_err(own)?.max(start_ns);
        // Must be read before the losses: inserters log a loss before they advance this time.
        let (_, known_ns) = common.intake.known_losses(&[], 0);
        let losses = common.intake.loss_events();
        let losses = losses
            .into_iter()
            .map(|(cause, (first_ns, last_ns), packets)| {
                let span_ns = (common.stamp_ns(first_ns), common.stamp_ns(last_ns));
                (cause, (span_ns.0, span_ns.1.max(span_ns.0)), packets)
            });
        let touches =
            |stretch: &&TimelinePackets| stretch.span_ns.0 <= to_ns && stretch.span_ns.1 >= from_ns;
        let longest = present.iter().filter(touches);
        let longest = longest.map(|stretch| stretch.span_ns.1.saturating_sub(stretch.span_ns.0));
        Ok(Self {
            resolution_ns: longest.max().unwrap_or(0),
            losses_known_to_ns: known_ns.map(|ns| common.stamp_ns(ns).min(now_ns)),
            ..Self::new(
                slots,
                (&present, sums),
                (whole_from_ns, now_ns),
                losses,
                &common.triggers,
            )
        })
    }
}

/// The stamp after the latest record that was overwritten, ns.
fn evicted_to_ns(ring: &Attached, steps: &[Step]) -> Result<Option<i64>, CopyError> {
    let producers = ring.producers()?;
    let ends = producers.iter().enumerate().filter_map(|(id, producer)| {
        let offset_ns = offset_ns(steps, id, producer.evicted_records);
        let end_ns = producer.evicted_ns?.saturating_add(offset_ns);
        Some(end_ns.saturating_add(1))
    });
    Ok(ends.max())
}

impl PeakBucket {
    fn new(bucket: AttachedBucket, steps: &[Step]) -> Option<Self> {
        let (first_ns, last_ns) = bucket.span_ns?;
        let offset_ns = offset_ns(steps, bucket.producer, bucket.first);
        let end = bucket.first.saturating_add(bucket.packets);
        let records = bucket.first..end;
        let own = steps.iter().filter(|step| step.producer == bucket.producer);
        let within = own.filter(|step| records.contains(&step.first));
        let offsets = within.map(|step| step.offset_ns);
        let (least_ns, most_ns) = offsets.fold((offset_ns, offset_ns), |ends, offset_ns| {
            (ends.0.min(offset_ns), ends.1.max(offset_ns))
        });
        Some(Self {
            bucket,
            stretch: TimelinePackets {
                span_ns: (
                    first_ns.saturating_add(offset_ns),
                    last_ns.saturating_add(offset_ns),
                ),
                packets: bucket.packets,
                bytes: bucket.bytes,
            },
            reach_ns: (
                first_ns.saturating_add(least_ns),
                last_ns.saturating_add(most_ns),
            ),
        })
    }
}

impl RecorderHandle {
    /// Packets, losses and triggers of the history, slot by slot.
    ///
    /// # Errors
    /// [`CommandError::Ended`]; `Refused`: the number of slots or the range is invalid, or nothing
    /// is recorded.
    pub fn timeline(&self, request: &TimelineRequest) -> Result<Timeline, CommandError> {
        Timeline::of(&*self.common()?, self.start_mono_ns, request)
    }
}

#[cfg(test)]
mod tests;
