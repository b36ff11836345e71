//! The report of an answer, during the answer and at its end.

use std::io;

use retroscope_ring::RegionWriter;

use super::{
    DumpsAsked, QueryAnswer, QueryError, QueryReport, contents::QueryWindow,
    dump_reader::DumpReader, lost::lost_before_the_ring, reading::AnswerReading, report::Empty,
};
use crate::{Verdict, rfc3339};

impl<W: io::Write> AnswerReading<'_, W> {
    /// The window that the answer covers, which a limit or another early end may cut short.
    pub(super) fn final_window(&self) -> QueryWindow {
        let mut window = self.answer.window;
        let is_follow = self.answer.query.follow;
        if is_follow && self.latest.writer != RegionWriter::Killed {
            window.end_with_known(self.written_to_ns);
        }
        let by = self.tally.ended_by;
        if by == Some("limit") || (by == Some("cancelled") && !is_follow) {
            let end_ns = self.tally.last_ns.or(window.reported_ns.0);
            window.end_with(end_ns.unwrap_or_default());
        }
        if let Some(first_ns) = self.tally.first_ns
            && self.dumped.is_some()
        {
            window.begin_by(first_ns);
        }
        if let Some(newest) = &self.newest {
            let first_ns = self.tally.first_ns.unwrap_or(i64::MAX);
            window.begin_with(newest.begin_ns.min(first_ns));
        }
        window
    }

    /// The report of the answer up to now.
    pub(super) fn report(&self) -> QueryReport {
        let Self {
            answer,
            tally,
            start,
            latest,
            ..
        } = self;
        let window = self.final_window();
        let tells_gaps = |producer| answer.resume.end_of(producer).is_some();
        let dumped = self.dumped.as_ref();
        let mut covered = dumped.map(DumpReader::covered).unwrap_or_default();
        let recorder = answer.recorder.as_ref().and_then(std::sync::Weak::upgrade);
        // After a clock step, a pin's stamps may have other ring times.
        if let Some(recorder) = recorder.as_ref().filter(|_| !latest.has_steps()) {
            covered.extend(recorder.pins.whole(recorder.clock.mono_ns()));
        }
        let mut losses = start.missing(&window, tells_gaps, &covered);
        losses.add_all(&self.losses);
        if let Some(dumped) = dumped {
            dumped.add_losses(&window, &mut losses);
        }
        if !matches!(tally.ended_by, Some("cancelled" | "limit")) {
            latest.add_unpublished(&window, &mut losses);
        }
        for (cause, packets) in [
            ("interface-limit", tally.unlisted),
            ("restamped", tally.restamped),
        ] {
            if packets > 0 {
                losses.add(cause, window.all(), Some(packets));
            }
        }
        let mut notes = answer.matching.notes();
        if tally.ended_by == Some("cancelled") {
            notes.extend(answer.cancel.why());
        }
        if self.merge.disordered > 0 {
            let count = self.merge.disordered;
            notes.push(format!(
                "stamps in disorder: {count} packets come after packets of a later time"
            ));
        }
        let to = window.reported_ns.1.map(rfc3339);
        let has_evicted = losses.has("evicted");
        let mut missing = losses.missing();
        let mut losses_known_to = None;
        let mut start_clip = None;
        if let Some(recorder) = recorder {
            if recorder.is_live() {
                let (lost, known) = lost_before_the_ring(&recorder, latest, &window, to.as_ref());
                missing.extend(lost);
                losses_known_to = known;
                let is_clipped = !has_evicted && dumped.is_none() && self.begins_too_early(&window);
                start_clip = is_clipped.then_some("start");
            }
            notes.extend(recorder.intake.unknown_losses());
        }
        let is_cut = self.newest.is_some();
        let limit = is_cut.then_some("limit");
        let is_whole = !is_cut && tally.ended_by.is_none_or(|by| by == "end");
        let empty = (tally.packets == 0 && is_whole).then(|| self.emptiness(&window, has_evicted));
        QueryReport {
            from: window.reported_ns.0.map(rfc3339),
            to,
            packets: tally.packets,
            bytes: tally.bytes,
            inspected: self.told_inspected(),
            verdict: if missing.is_empty() {
                Verdict::Complete
            } else {
                Verdict::Incomplete
            },
            missing,
            clipped: [start_clip, limit, tally.ended_by]
                .into_iter()
                .flatten()
                .collect(),
            empty,
            losses_known_to,
            dumps: dumped.map(|dumped| {
                let is_named = answer.query.dumps == DumpsAsked::Named;
                dumped.report(window.to_ns, start.evicted(&window), is_named)
            }),
            index: (self.needed.as_ref())
                .filter(|_| answer.query.within.is_empty())
                .map(|_| tally.index),
            notes,
            after: self.progress.iter().filter_map(|it| it.last).collect(),
        }
    }

    /// Whether the query asks for a time before the start of the recording.
    fn begins_too_early(&self, window: &QueryWindow) -> bool {
        let QueryAnswer {
            query, attached, ..
        } = &self.answer;
        // The start of the recording is a ring time.
        let offset_ns = self.latest.latest_offset_ns();
        let from_ns = query.from_ns.map(|ns| ns.saturating_sub(offset_ns));
        let from_ns = from_ns.or(query.last_ns.map(|_| window.from_ring_ns));
        let begun_ns = attached.info().created_ns;
        self.newest.is_none()
            && from_ns
                .zip(begun_ns)
                .is_some_and(|(from, begun)| from < begun)
    }

    /// Inspected packets, also of dumps.
    fn inspected(&self) -> u64 {
        let dumped = self.dumped.as_ref().map_or(0, |dumped| dumped.inspected);
        self.tally.inspected + dumped
    }

    /// The number of inspected packets for the report. If the client may see only a part of the
    /// packets, the number of packets in the answer, which tells nothing about other packets.
    fn told_inspected(&self) -> u64 {
        if self.answer.query.within.is_empty() {
            self.inspected()
        } else {
            self.tally.packets
        }
    }

    /// The reason for an answer without packets. `has_evicted`: packets of the window were
    /// overwritten, and dumps and pins may lack some of these.
    fn emptiness(&self, window: &QueryWindow, has_evicted: bool) -> Empty {
        let inspected = self.inspected();
        if self.answer.matching.lacks_interfaces() {
            let names = self
                .latest
                .interfaces
                .iter()
                .map(|entry| entry.name.clone());
            return Empty::NoInterface {
                interfaces: names.collect(),
            };
        }
        let is_it =
            |why: &Empty| inspected == 0 && (has_evicted || !matches!(why, Empty::AgedOut { .. }));
        let why = self.latest.emptiness(window).filter(is_it);
        why.unwrap_or(Empty::NothingMatched {
            of: self.told_inspected(),
        })
    }

    pub(super) fn end(mut self) -> Result<QueryReport, QueryError> {
        let report = self.report();
        let verdict = format!("verdict: {}", report.reasons());
        if let Some(stream) = &mut self.stream {
            stream.let_go(Some(&verdict)).map_err(QueryError::Output)?;
            if report.packets == 0 {
                let numbered = (0_u16..).zip(&self.latest.interfaces);
                let matching = &self.answer.matching;
                let is_any = matching.lacks_interfaces();
                let asked = numbered.filter(|(number, _)| is_any || matching.asks(*number));
                stream.interfaces(asked).map_err(QueryError::Output)?;
            }
        }
        self.write_statistics_of(&report)?;
        if let Some(stream) = &mut self.stream {
            stream.flush().map_err(QueryError::Output)?;
        }
        Ok(report)
    }
}
