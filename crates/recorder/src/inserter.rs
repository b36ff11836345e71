//! Inserters: from an engine's burst into the ring.
//!
//! Live, one inserter thread serves one queue with its own producer; the ring overwrites. Offline, one thread serves
//! the queues of all files with one producer and merges them by time stamp (ties by source, then record), so that the
//! ring's contents do not depend on how threads were scheduled.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use retroscope_capture::{Event, Frame, Queue, SourceError, Status};
use retroscope_packet::LinkType;
use retroscope_ring::{Producer, Record, Ring, StoreError};

use crate::{
    clock::{Clock, Now},
    counters::{BurstCount, LOST_NO_BUCKET, LossEvent, LossWatch, QueueCounters},
    intake::Intake,
    predicate::CaptureFilter,
    progress::Control,
};

/// Longest wait of an idle queue: also how often watermark and loss counters move at least.
const IDLE: Duration = Duration::from_millis(5);
/// Time between two readings of an engine's counters, ns.
const STATISTICS_NS: i64 = 10_000_000;

/// What the inserters of a recorder have in common.
#[derive(Debug, Clone)]
pub(crate) struct InserterShared {
    pub(crate) ring: Ring,
    pub(crate) intake: Arc<Intake>,
    pub(crate) control: Arc<Control>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Bytes kept of each frame; 0: all that were captured.
    pub(crate) snaplen: u32,
    /// `-f`, if any.
    pub(crate) filter: Option<CaptureFilter>,
    /// `-c`: packets still to be stored, shared by all inserters.
    pub(crate) remaining: Option<Arc<AtomicI64>>,
    /// `--duration`, ns: live of the monotonic clock, offline of packet time.
    pub(crate) duration_ns: Option<i64>,
}

/// A queue with its numbers: what both kinds of inserters need for each queue they serve.
#[derive(Debug)]
pub(crate) struct Lane {
    queue: Box<dyn Queue>,
    source: usize,
    counters: Arc<QueueCounters>,
    /// Ring-wide identifiers and link types of the queue's interfaces.
    interfaces: Vec<(u16, LinkType)>,
    count: BurstCount,
    watch: LossWatch,
    /// First and last stamp of packets that found no bucket since the last flush.
    refused_ns: Option<(i64, i64)>,
    /// Offline: the next frame of the burst.
    cursor: usize,
    /// The first queue of its source, which tells for all what happens to their interface.
    is_first: bool,
}

/// What became of the end of a queue.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    /// The queue ended by an error.
    pub(crate) error: Option<SourceError>,
    /// Sentences for the user.
    pub(crate) notices: Vec<String>,
}

/// What to do with one more frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// Go on.
    Yes,
    /// `-c` is reached, or the recorder is closing.
    Enough,
}

impl Lane {
    /// Registers the queue's interfaces under `source`.
    pub(crate) fn new(
        queue: Box<dyn Queue>,
        source: usize,
        counters: Arc<QueueCounters>,
        shared: &InserterShared,
    ) -> Result<Self, retroscope_ring::RingError> {
        let start_ns = shared.clock.now().wall_ns;
        let watch = LossWatch::new(source, start_ns);
        let first = shared.intake.sources[source].queues.first();
        let is_first = first.is_none_or(|first| Arc::ptr_eq(first, &counters));
        let mut lane = Self {
            queue,
            source,
            counters,
            interfaces: Vec::new(),
            count: BurstCount::default(),
            watch,
            refused_ns: None,
            cursor: 0,
            is_first,
        };
        lane.register(shared)?;
        Ok(lane)
    }

    fn register(&mut self, shared: &InserterShared) -> Result<(), retroscope_ring::RingError> {
        while let Some(info) = self.queue.interfaces().get(self.interfaces.len()) {
            let mut info = info.clone();
            if info.name.is_empty() {
                // A classic pcap names no interface; the file's name tells merged ones apart.
                info.name = file_name(&shared.intake.sources[self.source].name);
            }
            let id = shared
                .intake
                .interfaces
                .register(&shared.ring, self.source, &info)?;
            self.interfaces.push((id, info.link_type));
        }
        Ok(())
    }

