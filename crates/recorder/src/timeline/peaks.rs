//! Peaks of the traffic: the largest numbers of packets and bytes in intervals of 1 ms, or of a
//! slot if slots are shorter.
//!
//! Peaks need the stamps and lengths of packets. A request reads at most [`RECORDS_MAX`] records,
//! preferring the newest buckets of its time range. A bucket that was read in intervals of 1 ms has
//! a summary for later requests. A bucket is held for at most [`HOLD_RECORDS`] records at a time,
//! because the ring cannot overwrite a held bucket.
//!
//! A summary has a cell of 16 bytes for each interval with packets, interface and direction. On a
//! slow link nearly every packet has its own cell, so a closed bucket keeps only some of its cells
//! ([`BucketSummary::compact`]). A dropped cell has at most 1/256 of the packets and of the bytes
//! of its bucket. If the slots are short enough to show the difference, the request reads the
//! packets of the bucket again.

use std::{
    cmp::Reverse,
    collections::HashMap,
    ops::Range,
    sync::{Mutex, OnceLock},
};

use retroscope_ring::{
    AttachedBucket, AttachedState, BucketRef, InterfaceEntry, Packet, Ring, Step,
};

use super::{TimelinePackets, TimelineSlots};
use crate::control::lock;

/// Length of the intervals of summaries, ns.
const INTERVAL_NS: i64 = 1_000_000;
/// Largest number of records that a request reads.
pub(super) const RECORDS_MAX: u64 = 4 << 20;
/// Maximum number of records that are read in one hold.
const HOLD_RECORDS: u64 = 1 << 15;
/// Maximum number of cells that a compact summary keeps for their packets alone, and for their
/// bytes alone.
const LARGEST: usize = 256;
/// Maximum number of parts of a bucket's time range if the bucket has one series; more series have
/// fewer parts.
const PARTS: i64 = 128;
/// Maximum number of cells that are compared with a packet before the packet gets a new cell.
const SAME_CELL_MAX: usize = 8;
/// Minimum of the limit of pending cells. Above this limit complete intervals are counted.
const PENDING_MAX: usize = 1 << 16;
const SERIES_COUNTED: usize = 64;
/// Largest number of series in an answer: the counted series with the most bytes.
const SERIES_MAX: usize = 16;

/// The property that divides the packets into series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesBy {
    /// No property: there are no series.
    Nothing,
    /// The name of the interface.
    Interface,
    /// The direction: `in`, `out` or `unknown`.
    Direction,
}

/// Peaks by slot. `None` in a list: the packets of the slot are unknown, or not all of them were
/// read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peaks {
    /// Length of the intervals, ns.
    pub interval_ns: i64,
    /// Packets before this stamp may be unread, ns. `None`: no bucket was left for later requests.
    pub known_from_ns: Option<i64>,
    /// All packets.
    pub all: PeakCounts,
    /// The series with the most bytes, in this order.
    pub series: Vec<(String, PeakCounts)>,
    /// Number of further series.
    pub series_left_out: usize,
}

/// Counts by slot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeakCounts {
    /// Packets of the slot.
    pub packets: Vec<Option<u64>>,
    /// Bytes of the slot, usually on the wire.
    pub wire_bytes: Vec<Option<u64>>,
    /// The most packets of an interval that touches the slot.
    pub peak_packets: Vec<Option<u64>>,
    /// The most bytes of an interval that touches the slot.
    pub peak_bytes: Vec<Option<u64>>,
}

/// The summaries of a ring's buckets.
#[derive(Debug, Default)]
pub(crate) struct PeakCache(OnceLock<Vec<Mutex<BucketSummary>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PeakCell {
    /// The interval, and in the lowest [`SERIES_BITS`] bits the interface and the direction. Cells
    /// are sorted by this key.
    key: i64,
    packets: u32,
    bytes: u32,
}

/// Bits of a cell's key for the interface (16) and the direction (2).
const SERIES_BITS: u32 = 18;

impl PeakCell {
    fn interval(&self) -> i64 {
        self.key >> SERIES_BITS
    }

    fn series(&self) -> u32 {
        u32::try_from(self.key & ((1 << SERIES_BITS) - 1)).unwrap_or(0)
    }
}

/// The intervals of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PeakGrid {
    origin_ns: i64,
    interval_ns: i64,
}

