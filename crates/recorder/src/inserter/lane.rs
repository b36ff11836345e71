//! One queue on its way into the ring.

use std::{ops::Range, sync::Arc};

use retroscope_capture::{Event, Queue, SourceError};
use retroscope_ring::Producer;

use super::{
    InserterShared,
    tally::{Known, Stored, Tally, plain},
};
use crate::{
    away::Away,
    counters::{LOST_INTERFACE_LIMIT, LOST_NO_BUCKET, LossEvent, LossWatch, QueueCounters},
    intake::Intake,
};

/// A queue with its numbers: what both kinds of inserters need for each queue they serve.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(super) queue: Box<dyn Queue>,
    source: usize,
    pub(super) counters: Arc<QueueCounters>,
    /// The queue's interfaces; frames of others are lost, because there are too many.
    interfaces: Vec<Known>,
    /// There is no number left for an interface.
    is_full: bool,
    tally: Tally,
    watch: LossWatch,
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
            is_full: false,
            tally: Tally::default(),
            watch,
            cursor: 0,
            is_first,
        };
        lane.register(shared)?;
        Ok(lane)
    }

    /// Registers interfaces that are new. It fails once, when there are too many.
    pub(super) fn register(
        &mut self,
        shared: &InserterShared,
    ) -> Result<(), retroscope_ring::RingError> {
        while !self.is_full
            && let Some(info) = self.queue.interfaces().get(self.interfaces.len())
        {
            let mut info = info.clone();
            if info.name.is_empty() {
                // A classic pcap names no interface; the file's name tells merged ones apart.
                info.name = file_name(&shared.intake.sources[self.source].name);
            }
            let interfaces = &shared.intake.interfaces;
            let registered = interfaces.register(&shared.ring, self.source, &info);
            self.is_full = registered.is_err();
            let id = registered?;
            let link_type = info.link_type;
            self.interfaces.push(Known { id, link_type });
        }
        Ok(())
    }

    /// Stores frames of the burst, or counts why not. Returns how many it dealt with: fewer than there are in `range` if
    /// `-c` is reached, and then nothing behind them is to be stored.
    pub(super) fn store(
        &mut self,
        range: Range<usize>,
        producer: &mut Producer,
        shared: &mut InserterShared,
    ) -> usize {
        let burst = self.queue.burst();
        let frames = &burst.frames[range.clone()];
        if let Some(interface) = plain(frames, &self.interfaces, shared.snaplen) {
            return match shared.filter {
                None => {
                    let granted = &frames[..shared.reserve(frames.len())];
                    shared.look(&burst, granted, interface, producer);
                    self.tally.store_plain(&burst, granted, interface, producer);
                    granted.len()
                }
                Some(_) => self
                    .tally
                    .store_filtered(&burst, frames, interface, producer, shared),
            };
        }
        if let Some(lookout) = &mut shared.lookout {
            lookout.leave((producer.id(), producer.stored()), frames.len());
        }
        let tally = &mut self.tally;
        let mut is_stored = |index: &usize| {
            let frame = burst.frame(*index);
            tally.store(&frame, &self.interfaces, producer, shared) == Stored::Yes
        };
        range.take_while(|index| is_stored(index)).count()
    }

    /// Frames that came after `-c` was reached are refused, as by a filter.
    pub(super) fn refuse(&mut self, frames: usize) {
        self.tally.count.filtered += frames as u64;
    }

    /// Tells the shared counters.
    pub(super) fn flush(&mut self, intake: &Intake) {
        let Tally {
            count,
            refused_ns,
            unnumbered_ns,
        } = std::mem::take(&mut self.tally);
        let losses = [
            (LOST_NO_BUCKET, count.no_bucket, refused_ns),
            (LOST_INTERFACE_LIMIT, count.interface_limit, unnumbered_ns),
        ];
        for (cause, packets, span_ns) in losses {
            if let Some((from_ns, to_ns)) = span_ns {
                intake.losses.push(LossEvent {
                    source: self.source,
                    cause,
                    from_ns,
                    to_ns,
                    packets,
                });
            }
        }
        self.counters.add(count);
    }

    /// Reads the engine's counters.
    pub(super) fn read_statistics(&mut self, shared: &InserterShared) {
        let statistics = self.queue.statistics();
        // The clock comes after: no loss in the reading is younger.
        let now = shared.clock.now();
        let losses = &shared.intake.losses;
        self.watch.observe(&statistics, now.wall_ns, losses);
        self.away(shared).tell(now.wall_ns, losses);
        shared.intake.set_read(now.mono_ns);
        self.counters.set_effects(self.queue.offload_effects());
        self.counters.set_engine(&statistics);
    }

    /// The queue has ended, by itself or by an error. Returns a sentence about what is no longer recorded, if others go on.
    pub(super) fn ended(
        &mut self,
        error: Option<&SourceError>,
        shared: &InserterShared,
    ) -> Option<String> {
        self.counters.set_ended();
        let error = error?;
        let now = shared.clock.now();
        let what = shared
            .intake
            .no_longer_recorded(self.source, self.watch.last_ns(), now)?;
        Some(format!("{what} is no longer recorded: {error}"))
    }

    /// Takes the queue's events: what a user should read goes to `notices`.
    pub(super) fn notices(&mut self, shared: &InserterShared, notices: &mut Vec<String>) {
        while let Some(event) = self.queue.event() {
            if self.is_first {
                self.follow(&event, shared);
            }
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
                // Also where it was never up.
                Event::InterfaceDown(i) => notices.push(format!(
                    "{}: the interface is down; recording goes on when it is up",
                    name(i)
                )),
                Event::InterfaceUp(i) => {
                    notices.push(format!("{}: the interface is up again", name(i)))
                }
                Event::InterfaceGone(i) => notices.push(format!(
                    "{}: the interface is gone; recording goes on when it is back",
                    name(i)
                )),
                // A notice has told it.
                Event::InterfaceLeft(_) => {}
                Event::Notice(text) => notices.push(text),
            }
        }
    }
}

impl Lane {
    /// Where the source's interface is.
    fn away<'s>(&self, shared: &'s InserterShared) -> &'s Away {
        &shared.intake.sources[self.source].away
    }

    /// Notes when the interface goes away and when it is back.
    fn follow(&mut self, event: &Event, shared: &InserterShared) {
        match event {
            Event::InterfaceDown(_) | Event::InterfaceGone(_) | Event::InterfaceLeft(_) => {
                self.away(shared).begin(self.watch.last_ns());
            }
            Event::InterfaceUp(_) => {
                let now_ns = shared.clock.now().wall_ns;
                self.away(shared).end(now_ns, &shared.intake.losses);
            }
            Event::InterfaceAdded(_) | Event::Notice(_) => {}
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