    /// Stores one frame of the burst, or counts why not.
    fn store(
        &mut self,
        index: usize,
        producer: &mut Producer,
        shared: &mut InserterShared,
    ) -> Stored {
        let frame = self.queue.burst().frame(index);
        let Some(&(id, link_type)) = self.interfaces.get(usize::from(frame.meta.interface)) else {
            // An engine that lends a frame of an interface it never announced: counted as refused by nobody's filter.
            self.count.filtered += 1;
            return Stored::Yes;
        };
        let tagged =
            link_type == LinkType::ETHERNET && (frame.meta.vlan.is_some() || has_tag(frame.data));
        let mut wire = WireFrame::new(&frame, link_type);
        if let Some(filter) = &mut shared.filter
            && !filter.takes(link_type, id, &wire)
        {
            self.count.filtered += 1;
            return Stored::Yes;
        }
        if let Some(remaining) = &shared.remaining
            && remaining.fetch_sub(1, Ordering::Relaxed) <= 0
        {
            self.count.filtered += 1;
            return Stored::Enough;
        }
        let cut = wire.cut(shared.snaplen);
        let length = wire.captured_len();
        let record = Record {
            time_ns: frame.meta.time_ns,
            wire_len: wire.wire_len,
            interface: id,
            direction: frame.meta.direction as u8,
            tag_restored: frame.meta.vlan.is_some(),
            parts: wire.parts(),
        };
        match producer.store(&record) {
            Ok(()) => {
                self.count.stored += 1;
                self.count.stored_bytes += length as u64;
                self.count.cut += u64::from(cut);
                self.count.tagged += u64::from(tagged);
                Stored::Yes
            }
            Err(StoreError::Full) => {
                self.count.no_bucket += 1;
                let time_ns = frame.meta.time_ns;
                self.refused_ns = Some(self.refused_ns.map_or((time_ns, time_ns), |(a, b)| {
                    (a.min(time_ns), b.max(time_ns))
                }));
                Stored::Yes
            }
            Err(_) => {
                self.count.no_bucket += 1;
                Stored::Enough
            }
        }
    }

    /// Frames that came after `-c` was reached are refused, as by a filter.
    fn refuse(&mut self, frames: usize) {
        self.count.filtered += frames as u64;
    }

    /// Tells the shared counters.
    fn flush(&mut self, intake: &Intake) {
        if let Some((from_ns, to_ns)) = self.refused_ns.take() {
            let packets = self.count.no_bucket;
            intake.losses.push(LossEvent {
                source: self.source,
                cause: LOST_NO_BUCKET,
                from_ns,
                to_ns,
                packets,
            });
        }
        self.counters.add(std::mem::take(&mut self.count));
    }

    /// Reads the engine's counters.
    fn read_statistics(&mut self, now_ns: i64, intake: &Intake) {
        let statistics = self.queue.statistics();
        self.watch.observe(
            &statistics,
            statistics.as_of_ns.unwrap_or(now_ns),
            &intake.losses,
        );
        self.counters.set_engine(&statistics);
    }

    fn notices(&mut self, notices: &mut Vec<String>) {
        while let Some(event) = self.queue.event() {
            let name = |index: u16| {
                self.queue
                    .interfaces()
                    .get(usize::from(index))
                    .map_or("?", |i| i.name.as_str())
            };
            match event {
                Event::InterfaceAdded(_) => {}
                Event::InterfaceDown(_) | Event::InterfaceUp(_) | Event::InterfaceGone(_)
                    if !self.is_first => {}
                Event::InterfaceDown(i) => {
                    notices.push(format!("{}: the interface went down", name(i)))
                }
                Event::InterfaceUp(i) => {
                    notices.push(format!("{}: the interface is up again", name(i)))
                }
                Event::InterfaceGone(i) => {
                    notices.push(format!("{}: the interface is gone", name(i)))
                }
                Event::Notice(text) => notices.push(text),
            }
        }
    }
}

/// The last part of a source's name, which is a path for files.
fn file_name(source: &str) -> String {
    let name = std::path::Path::new(source).file_name();
    name.map_or(source.to_owned(), |name| {
        name.to_string_lossy().into_owned()
    })
}

