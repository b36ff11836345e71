//! The inserter of files.

use std::ops::Range;

use retroscope_capture::Status;
use retroscope_ring::Producer;

use super::{IDLE, InserterShared, Lane, LaneEnd};

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
            lane.read_statistics(&self.shared);
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
        let (run, is_over) = self.run_of(first, bound);
        let lane = &mut self.lanes[first];
        let wanted = run.len();
        let dealt_with = lane.store(run, &mut self.producer, &mut self.shared);
        lane.cursor += dealt_with;
        if lane.cursor == lane.queue.burst().frames.len() {
            // To fetch more may take long.
            self.producer.publish();
        }
        lane.flush(&self.shared.intake);
        if is_over || dealt_with < wanted {
            self.shared.control.stop();
            return Merge::Enough;
        }
        Merge::More
    }

    /// The frames of a lane's burst that come before the next frame of another, and whether `--duration` ends behind them.
    fn run_of(&mut self, lane: usize, bound: Option<(i64, usize)>) -> (Range<usize>, bool) {
        let cursor = self.lanes[lane].cursor;
        let frames = &self.lanes[lane].queue.burst().frames[cursor..];
        let comes_first = |time_ns| bound.is_none_or(|other| (time_ns, lane) <= other);
        let run = frames
            .iter()
            .take_while(|meta| comes_first(meta.time_ns))
            .count();
        let run = &frames[..run];
        let in_time = match (self.shared.duration_ns, run.first()) {
            (Some(duration_ns), Some(first)) => {
                let stop_after_ns = *self
                    .stop_after_ns
                    .get_or_insert(first.time_ns.saturating_add(duration_ns));
                run.iter()
                    .take_while(|meta| meta.time_ns <= stop_after_ns)
                    .count()
            }
            _ => run.len(),
        };
        (cursor..cursor + in_time, in_time < run.len())
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
                Ok(Status::Idle) => {
                    lane.cursor = 0;
                    self.draining |= self.shared.control.stopping();
                }
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
            lane.notices(&self.shared, &mut self.ends[index].notices);
        }
    }
}