impl PeakGrid {
    /// The intervals of summaries.
    const MILLISECONDS: Self = Self {
        origin_ns: 0,
        interval_ns: INTERVAL_NS,
    };

    fn of(slots: TimelineSlots) -> Self {
        if slots.slot_ns >= INTERVAL_NS {
            return Self::MILLISECONDS;
        }
        Self {
            origin_ns: slots.from_ns,
            interval_ns: slots.slot_ns,
        }
    }

    /// The interval of a stamp, bounded to ±2^44 so that it fits a key.
    fn interval(self, stamp_ns: i64) -> i64 {
        let since_ns = stamp_ns.saturating_sub(self.origin_ns);
        since_ns
            .div_euclid(self.interval_ns)
            .clamp(-(1 << 44), 1 << 44)
    }

    /// Start and end of an interval, both included, ns.
    fn bounds(self, interval: i64) -> (i64, i64) {
        let start_ns = interval.saturating_mul(self.interval_ns);
        let start_ns = start_ns.saturating_add(self.origin_ns);
        (start_ns, start_ns.saturating_add(self.interval_ns - 1))
    }
}

/// The cells of a bucket.
#[derive(Debug, Default)]
struct BucketSummary {
    generation: u64,
    /// Number of records that were read.
    read: u64,
    /// Sorted, unless the bucket is being read.
    cells: Vec<PeakCell>,
    /// The sums of the dropped cells by series. Their keys have no interval.
    rest: Vec<PeakCell>,
    /// Slots of at least this length do not need the dropped cells, ns.
    exact_from_ns: i64,
    is_compact: bool,
}

/// Adds a packet to one of the last cells if its key matches, or to a new cell.
fn add(cells: &mut Vec<PeakCell>, key: i64, bytes: u32) {
    let last = cells.iter_mut().rev().take(SAME_CELL_MAX);
    if let Some(cell) = last.into_iter().find(|cell| cell.key == key) {
        cell.packets += 1;
        cell.bytes = cell.bytes.saturating_add(bytes);
    } else {
        cells.push(PeakCell {
            key,
            packets: 1,
            bytes,
        });
    }
}

fn sort(cells: &mut Vec<PeakCell>) {
    if cells.is_sorted_by(|a, b| a.key < b.key) {
        return;
    }
    cells.sort_by_key(|cell| cell.key);
    cells.dedup_by(|next, before| {
        let is_same = next.key == before.key;
        if is_same {
            before.packets += next.packets;
            before.bytes = before.bytes.saturating_add(next.bytes);
        }
        is_same
    });
}

impl BucketSummary {
    /// Keeps the cells with the most packets and bytes, and for each series the largest cells of
    /// each part of the bucket's time range.
    fn compact(&mut self) {
        self.is_compact = true;
        let (Some(first), Some(last)) = (self.cells.first(), self.cells.last()) else {
            return;
        };
        let (first, intervals) = (first.interval(), last.interval() - first.interval() + 1);
        let mut series = HashMap::<u32, PeakCell>::new();
        for cell in &self.cells {
            let sum = series.entry(cell.series()).or_insert(PeakCell {
                key: cell.series().into(),
                packets: 0,
                bytes: 0,
            });
            sum.packets += cell.packets;
            sum.bytes = sum.bytes.saturating_add(cell.bytes);
        }
        let parts = (PARTS / i64::try_from(series.len()).unwrap_or(PARTS)).max(1);
        let part = (intervals + parts - 1) / parts;
        if self.cells.len() <= LARGEST || part == 1 {
            self.cells.shrink_to_fit();
            return;
        }
        let place = |cell: &PeakCell| ((cell.interval() - first) / part, cell.series());
        let mut largest = HashMap::<(i64, u32), (u32, u32)>::new();
        for cell in &self.cells {
            let most = largest.entry(place(cell)).or_default();
            *most = (most.0.max(cell.packets), most.1.max(cell.bytes));
        }
        let (packets, bytes) = (
            largest_but(&self.cells, |cell| cell.packets),
            largest_but(&self.cells, |cell| cell.bytes),
        );
        self.cells.retain(|cell| {
            let most = largest.get_mut(&place(cell));
            let most = most.map_or((0, 0), |most| {
                // One cell with the largest value of a part is enough.
                let is = (most.0 == cell.packets, most.1 == cell.bytes);
                if is.0 {
                    most.0 = u32::MAX;
                }
                if is.1 {
                    most.1 = u32::MAX;
                }
                (u32::from(is.0), u32::from(is.1))
            });
            let is_kept = cell.packets > packets || cell.bytes > bytes || most != (0, 0);
            if !is_kept {
                return false;
            }
            if let Some(sum) = series.get_mut(&cell.series()) {
                sum.packets -= cell.packets;
                sum.bytes = sum.bytes.saturating_sub(cell.bytes);
            }
            true
        });
        self.cells.shrink_to_fit();
        self.rest = series.into_values().filter(|sum| sum.packets > 0).collect();
        if !self.rest.is_empty() {
            self.exact_from_ns = part.saturating_mul(INTERVAL_NS);
        }
    }
}

