//! The inserter of files.

use std::ops::Range;

use retroscope_capture::Status;
use retroscope_ring::Producer;

use super::{IDLE, InserterShared, Lane, LaneEnd};
use crate::control::ring_time::Moment;

/// The inserter of all files.
#[derive(Debug)]
pub(crate) struct MergeInserter {
    lanes: Vec<Lane>,
    /// By lane: the frames that may be stored next.
    parts: Vec<Range<usize>>,
    /// The lane's queue gives nothing more.
    at_end: Vec<bool>,
    /// And nothing of it is left to be stored.
    ended: Vec<bool>,
    producer: Producer,
    shared: InserterShared,
    stop_after_ns: Option<i64>,
    /// A stop was asked for: what was fetched already is still stored, nothing more is fetched.
    draining: bool,
    ends: Vec<LaneEnd>,
}

/// Files have no other time than their packets'.
const NO_CLOCK: Moment = Moment {
    ring_ns: 0,
    mono_ns: 0,
    offset_ns: 0,
};

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
            parts: vec![0..0; lanes.len()],
            at_end: vec![false; lanes.len()],
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
            lane.refuse(lane.burst().frames.len() - lane.cursor);
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
        if lane.cursor == lane.burst().frames.len() {
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
        let part = self.parts[lane].clone();
        let frames = &self.lanes[lane].burst().frames[part.clone()];
        let times = || {
            frames
                .iter()
                .map(|meta| self.lanes[lane].ring_ns(meta.time_ns))
        };
        let comes_first = |time_ns| bound.is_none_or(|other| (time_ns, lane) <= other);
        let run = times().take_while(|time_ns| comes_first(*time_ns)).count();
        let first_ns = times().next();
        let in_time = match (self.shared.duration_ns, first_ns) {
            (Some(duration_ns), Some(first_ns)) => {
                let stop_after_ns = self.stop_after_ns;
                let until_ns = stop_after_ns.unwrap_or(first_ns.saturating_add(duration_ns));
                let in_time = times().take(run).take_while(|time_ns| *time_ns <= until_ns);
                let in_time = in_time.count();
                self.stop_after_ns = Some(until_ns);
                in_time
            }
            _ => run,
        };
        (part.start..part.start + in_time, in_time < run)
    }

    /// The lane whose next frame is first, and the next frame of the best other lane. Times are ring time.
    fn first(&self) -> Option<(usize, Option<(i64, usize)>)> {
        let mut heads: Vec<(i64, usize)> = Vec::with_capacity(self.lanes.len());
        for (index, lane) in self.lanes.iter().enumerate() {
            if !self.ended[index] {
                let head = &lane.burst().frames[lane.cursor];
                heads.push((lane.ring_ns(head.time_ns), index));
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

    /// Fetches bursts until the lane has frames that may be stored, or is at its end.
    fn refill(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        while !self.ended[index] {
            self.parts[index] = lane.part(&mut self.producer, NO_CLOCK, &self.shared);
            if !self.parts[index].is_empty() {
                return;
            }
            // What is left waits for what follows.
            let waits = lane.cursor < lane.burst().frames.len();
            if self.draining || self.at_end[index] {
                if waits {
                    lane.give_up_ahead(&self.shared.intake);
                } else {
                    self.ended[index] = true;
                }
                continue;
            }
            let fetched = if waits {
                lane.fetch_ahead()
            } else {
                lane.fetch(IDLE)
            };
            match fetched {
                Ok(Status::Frames) => {}
                Ok(Status::Idle) => self.draining |= self.shared.control.stopping(),
                Ok(Status::End) => self.at_end[index] = true,
                Err(error) => {
                    self.ends[index].error = Some(error);
                    self.at_end[index] = true;
                }
            }
            if let Err(error) = lane.register(&self.shared) {
                self.ends[index].notices.push(error.to_string());
            }
            lane.notices(&self.shared, &mut self.ends[index].notices);
        }
    }
}