/// Whether an Ethernet frame carries an 802.1Q, 802.1ad or QinQ tag.
fn has_tag(data: &[u8]) -> bool {
    matches!(
        data.get(12..14),
        Some([0x81, 0x00] | [0x88, 0xa8] | [0x91, 0x00])
    )
}

/// A frame as it was on the wire: a tag that the NIC took out stands in its place again.
#[derive(Debug)]
pub(crate) struct WireFrame<'a> {
    head: &'a [u8],
    tag: [u8; 4],
    tag_len: usize,
    tail: &'a [u8],
    /// Bytes on the wire.
    pub(crate) wire_len: u32,
    pub(crate) direction: u8,
}

/// Bytes before a VLAN tag: two MAC addresses.
const MACS: usize = 12;

impl<'a> WireFrame<'a> {
    fn new(frame: &Frame<'a>, link_type: LinkType) -> Self {
        let meta = &frame.meta;
        let plain = Self {
            head: frame.data,
            tag: [0; 4],
            tag_len: 0,
            tail: &[],
            wire_len: meta.wire_len,
            direction: meta.direction as u8,
        };
        match meta.vlan {
            Some(vlan) if link_type == LinkType::ETHERNET && frame.data.len() >= MACS => {
                let ([a, b], [c, d]) = (vlan.tpid.to_be_bytes(), vlan.tci.to_be_bytes());
                let (head, tail) = frame.data.split_at(MACS);
                Self {
                    head,
                    tag: [a, b, c, d],
                    tag_len: 4,
                    tail,
                    wire_len: meta.wire_len.saturating_add(4),
                    ..plain
                }
            }
            _ => plain,
        }
    }

    /// The frame in stored order.
    pub(crate) fn parts(&self) -> [&[u8]; 3] {
        [self.head, &self.tag[..self.tag_len], self.tail]
    }

    fn captured_len(&self) -> usize {
        self.head.len() + self.tag_len + self.tail.len()
    }

    /// Keeps the first `snaplen` bytes (0: all); true if some were cut.
    fn cut(&mut self, snaplen: u32) -> bool {
        let snaplen = snaplen as usize;
        if snaplen == 0 || self.captured_len() <= snaplen {
            return false;
        }
        self.head = &self.head[..self.head.len().min(snaplen)];
        self.tag_len = self.tag_len.min(snaplen - self.head.len());
        self.tail = &self.tail[..self
            .tail
            .len()
            .min(snaplen - self.head.len() - self.tag_len)];
        true
    }
}

/// The inserter of one live queue.
#[derive(Debug)]
pub(crate) struct LiveInserter {
    lane: Lane,
    producer: Producer,
    shared: InserterShared,
    start_mono_ns: i64,
    statistics_due_ns: i64,
    stopped: bool,
    enough: bool,
    end: LaneEnd,
}

impl LiveInserter {
    pub(crate) fn new(lane: Lane, producer: Producer, shared: InserterShared) -> Self {
        let now = shared.clock.now();
        let end = LaneEnd {
            error: None,
            notices: Vec::new(),
        };
        Self {
            lane,
            producer,
            shared,
            start_mono_ns: now.mono_ns,
            statistics_due_ns: 0,
            stopped: false,
            enough: false,
            end,
        }
    }

    /// Runs until the queue ends; `notify` gets sentences for the user as they come.
    pub(crate) fn run(mut self, notify: &mut dyn FnMut(String)) -> LaneEnd {
        loop {
            let more = self.step();
            self.end.notices.drain(..).for_each(&mut *notify);
            if !more {
                return self.end;
            }
        }
    }

