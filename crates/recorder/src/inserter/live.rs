//! The inserter of a live queue.

use std::sync::atomic::Ordering;

use retroscope_capture::Status;
use retroscope_ring::Producer;

use super::{IDLE, InserterShared, Lane, LaneEnd, lane::Stored};
use crate::clock::Now;

/// Time between two readings of an engine's counters, ns.
const STATISTICS_NS: i64 = 10_000_000;

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
            self.lane.read_statistics(&self.shared);
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