/// The value that fewer than [`LARGEST`] cells exceed.
fn largest_but(cells: &[PeakCell], value: impl Fn(&PeakCell) -> u32) -> u32 {
    let mut values: Vec<u32> = cells.iter().map(value).collect();
    let last = LARGEST.min(values.len()) - 1;
    *values
        .select_nth_unstable_by_key(last, |value| Reverse(*value))
        .1
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PeakBucket {
    pub(super) bucket: AttachedBucket,
    pub(super) stretch: TimelinePackets,
    /// The smallest and the largest stamp that a record may have, whatever steps its clock made.
    pub(super) reach_ns: (i64, i64),
}

/// How the cells of a bucket are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeakSource {
    Summary,
    Packets,
    Unread,
    /// The bucket was overwritten, or cannot be held now.
    Gone,
}

#[derive(Debug)]
pub(super) struct PeakReading<'a> {
    pub(super) ring: &'a Ring,
    pub(super) cache: &'a PeakCache,
    pub(super) steps: &'a [Step],
    pub(super) interfaces: &'a [InterfaceEntry],
    pub(super) slots: TimelineSlots,
    pub(super) by: SeriesBy,
    /// Records that the request may still read.
    pub(super) records: u64,
}

/// Counts of a request, before the counts of unknown slots become `None`.
#[derive(Debug)]
pub(super) struct PeakSums {
    interval_ns: i64,
    known_from_ns: Option<i64>,
    pub(super) all: SlotCounts,
    series: Vec<(String, SlotCounts)>,
    series_left_out: usize,
}

#[derive(Debug, Clone)]
pub(super) struct SlotCounts {
    pub(super) packets: Vec<u64>,
    bytes: Vec<u64>,
    peak_packets: Vec<u64>,
    peak_bytes: Vec<u64>,
}

