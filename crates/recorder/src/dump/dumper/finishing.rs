//! Finishes a dump after all its packets are read.

use std::sync::atomic::Ordering;

use super::{Dumper, DumperParts};
use crate::{
    control::{events::RecorderEvent, progress::Reach, time::rfc3339},
    dump::{
        active::{ActiveDump, verdict_line},
        ending::{DumpEnding, Stage},
        pool::{SinkOutcome, SinkWork},
        report::DumpReport,
        sink::SinkEnd,
    },
};

/// About the time from a failed try to write a sidecar to the next try, ns of the monotonic clock.
const TRY_AGAIN_NS: i64 = 1_000_000_000;
/// Maximum number of dumps that wait for another try to write their sidecar.
const LACKING_MAX: usize = 1000;
/// If this number of dumps waits to be compressed or is being compressed, a further dump stays
/// plain.
const COMPRESSED_MAX: usize = 1000;
const LACKED_SIDECAR: &str = "not compressed: it lacked its sidecar";

impl Dumper {
    pub(super) fn complete(&mut self, reach: &Reach) {
        let parts = &self.parts;
        let is_done = |dump: &ActiveDump| is_ready(parts, dump, reach);
        for dump in self.active.take_ready(is_done) {
            self.finish(dump);
        }
    }

    /// The dump has read all its packets: lets its sink complete the files.
    fn finish(&mut self, mut dump: ActiveDump) {
        let id = dump.order.id;
        self.scanner.rules.remove(id);
        if let Some(marks) = &dump.marks {
            marks.close_dump(id);
        }
        let Some(close) = dump.close.take() else {
            return;
        };
        if let Some(received) = &close.received {
            // From files, only the link types of packets up to the close count, whatever the dumper
            // has read.
            let link_types = self.names.link_types_of(received);
            dump.order.predicate.tell_refused(&link_types);
        }
        let (intake, clock) = (&self.parts.common.intake, &self.parts.common.clock);
        let totals = dump.totals(&close, intake);
        let mut ending = dump.into_ending(close, Stage::Finishing, intake, clock);
        let verdict = verdict_line(&ending.report());
        let end = Box::new((SinkEnd { verdict, totals }, ending.sink.end()));
        self.ask(id, ending, Stage::Finishing, SinkWork::Finish(end));
    }

    /// Submits work to the sink of a dump. If the sink cannot do the work, goes on with the next
    /// stage of the dump at once.
    pub(super) fn ask(&mut self, id: u64, mut ending: DumpEnding, stage: Stage, work: SinkWork) {
        if ending.submit(stage, work) {
            self.ending.insert(id, ending);
        } else {
            self.go_on(id, ending);
        }
        self.take_outcomes();
    }

    pub(super) fn take_outcomes(&mut self) {
        while let Some(news) = self.parts.pool.outcome() {
            self.hear(news);
        }
    }

    pub(super) fn hear(&mut self, (id, outcome): (u64, SinkOutcome)) {
        if let Some(dump) = self.active.get_mut(id) {
            if let SinkOutcome::Failed(fault) = outcome {
                dump.sink.fault = Some(fault);
            }
            return;
        }
        let Some(mut ending) = self.ending.remove(&id) else {
            return;
        };
        let is_answer = !matches!(outcome, SinkOutcome::Failed(_));
        for notice in ending.hear(outcome, &self.stopped) {
            self.tell(RecorderEvent::Notice(notice));
        }
        if is_answer {
            self.go_on(id, ending);
        } else {
            self.ending.insert(id, ending);
        }
    }

    /// Starts the next stage of a dump whose sink has answered, or has failed.
    fn go_on(&mut self, id: u64, mut ending: DumpEnding) {
        match ending.stage {
            Stage::Finishing => {
                ending.note_link_types(&mut self.names);
                if self.compresses() && self.compressed() >= COMPRESSED_MAX {
                    let note = format!("not compressed: {COMPRESSED_MAX} dumps wait for that");
                    ending.draft.notes.push(note);
                    ending.completion.stays_plain = true;
                }
                self.write_sidecar(Stage::WritingSidecar, id, ending);
            }
            Stage::Stopping => self.tell(RecorderEvent::Finished(ending.report())),
            Stage::WritingSidecar => {
                let common = &self.parts.common;
                let finished = &common.counters.finished_dumps;
                finished.fetch_add(1, Ordering::Relaxed);
                common.costs.add(ending.rule_number, 0, 1);
                let is_plain = ending.completion.stays_plain || !self.compresses();
                let is_whole = ending.sink.fault.is_none();
                if ending.completion.lacks_sidecar && is_whole && !is_plain {
                    ending.draft.notes.push(LACKED_SIDECAR.to_owned());
                    ending.completion.stays_plain = true;
                }
                let report = ending.report();
                let is_whole = report.error.is_none();
                for news in ending.alerted.count(&common.alerts, id, is_whole) {
                    self.parts.events.tell(RecorderEvent::Alert(news));
                }
                let is_complete = report.error.is_none();
                if is_complete && self.compresses() && !ending.completion.stays_plain {
                    self.tell(RecorderEvent::Finished(report));
                    ending.submit(Stage::Compressing, SinkWork::Compress);
                    self.ending.insert(id, ending);
                    return;
                }
                // A failed dump without a sidecar may have no file for `--post`.
                if report.sidecar || is_complete {
                    self.post(&report);
                }
                self.tell(RecorderEvent::Finished(report));
                self.put_by(id, ending);
            }
            Stage::Compressing => {
                // The log comes first: a query compares the files in a sidecar with the log.
                self.parts.common.log.replace(&ending.report());
                if ending.is_compressed() {
                    self.write_sidecar(Stage::Replacing, id, ending);
                } else {
                    self.compressed_or_not(id, ending);
                }
            }
            Stage::Replacing => {
                self.parts.common.log.replace(&ending.report());
                self.compressed_or_not(id, ending);
            }
            Stage::RetryingSidecar => {
                self.try_again_ns = match ending.completion.lacks_sidecar {
                    true => self.parts.common.clock.mono_ns() + TRY_AGAIN_NS,
                    // The disk probably has room now, so the next dump is tried at once.
                    false => i64::MIN,
                };
                if !ending.completion.lacks_sidecar {
                    let report = ending.report();
                    self.parts.common.log.replace(&report);
                    // The command of a dump without an error was queued before.
                    if report.error.is_some() {
                        self.post(&report);
                    }
                }
                self.put_by(id, ending);
            }
        }
    }

