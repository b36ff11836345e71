//! Frames whose stamps are judged by themselves ([`Sequence`]), with those behind them that the judgement takes.
//!
//! A packet that is behind its file's time is the first one behind a step, or late: which, those that follow it tell. A file can be read
//! on until they have, so that each of its packets is stored at the place that is its own. What must wait is copied, because an engine
//! lends one burst at a time. Live nothing waits: what comes before a step is believed is late.

use std::collections::VecDeque;

use retroscope_capture::{Burst, FrameMeta, Queue, SourceError, Status};

use super::{
    IDLE,
    sequence::{Late, Seen, Sequence},
};

/// Bytes that wait at most; beyond, what is behind is late.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The frames of a queue, in the burst that is lent or in a copy of it and those that followed.
#[derive(Debug)]
pub(super) struct Ahead {
    sequence: Sequence,
    /// Whether frames may wait for what follows them.
    waits: bool,
    copy: Option<Copy>,
    /// Frames that were looked at.
    seen: usize,
    /// Those before this one have their offset.
    decided: usize,
    /// The first one behind, if any is undecided.
    first_behind: usize,
    steps: VecDeque<Step>,
}

/// From this frame on another offset applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) index: usize,
    /// Stamp less ring time, ns.
    pub(super) offset_ns: i64,
    /// How far the clock went, ns.
    pub(super) step_ns: i64,
}

#[derive(Debug, Default)]
struct Copy {
    memory: Vec<u8>,
    frames: Vec<FrameMeta>,
}

impl Copy {
    fn add(&mut self, burst: Burst<'_>, from: usize) {
        for frame in burst.iter().skip(from) {
            let offset = self.memory.len();
            self.frames.push(FrameMeta {
                offset,
                ..frame.meta
            });
            self.memory.extend_from_slice(frame.data);
        }
    }
}

impl Ahead {
    pub(super) fn new(hold_ns: i64, waits: bool) -> Self {
        Self {
            sequence: Sequence::new(hold_ns),
            waits,
            copy: None,
            seen: 0,
            decided: 0,
            first_behind: 0,
            steps: VecDeque::new(),
        }
    }

    /// The frames that `seen` and `decided` count.
    pub(super) fn burst<'a>(&'a self, queue: &'a dyn Queue) -> Burst<'a> {
        match &self.copy {
            None => queue.burst(),
            Some(copy) => Burst {
                memory: &copy.memory,
                frames: &copy.frames,
            },
        }
    }

    /// Another burst was fetched, and nothing is left of the one before.
    pub(super) fn fetched(&mut self) {
        self.copy = None;
        (self.seen, self.decided, self.first_behind) = (0, 0, 0);
        self.steps.clear();
    }

    /// Looks at the frames that are there; what was late is told.
    pub(super) fn decide(&mut self, queue: &dyn Queue, mut late: impl FnMut(Late)) {
        let copy = self.copy.take();
        let frames = copy
            .as_ref()
            .map_or(queue.burst().frames, |copy| &copy.frames);
        for (index, meta) in frames.iter().enumerate().skip(self.seen) {
            let (seen, were_late) = self.sequence.see(meta.time_ns);
            were_late.into_iter().for_each(&mut late);
            match seen {
                Seen::InTime => self.decided = index + 1,
                Seen::FirstBehind => (self.decided, self.first_behind) = (index, index),
                Seen::Behind => {}
                Seen::Stepped { offset_ns, step_ns } => {
                    let index_of_step = if self.waits { self.first_behind } else { index };
                    self.steps.push_back(Step {
                        index: index_of_step,
                        offset_ns,
                        step_ns,
                    });
                    self.decided = index + 1;
                }
            }
        }
        self.seen = frames.len();
        let waiting = copy.as_ref().map_or(0, |copy| copy.memory.len());
        self.copy = copy;
        if !self.waits || waiting > WAITING_BYTES_MAX {
            self.decided = self.seen;
            self.first_behind = self.seen;
        }
    }

    /// Nothing follows: what waits is late.
    pub(super) fn give_up(&mut self, late: impl FnMut(Late)) {
        self.sequence.give_up().into_iter().for_each(late);
        self.decided = self.seen;
    }

    /// Fetches what follows the frames from `cursor` on, which then is the first one.
    pub(super) fn extend(
        &mut self,
        queue: &mut dyn Queue,
        cursor: usize,
    ) -> Result<Status, SourceError> {
        let mut copy = Copy::default();
        copy.add(self.burst(queue), cursor);
        self.copy = Some(copy);
        self.seen -= cursor;
        self.decided -= cursor;
        self.first_behind = self.first_behind.saturating_sub(cursor);
        self.steps.iter_mut().for_each(|step| step.index -= cursor);
        let status = queue.next(IDLE)?;
        if let (Status::Frames, Some(copy)) = (status, &mut self.copy) {
            copy.add(queue.burst(), 0);
        }
        Ok(status)
    }

    /// The step at `cursor`, which is taken.
    pub(super) fn step_at(&mut self, cursor: usize) -> Option<Step> {
        self.steps.pop_front_if(|step| step.index <= cursor)
    }

    /// The step that was taken is not followed.
    pub(super) fn refuse(&mut self, offset_ns: i64) {
        self.steps.clear();
        self.sequence.refuse(offset_ns);
    }

    /// The end of the frames that have one offset.
    pub(super) fn end(&self) -> usize {
        let step = self.steps.front().map_or(usize::MAX, |step| step.index);
        self.decided.min(step)
    }
}