impl PeakReading<'_> {
    /// Reads the peaks of these buckets. Sets `stretch.packets` of the buckets that were read to 0,
    /// and removes the buckets that are [`PeakSource::Gone`].
    pub(super) fn read(mut self, buckets: &mut Vec<PeakBucket>) -> PeakSums {
        let slots = self.slots;
        let grid = PeakGrid::of(slots);
        let (first_ns, last_ns) = (grid.interval(slots.from_ns), grid.interval(slots.last_ns()));
        let is_asked = |ns: (i64, i64)| ns.0 <= slots.last_ns() && ns.1 >= slots.from_ns;
        buckets.sort_by_key(|it| Reverse(it.reach_ns.1));
        let mut sources = Vec::with_capacity(buckets.len());
        for it in &*buckets {
            let is_asked = is_asked(it.reach_ns);
            sources.push(is_asked.then(|| self.find(&it.bucket, grid)));
        }
        let mut order: Vec<usize> = (0..buckets.len()).collect();
        order.sort_by_key(|place| buckets[*place].reach_ns.0);
        let mut collector = PeakCollector::new(&self, grid);
        for place in order {
            let it = &mut buckets[place];
            let Some(source) = &mut sources[place] else {
                continue;
            };
            collector.count_before(grid.interval(it.reach_ns.0));
            let asked = first_ns..last_ns + 1;
            *source = self.collect(*source, it, grid, asked, &mut collector);
            match source {
                PeakSource::Unread => collector.unread(it),
                PeakSource::Gone => {}
                PeakSource::Summary | PeakSource::Packets => it.stretch.packets = 0,
            }
        }
        let mut is_gone = sources.iter().map(|it| *it == Some(PeakSource::Gone));
        buckets.retain(|_| !is_gone.next().unwrap_or(false));
        collector.finish()
    }

    /// Updates the bucket's summary if the intervals have 1 ms, and chooses the source of the
    /// cells. Reserves records if the packets must be read.
    fn find(&mut self, bucket: &AttachedBucket, grid: PeakGrid) -> PeakSource {
        let mut is_exact = false;
        if grid == PeakGrid::MILLISECONDS {
            let mut summary = lock(self.cache.summary(self.ring, bucket.bucket));
            match self.refresh(&mut summary, bucket) {
                PeakSource::Summary => is_exact = summary.exact_from_ns <= self.slots.slot_ns,
                other => return other,
            }
        }
        if is_exact {
            return PeakSource::Summary;
        }
        if bucket.packets > self.records {
            return PeakSource::Unread;
        }
        self.records -= bucket.packets;
        PeakSource::Packets
    }

    /// Adds unread records of a bucket to its summary, as far as `self.records` allows.
    fn refresh(&mut self, summary: &mut BucketSummary, bucket: &AttachedBucket) -> PeakSource {
        if summary.generation > bucket.bucket.generation {
            return PeakSource::Gone;
        }
        if summary.generation < bucket.bucket.generation {
            *summary = BucketSummary {
                generation: bucket.bucket.generation,
                ..BucketSummary::default()
            };
        }
        let wanted = bucket
            .packets
            .saturating_sub(summary.read)
            .min(self.records);
        if wanted > 0 {
            let range = summary.read..summary.read + wanted;
            let cells = &mut summary.cells;
            if !self.each(bucket, range, PeakGrid::MILLISECONDS, cells) {
                *summary = BucketSummary::default();
                return PeakSource::Gone;
            }
            self.records -= wanted;
            summary.read += wanted;
            sort(&mut summary.cells);
        }
        if summary.read < bucket.packets {
            return PeakSource::Unread;
        }
        if bucket.state == AttachedState::Closed && !summary.is_compact {
            summary.compact();
        }
        PeakSource::Summary
    }

    /// Adds records of a bucket to cells. Returns false if the bucket cannot be held.
    fn each(
        &self,
        bucket: &AttachedBucket,
        records: Range<u64>,
        grid: PeakGrid,
        cells: &mut Vec<PeakCell>,
    ) -> bool {
        let own = self.steps.iter();
        let own: Vec<Step> = own
            .filter(|step| step.producer == bucket.producer)
            .copied()
            .collect();
        let stamp_ns = |record: u64, packet: &Packet<'_>| {
            if own.is_empty() {
                return packet.time_ns;
            }
            let entry = self.interfaces.get(usize::from(packet.interface));
            let clock = entry.map_or(0, |entry| entry.clock);
            let record = bucket.first.wrapping_add(record);
            Step::stamp_ns(&own, bucket.producer, clock, record, packet.time_ns)
        };
        let mut next = records.start;
        while next < records.end {
            let Some(view) = self.ring.hold(bucket.bucket) else {
                return false;
            };
            let end = records
                .end
                .min(next + HOLD_RECORDS)
                .min(view.committed().into());
            if end == next {
                return true; // never: the records were committed
            }
            for record in next..end {
                let packet = view.packet(u32::try_from(record).unwrap_or(u32::MAX));
                let interval = grid.interval(stamp_ns(record, &packet));
                let series = i64::from(packet.interface) << 2 | i64::from(packet.direction & 3);
                add(cells, interval << SERIES_BITS | series, packet.wire_len);
            }
            next = end;
        }
        true
    }

    fn collect(
        &self,
        source: PeakSource,
        it: &PeakBucket,
        grid: PeakGrid,
        asked: Range<i64>,
        collector: &mut PeakCollector<'_>,
    ) -> PeakSource {
        let within = |cells: &[PeakCell], collector: &mut PeakCollector<'_>| {
            let first = cells.partition_point(|cell| cell.interval() < asked.start);
            let end = cells.partition_point(|cell| cell.interval() < asked.end);
            collector.pending.extend_from_slice(&cells[first..end]);
        };
        match source {
            PeakSource::Summary => {
                let summary = lock(self.cache.summary(self.ring, it.bucket.bucket));
                if summary.generation != it.bucket.bucket.generation {
                    return PeakSource::Gone;
                }
                within(&summary.cells, collector);
                for sum in &summary.rest {
                    collector.rest(it.stretch.span_ns, sum);
                }
            }
            PeakSource::Packets => {
                let mut cells = Vec::new();
                if !self.each(&it.bucket, 0..it.bucket.packets, grid, &mut cells) {
                    return PeakSource::Gone;
                }
                sort(&mut cells);
                within(&cells, collector);
            }
            PeakSource::Unread | PeakSource::Gone => {}
        }
        source
    }
}