    /// The compression of a dump has ended: its files are compressed, plain because of an error, or
    /// deleted.
    fn compressed_or_not(&mut self, id: u64, ending: DumpEnding) {
        let report = ending.report();
        let note = ending.sink.held().note.clone();
        // A deleted dump needs no event and no command.
        let is_gone = ending.completion.is_gone || !ending.is_compressed() && note.is_none();
        if !is_gone {
            self.post(&report);
            if ending.is_compressed() {
                self.tell(RecorderEvent::Compressed(report));
            }
            if let Some(note) = note {
                self.tell(RecorderEvent::Notice(note));
            }
        }
        self.put_by(id, ending);
    }

    fn compresses(&self) -> bool {
        self.parts.directory.zstd.is_some()
    }

    /// Number of dumps that are being compressed, or wait for compression.
    fn compressed(&self) -> usize {
        let ending = self.ending.values();
        ending.filter(|it| it.stage == Stage::Compressing).count()
    }

    fn post(&self, report: &DumpReport) {
        if let Some(post) = &self.parts.post {
            post.submit(report);
        }
    }

    /// Forgets a dump. Live, keeps up to [`LACKING_MAX`] dumps that lack their sidecar for another
    /// try.
    fn put_by(&mut self, id: u64, ending: DumpEnding) {
        let is_tried_again = ending.completion.lacks_sidecar && self.parts.common.is_live();
        if is_tried_again && self.lacking.len() < LACKING_MAX {
            if self.lacking.is_empty() && ending.stage != Stage::RetryingSidecar {
                self.try_again_ns = self.parts.common.clock.mono_ns() + TRY_AGAIN_NS;
            }
            self.lacking.insert(id, ending);
        }
    }

    pub(super) fn try_sidecar_again(&mut self) {
        if self.lacking.is_empty() || self.parts.common.clock.mono_ns() < self.try_again_ns {
            return;
        }
        self.try_again_ns = i64::MAX;
        let mut behind = self.lacking.range(self.tried_last + 1..);
        let next = behind.next().or_else(|| self.lacking.first_key_value());
        let next = next.map(|(id, _)| *id);
        if let Some((id, ending)) = next.and_then(|id| self.lacking.remove_entry(&id)) {
            self.tried_last = id;
            self.write_sidecar(Stage::RetryingSidecar, id, ending);
            self.take_outcomes();
        }
    }

    fn write_sidecar(&mut self, stage: Stage, id: u64, mut ending: DumpEnding) {
        if ending.completion.created.is_none() && !self.parts.reproducible {
            let now_ns = self.parts.common.clock.clock().now().wall_ns;
            ending.completion.created = Some(rfc3339(now_ns));
        }
        // If a replacement sidecar cannot be written, the old sidecar stays.
        ending.draft.sidecar |= stage != Stage::Replacing;
        let sidecar = ending.sidecar(&mut self.names, &self.parts.origin);
        let work = SinkWork::WriteSidecar(Box::new(sidecar));
        ending.submit(stage, work);
        self.ending.insert(id, ending);
    }
}

/// Whether the window of a dump is closed and wholly read, and its losses are known. From
/// [`ActiveDump::judge_by_ns`] on, the losses may be unknown.
fn is_ready(parts: &DumperParts, dump: &ActiveDump, reach: &Reach) -> bool {
    let Some(close) = &dump.close else {
        return false;
    };
    if dump.unread_ns != i64::MAX || !dump.is_over(reach) || !dump.waiting.is_empty() {
        return false;
    }
    dump.unknown(close, &parts.common.intake).is_empty()
        || dump
            .judge_by_ns
            .is_none_or(|by| parts.common.clock.mono_ns() >= by)
}
