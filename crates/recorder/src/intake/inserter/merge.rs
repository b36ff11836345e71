//! The inserter of files.

use std::{ops::Range, sync::Arc};

use retroscope_capture::{QueueStatus, SourceError};
use retroscope_ring::Producer;

use super::{
    parts::{InserterParts, SOURCE_WAIT},
    queue_intake::QueueIntake,
};
use crate::{
    analysis::lockstep::Lockstep,
    control::ring_time::Moment,
    intake::{counters::LossLog, shedding::Shedding},
};

#[derive(Debug)]
pub(crate) struct MergeInserter {
    files: Vec<MergedFile>,
    producer: Producer,
    lockstep: Arc<Lockstep>,
    /// Shedding, for all files together.
    shedding: Option<Box<Shedding>>,
    parts: InserterParts,
    stop_after_ns: Option<i64>,
    /// A stop was requested: fetched frames are still stored, but no more are fetched.
    draining: bool,
}

#[derive(Debug)]
struct MergedFile {
    intake: QueueIntake,
    part: Range<usize>,
    /// The queue returns no more frames.
    is_at_end: bool,
    /// The queue has ended or a stop was requested, and all fetched frames are processed.
    is_done: bool,
}

/// Files have no time other than their packets' time.
const NO_CLOCK: Moment = Moment {
    ring_ns: 0,
    mono_ns: 0,
    offset_ns: 0,
};

impl MergeInserter {
    pub(crate) fn new(
        intakes: Vec<QueueIntake>,
        mut producer: Producer,
        lockstep: &Arc<Lockstep>,
        mut parts: InserterParts,
    ) -> Self {
        let (common, before) = (Arc::clone(&parts.common), Arc::clone(lockstep));
        producer.on_new_bucket(Box::new(move || {
            before.catch_up();
            common.intake.forget_records();
        }));
        let shedding = |classes| Box::new(Shedding::new(classes, Some(Arc::clone(lockstep))));
        let shedding = parts.classes.take().map(shedding);
        let file = |mut intake: QueueIntake| {
            intake.parts.filter = None;
            intake.parts.classes = None;
            MergedFile {
                intake,
                part: 0..0,
                is_at_end: false,
                is_done: false,
            }
        };
        Self {
            files: intakes.into_iter().map(file).collect(),
            producer,
            lockstep: Arc::clone(lockstep),
            shedding,
            parts,
            stop_after_ns: None,
            draining: false,
        }
    }

    /// Returns the errors that ended files.
    pub(crate) fn run(mut self, notify: &mut dyn FnMut(String)) -> Vec<SourceError> {
        loop {
            let goes_on = self.step();
            for file in &mut self.files {
                file.intake.notices.drain(..).for_each(&mut *notify);
            }
            if !goes_on {
                break;
            }
        }
        self.producer.publish();
        let end = |MergedFile { mut intake, .. }| {
            // Frames that were fetched but are beyond `-c` or `--duration` count as filtered.
            intake.refuse(intake.burst().frames.len() - intake.cursor);
            intake.flush();
            intake.read_statistics();
            intake.error
        };
        self.files.into_iter().filter_map(end).collect()
    }

    /// Stores frames of one queue that come before the next frame of another. Returns `false` at
    /// the end.
    fn step(&mut self) -> bool {
        self.draining |= self.parts.common.control.stopping();
        for index in 0..self.files.len() {
            self.refill(index);
        }
        let Some((first, bound)) = self.first() else {
            return false;
        };
        let (run, is_over) = self.run_of(first, bound);
        let intake = &mut self.files[first].intake;
        let wanted = run.len();
        // One filter serves all files, because its pattern matchers may cache a MiB each.
        std::mem::swap(&mut intake.parts.filter, &mut self.parts.filter);
        std::mem::swap(&mut intake.writer.shedding, &mut self.shedding);
        let dealt_with = intake.store(run, &mut self.producer);
        std::mem::swap(&mut intake.parts.filter, &mut self.parts.filter);
        std::mem::swap(&mut intake.writer.shedding, &mut self.shedding);
        intake.cursor += dealt_with;
        if intake.cursor == intake.burst().frames.len() {
            // Fetching more may take long, so publish first.
            self.producer.publish();
            self.lockstep.wake();
        }
        intake.flush();
        let common = &self.parts.common;
        let logs = [
            &common.intake.losses,
            &common.intake.disorder,
            &common.intake.shed,
        ];
        if logs.into_iter().any(LossLog::is_full) {
            self.producer.publish();
            self.lockstep.catch_up();
            common.intake.forget_records();
        }
        if is_over || dealt_with < wanted {
            self.parts.common.control.stop();
            return false;
        }
        true
    }

    /// The frames of a file's burst before the next frame of another file, and whether `--duration`
    /// ends after them.
    fn run_of(&mut self, index: usize, bound: Option<(i64, usize)>) -> (Range<usize>, bool) {
        let MergedFile { intake, part, .. } = &self.files[index];
        let frames = &intake.burst().frames[part.clone()];
        let times = || frames.iter().map(|meta| intake.ring_ns(meta.time_ns));
        let comes_first = |time_ns| bound.is_none_or(|other| (time_ns, index) <= other);
        let run = times().take_while(|time_ns| comes_first(*time_ns)).count();
        let first_ns = times().next();
        let in_time = match (self.parts.duration_ns, first_ns) {
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

    /// The file with the earliest next frame, and the earliest next frame of the other files, by
    /// ring time.
    fn first(&self) -> Option<(usize, Option<(i64, usize)>)> {
        let mut heads: Vec<(i64, usize)> = Vec::with_capacity(self.files.len());
        for (
            index,
            MergedFile {
                intake, is_done, ..
            },
        ) in self.files.iter().enumerate()
        {
            if !is_done {
                let head = &intake.burst().frames[intake.cursor];
                heads.push((intake.ring_ns(head.time_ns), index));
            }
        }
        let &(time_ns, first) = heads.iter().min()?;
        let others = heads.iter().filter(|head| **head != (time_ns, first));
        Some((first, others.min().copied()))
    }

    /// Fetches bursts until the file has frames that may be stored, or is done.
    fn refill(&mut self, index: usize) {
        let file = &mut self.files[index];
        let intake = &mut file.intake;
        while !file.is_done {
            file.part = intake.part(&mut self.producer, NO_CLOCK);
            if !file.part.is_empty() {
                return;
            }
            let waits = intake.cursor < intake.burst().frames.len();
            if self.draining || file.is_at_end {
                if waits {
                    intake.give_up_ahead();
                } else {
                    file.is_done = true;
                }
                continue;
            }
            let status = if waits {
                intake.fetch_ahead()
            } else {
                intake.fetch(SOURCE_WAIT)
            };
            match status {
                QueueStatus::Frames => {}
                QueueStatus::Idle => self.draining |= self.parts.common.control.stopping(),
                QueueStatus::End => file.is_at_end = true,
            }
            intake.take_events();
        }
    }
}