    /// Serves one burst, or an idle moment; false at the end.
    pub(crate) fn step(&mut self) -> bool {
        let status = match self.lane.queue.next(IDLE) {
            Ok(status) => status,
            Err(error) => {
                self.end.error = Some(error);
                Status::End
            }
        };
        let now = self.shared.clock.now();
        if let Err(error) = self.lane.register(&self.shared) {
            self.end.notices.push(error.to_string());
        }
        if status == Status::Frames {
            self.store_burst();
        }
        if let Some(watermark_ns) = self.lane.queue.watermark() {
            self.producer.set_watermark(watermark_ns);
        } else {
            self.producer.publish();
        }
        self.lane.flush(&self.shared.intake);
        self.lane.notices(&mut self.end.notices);
        if now.mono_ns >= self.statistics_due_ns || status == Status::End {
            self.lane.read_statistics(now.wall_ns, &self.shared.intake);
            self.statistics_due_ns = now.mono_ns + STATISTICS_NS;
        }
        if status == Status::End {
            self.lane.counters.set_ended();
        }
        self.stop_if_due(now);
        status != Status::End
    }

    fn store_burst(&mut self) {
        let frames = self.lane.queue.burst().frames.len();
        for index in 0..frames {
            if self.enough
                || self.lane.store(index, &mut self.producer, &mut self.shared) == Stored::Enough
            {
                // The frame that found the limit is counted; the rest of the burst comes after it.
                self.lane.refuse(frames - index - usize::from(!self.enough));
                self.enough = true;
                return;
            }
        }
    }

    fn stop_if_due(&mut self, now: Now) {
        let spent = self
            .shared
            .remaining
            .as_ref()
            .is_some_and(|r| r.load(Ordering::Relaxed) <= 0);
        let over = self
            .shared
            .duration_ns
            .is_some_and(|d| now.mono_ns - self.start_mono_ns >= d);
        if spent || over {
            self.shared.control.stop();
        }
        if self.shared.control.stopping() && !self.stopped {
            self.stopped = true;
            self.lane.queue.stop();
        }
    }
}

/// The inserter of all files.
#[derive(Debug)]
pub(crate) struct MergeInserter {
    lanes: Vec<Lane>,
    ended: Vec<bool>,
    producer: Producer,
    shared: InserterShared,
    stop_after_ns: Option<i64>,
    /// A stop was asked for: what was fetched already is still stored, nothing more is fetched.
    draining: bool,
    ends: Vec<LaneEnd>,
}

/// Whether the merge goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Merge {
    More,
    /// All files are at their end, or drained after a stop.
    Drained,
    /// `-c` or `--duration` is reached.
    Enough,
}

impl MergeInserter {
    pub(crate) fn new(lanes: Vec<Lane>, producer: Producer, shared: InserterShared) -> Self {
        let ends = lanes
            .iter()
            .map(|_| LaneEnd {
                error: None,
                notices: Vec::new(),
            })
            .collect();
        Self {
            ended: vec![false; lanes.len()],
            lanes,
            producer,
            shared,
            stop_after_ns: None,
            draining: false,
            ends,
        }
    }

    /// Runs to the end of all files, or a stop.
    pub(crate) fn run(mut self, notify: &mut dyn FnMut(String)) -> Vec<LaneEnd> {
        loop {
            let merge = self.step();
            for end in &mut self.ends {
                end.notices.drain(..).for_each(&mut *notify);
            }
            if merge != Merge::More {
                break;
            }
        }
        self.producer.publish();
        for lane in &mut self.lanes {
            // Fetched but beyond the limit.
            lane.refuse(lane.queue.burst().frames.len() - lane.cursor);
            lane.flush(&self.shared.intake);
            lane.read_statistics(i64::MAX, &self.shared.intake);
        }
        self.ends
    }

    /// Stores the frames of one lane up to the next frame of another.
    fn step(&mut self) -> Merge {
        self.draining |= self.shared.control.stopping();
        for index in 0..self.lanes.len() {
            self.refill(index);
        }
        let Some((first, bound)) = self.first() else {
            return Merge::Drained;
        };
        let lane = &mut self.lanes[first];
        let frames = lane.queue.burst().frames.len();
        while lane.cursor < frames {
            let time_ns = lane.queue.burst().frames[lane.cursor].time_ns;
            if bound.is_some_and(|(other_ns, other)| (time_ns, first) > (other_ns, other)) {
                break;
            }
            if let Some(duration_ns) = self.shared.duration_ns {
                let stop_after_ns = *self
                    .stop_after_ns
                    .get_or_insert(time_ns.saturating_add(duration_ns));
                if time_ns > stop_after_ns {
                    self.shared.control.stop();
                    return Merge::Enough;
                }
            }
            if lane.store(lane.cursor, &mut self.producer, &mut self.shared) == Stored::Enough {
                // It stays in the burst and is counted with the rest of it.
                lane.count.filtered -= 1;
                self.shared.control.stop();
                return Merge::Enough;
            }
            lane.cursor += 1;
        }
        self.producer.publish();
        self.lanes[first].flush(&self.shared.intake);
        Merge::More
    }