impl PeakCache {
    fn summary(&self, ring: &Ring, bucket: BucketRef) -> &Mutex<BucketSummary> {
        let all = self.0.get_or_init(|| {
            let buckets = 0..ring.buckets();
            buckets.map(|_| Mutex::default()).collect()
        });
        &all[bucket.index as usize]
    }
}

#[derive(Debug)]
struct PeakCollector<'a> {
    slots: TimelineSlots,
    grid: PeakGrid,
    /// Cells of intervals that further buckets may have too.
    pending: Vec<PeakCell>,
    /// Above this number of `pending` cells, complete intervals are counted.
    pending_max: usize,
    known_from_ns: Option<i64>,
    all: SlotCounts,
    by: SeriesBy,
    interfaces: &'a [InterfaceEntry],
    /// The number of a series by its name.
    numbers: HashMap<&'a str, usize>,
    series: Vec<(&'a str, SlotCounts)>,
    /// Packets and bytes of the interval that is being counted, by series.
    present: Vec<(u64, u64)>,
    left_out: usize,
}

impl<'a> PeakCollector<'a> {
    fn new(reading: &PeakReading<'a>, grid: PeakGrid) -> Self {
        Self {
            slots: reading.slots,
            grid,
            pending: Vec::new(),
            pending_max: PENDING_MAX,
            known_from_ns: None,
            all: SlotCounts::new(reading.slots.count),
            by: reading.by,
            interfaces: reading.interfaces,
            numbers: HashMap::new(),
            series: Vec::new(),
            present: Vec::new(),
            left_out: 0,
        }
    }

    /// The number of a cell's series; `None`: no series is counted for the cell.
    fn series(&mut self, cell: &PeakCell) -> Option<usize> {
        let name = match self.by {
            SeriesBy::Nothing => return None,
            SeriesBy::Direction => match cell.series() & 3 {
                1 => "in",
                2 => "out",
                _ => "unknown",
            },
            SeriesBy::Interface => {
                let number = usize::try_from(cell.series() >> 2).unwrap_or(usize::MAX);
                let entry = self.interfaces.get(number);
                entry.map_or("", |entry| entry.name.as_str())
            }
        };
        if let Some(number) = self.numbers.get(name) {
            return Some(*number).filter(|number| *number < SERIES_COUNTED);
        }
        let number = self.numbers.len();
        self.numbers.insert(name, number);
        if number >= SERIES_COUNTED {
            self.left_out += 1;
            return None;
        }
        self.series.push((name, SlotCounts::new(self.slots.count)));
        self.present.push((0, 0));
        Some(number)
    }

    /// Counts pending cells before this interval if there are many. No later bucket may begin
    /// before the interval.
    fn count_before(&mut self, interval: i64) {
        if self.pending.len() > self.pending_max {
            self.count_until(interval);
        }
    }

    fn count_until(&mut self, end: i64) {
        self.pending.sort_by_key(|cell| cell.key);
        let count = self.pending.partition_point(|cell| cell.interval() < end);
        let pending = std::mem::take(&mut self.pending);
        let (counted, left) = pending.split_at(count);
        for cells in counted.chunk_by(|a, b| a.interval() == b.interval()) {
            self.count(cells);
        }
        self.pending = left.to_vec();
        // If buckets overlap, their cells stay pending. The doubled limit avoids sorting them for
        // each later bucket.
        self.pending_max = PENDING_MAX.max(2 * left.len());
    }

    fn count(&mut self, cells: &[PeakCell]) {
        let Some(interval) = cells.first().map(PeakCell::interval) else {
            return;
        };
        let bounds_ns = self.grid.bounds(interval);
        let mut sum = (0, 0);
        for cell in cells {
            let (packets, bytes) = (u64::from(cell.packets), u64::from(cell.bytes));
            sum = (sum.0 + packets, sum.1 + bytes);
            if let Some(number) = self.series(cell) {
                let present = &mut self.present[number];
                *present = (present.0 + packets, present.1 + bytes);
            }
        }
        self.all.interval(self.slots, bounds_ns, sum);
        for ((_, counts), present) in self.series.iter_mut().zip(&mut self.present) {
            if present.0 > 0 {
                counts.interval(self.slots, bounds_ns, std::mem::take(present));
            }
        }
    }

