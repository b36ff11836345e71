//! One queue on its way into the ring.

use std::sync::{Arc, atomic::Ordering};

use retroscope_capture::{Event, Queue, SourceError};
use retroscope_packet::LinkType;
use retroscope_ring::{Producer, Record, StoreError};

use super::{InserterShared, WireFrame, frame::has_tag};
use crate::{
    counters::{BurstCount, LOST_NO_BUCKET, LossEvent, LossWatch, QueueCounters},
    intake::Intake,
};

/// A queue with its numbers: what both kinds of inserters need for each queue they serve.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) queue: Box<dyn Queue>,
    source: usize,
    pub(super) counters: Arc<QueueCounters>,
    /// Ring-wide identifiers and link types of the queue's interfaces.
    interfaces: Vec<(u16, LinkType)>,
    pub(super) count: BurstCount,
    watch: LossWatch,
    /// First and last stamp of packets that found no bucket since the last flush.
    refused_ns: Option<(i64, i64)>,
    /// Offline: the next frame of the burst.
    pub(super) cursor: usize,
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
pub(super) enum Stored {
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

    pub(super) fn register(
        &mut self,
        shared: &InserterShared,
    ) -> Result<(), retroscope_ring::RingError> {
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
    pub(super) fn store(
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
    pub(super) fn refuse(&mut self, frames: usize) {
        self.count.filtered += frames as u64;
    }

    /// Tells the shared counters.
    pub(super) fn flush(&mut self, intake: &Intake) {
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
    pub(super) fn read_statistics(&mut self, shared: &InserterShared) {
        let statistics = self.queue.statistics();
        // The clock comes after: no loss in the reading is younger.
        let now_ns = shared.clock.now().wall_ns;
        self.watch
            .observe(&statistics, now_ns, &shared.intake.losses);
        self.counters.set_engine(&statistics);
    }

    pub(super) fn notices(&mut self, notices: &mut Vec<String>) {
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