    /// The lane whose next frame is first, and the next frame of the best other lane.
    fn first(&self) -> Option<(usize, Option<(i64, usize)>)> {
        let mut heads: Vec<(i64, usize)> = Vec::with_capacity(self.lanes.len());
        for (index, lane) in self.lanes.iter().enumerate() {
            if !self.ended[index] {
                heads.push((lane.queue.burst().frames[lane.cursor].time_ns, index));
            }
        }
        let &(time_ns, first) = heads.iter().min()?;
        let other = heads
            .iter()
            .filter(|head| **head != (time_ns, first))
            .min()
            .copied();
        Some((first, other))
    }

    /// Fetches bursts until the lane has a frame or is at its end.
    fn refill(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        while !self.ended[index] && lane.cursor >= lane.queue.burst().frames.len() {
            if self.draining {
                self.ended[index] = true;
                return;
            }
            match lane.queue.next(IDLE) {
                Ok(Status::Frames) => lane.cursor = 0,
                Ok(Status::Idle) => self.draining |= self.shared.control.stopping(),
                Ok(Status::End) => {
                    self.ended[index] = true;
                    lane.cursor = 0;
                }
                Err(error) => {
                    self.ends[index].error = Some(error);
                    self.ended[index] = true;
                    lane.cursor = 0;
                }
            }
            if let Err(error) = lane.register(&self.shared) {
                self.ends[index].notices.push(error.to_string());
            }
            lane.notices(&mut self.ends[index].notices);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retroscope_capture::{Direction, FrameMeta, VlanTag};

    fn frame(data: &[u8], vlan: Option<VlanTag>) -> Frame<'_> {
        let captured_len = u32::try_from(data.len()).unwrap();
        let meta = FrameMeta {
            time_ns: 0,
            offset: 0,
            captured_len,
            wire_len: 100,
            interface: 0,
            direction: Direction::Unknown,
            vlan,
        };
        Frame { meta, data }
    }

    #[test]
    fn a_stripped_tag_goes_back_behind_the_addresses() {
        let data: Vec<u8> = (0..20).collect();
        let tag = Some(VlanTag {
            tpid: 0x88a8,
            tci: 0x3123,
        });
        let wire = WireFrame::new(&frame(&data, tag), LinkType::ETHERNET);
        let expected: Vec<u8> = (0..12)
            .chain([0x88, 0xa8, 0x31, 0x23])
            .chain(12..20)
            .collect();
        assert_eq!((wire.parts().concat(), wire.wire_len), (expected, 104));
        let raw = WireFrame::new(&frame(&data, tag), LinkType::RAW);
        assert_eq!((raw.parts().concat(), raw.wire_len), (data, 100));
    }

    #[test]
    fn the_snap_length_counts_the_tag() {
        let data: Vec<u8> = (0..20).collect();
        let tag = Some(VlanTag {
            tpid: 0x8100,
            tci: 5,
        });
        let whole = WireFrame::new(&frame(&data, tag), LinkType::ETHERNET)
            .parts()
            .concat();
        for snaplen in 1..30 {
            let f = frame(&data, tag);
            let mut wire = WireFrame::new(&f, LinkType::ETHERNET);
            let cut = wire.cut(snaplen);
            let kept = whole.len().min(snaplen as usize);
            assert_eq!(
                (wire.parts().concat().as_slice(), cut, wire.wire_len),
                (&whole[..kept], kept < whole.len(), 104)
            );
        }
    }
}