    /// Counts dropped cells as evenly distributed over the time range of their bucket.
    fn rest(&mut self, span_ns: (i64, i64), sum: &PeakCell) {
        let counts = (u64::from(sum.packets), u64::from(sum.bytes));
        self.all.spread(self.slots, span_ns, counts);
        if let Some(number) = self.series(sum) {
            self.series[number].1.spread(self.slots, span_ns, counts);
        }
    }

    fn unread(&mut self, it: &PeakBucket) {
        let end_ns = it.reach_ns.1.saturating_add(1);
        self.known_from_ns = self.known_from_ns.max(Some(end_ns));
        let counts = (0, it.stretch.bytes);
        self.all.spread(self.slots, it.stretch.span_ns, counts);
    }

    fn finish(mut self) -> PeakSums {
        self.count_until(i64::MAX);
        let mut series = self.series;
        series.sort_by_key(|(_, counts)| Reverse(counts.bytes.iter().sum::<u64>()));
        let more = series.len().saturating_sub(SERIES_MAX);
        series.truncate(SERIES_MAX);
        let series = series.into_iter();
        PeakSums {
            interval_ns: self.grid.interval_ns,
            known_from_ns: self.known_from_ns,
            all: self.all,
            series: series
                .map(|(name, counts)| (name.to_owned(), counts))
                .collect(),
            series_left_out: self.left_out + more,
        }
    }
}

impl SlotCounts {
    fn new(count: usize) -> Self {
        let zeros = || vec![0; count];
        Self {
            packets: zeros(),
            bytes: zeros(),
            peak_packets: zeros(),
            peak_bytes: zeros(),
        }
    }

    fn interval(&mut self, slots: TimelineSlots, (start_ns, end_ns): (i64, i64), sum: (u64, u64)) {
        let first = slots.of(start_ns.max(slots.from_ns));
        let last = slots.of(end_ns.min(slots.last_ns()));
        let (Some(first), Some(last)) = (first, last) else {
            return;
        };
        for slot in first..=last {
            self.peak_packets[slot] = self.peak_packets[slot].max(sum.0);
            self.peak_bytes[slot] = self.peak_bytes[slot].max(sum.1);
        }
        if first == last && start_ns >= slots.from_ns && end_ns <= slots.last_ns() {
            self.packets[first] += sum.0;
            self.bytes[first] += sum.1;
        } else {
            self.spread(slots, (start_ns, end_ns), sum);
        }
    }

    fn spread(&mut self, slots: TimelineSlots, span_ns: (i64, i64), sum: (u64, u64)) {
        slots.spread(span_ns, sum.0, |slot, part| self.packets[slot] += part);
        slots.spread(span_ns, sum.1, |slot, part| self.bytes[slot] += part);
    }
}

impl PeakSums {
    pub(super) fn peaks(self, slots: TimelineSlots, packets: &[Option<u64>]) -> Peaks {
        let known_from_ns = self.known_from_ns;
        let is_read = |slot: usize| {
            let (begin, _) = slots.bounds(slot);
            known_from_ns.is_none_or(|ns| begin >= ns.into())
        };
        let known = |counts: Vec<u64>, is_known: &dyn Fn(usize) -> bool| {
            let each = counts.into_iter().zip(packets).enumerate();
            let each = each.map(|(slot, (count, packets))| {
                Some(count).filter(|_| packets.is_some() && is_known(slot))
            });
            each.collect::<Vec<_>>()
        };
        let series = self.series.into_iter().map(|(name, counts)| {
            let counts = PeakCounts {
                packets: known(counts.packets, &is_read),
                wire_bytes: known(counts.bytes, &is_read),
                peak_packets: known(counts.peak_packets, &is_read),
                peak_bytes: known(counts.peak_bytes, &is_read),
            };
            (name, counts)
        });
        Peaks {
            interval_ns: self.interval_ns,
            known_from_ns,
            series: series.collect(),
            series_left_out: self.series_left_out,
            all: PeakCounts {
                packets: packets.to_vec(),
                wire_bytes: known(self.all.bytes, &|_| true),
                peak_packets: known(self.all.peak_packets, &is_read),
                peak_bytes: known(self.all.peak_bytes, &is_read),
            },
        }
    }
}

#[cfg(test)]
mod tests;
