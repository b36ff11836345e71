//! Messages to the user on stderr during a recording.
//!
//! On a terminal one status line is redrawn every second, and cleared before other output.
//! Elsewhere a plain status line is printed every 10 seconds, unless a service manager shows the
//! status. With `quiet`, and with `--top` of `flows`, there is no status line.
//!
//! During a storm of triggers only a limited number of messages is printed, and a summary counts
//! the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IsTerminal, Write, stderr},
    time::{Duration, Instant},
};

use retroscope_recorder::{
    DeletedDump, DumpReport, Missed, PostOutcome, PostResult, Recorder, RecorderEvent,
    RecorderStatus, RecorderSummary, SourceSnapshot, Verdict, WhyDeleted, rfc3339,
};
use retroscope_ring::{Numa, Ring};

use crate::{
    commands::remote::printable,
    failure::say,
    units::{counted, show_size},
};

/// Progress of filling memory is shown only after this time.
const FILLING_QUIET: Duration = Duration::from_millis(200);

/// Maximum number of messages about dumps in a period ([`LINES_PERIOD`]). As many notices, changes
/// and refusals together may be printed in addition. Further messages are only counted.
const LINES_MAX: u32 = 50;
/// Maximum number of incomplete and failed dumps whose events the screen remembers.
/// [`RecorderSummary::dumps`] lists at most as many dumps.
const NOT_COMPLETE_MAX: usize = 10_000;
/// Minimum length of a period of [`LINES_MAX`]. A period begins with its first message.
const LINES_PERIOD: Duration = Duration::from_secs(10);

/// Counts the messages of one period.
#[derive(Debug, Default)]
struct LineBudget {
    since: Option<Instant>,
    dumps: u32,
    sentences: u32,
    /// Events that were not printed.
    cut: Missed,
}

impl LineBudget {
    /// Whether an event may be printed. If not, the event is counted.
    fn has_room(&mut self, event: &RecorderEvent) -> bool {
        self.since.get_or_insert_with(Instant::now);
        let printed = match event {
            RecorderEvent::Notice(_) | RecorderEvent::Changed(_) | RecorderEvent::Refused(_) => {
                &mut self.sentences
            }
            _ => &mut self.dumps,
        };
        if *printed >= LINES_MAX || matches!(event, RecorderEvent::Missed(_)) {
            self.cut.add(event);
            return false;
        }
        *printed += 1;
        true
    }

    /// Ends the period. Returns a summary of the events that were not printed, if there are any.
    /// With `quiet`, returns a summary only if it counts incomplete or failed dumps, refusals or
    /// notices.
    fn cut(&mut self, quiet: bool) -> Option<String> {
        let Missed {
            triggered,
            finished,
            compressed,
            deleted,
            posted,
            notices,
            alerts: _,
            exports: _,
            changes,
            refusals,
            unknown,
        } = std::mem::take(self).cut;
        let not_complete = finished.incomplete + finished.failed;
        let parts = [
            (triggered, "dumps started"),
            (finished.complete, "complete"),
            (finished.incomplete, "incomplete"),
            (finished.failed, "failed"),
            (compressed, "compressed"),
            (deleted, "deleted"),
            (posted, "commands ended"),
            (changes, "changes by clients"),
            (refusals, "refusals"),
            (notices, "other messages"),
            (unknown, "events missed"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = parts
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        // Missed events of unknown kind are not in this condition: at the end of the recording,
        // `RecordScreen::end` prints the incomplete and failed dumps whose events were missed.
        let is_wanted = !quiet || not_complete + refusals + notices > 0;
        (is_wanted && !parts.is_empty())
            .then(|| format!("not shown one by one: {}", parts.join(", ")))
    }
}

/// Prints events and the status of a recording.
#[derive(Debug, Default)]
pub(crate) struct RecordScreen {
    quiet: bool,
    /// Whether the recorder can write dumps.
    dumps: bool,
    terminal: bool,
    drawn: bool,
    filling_since: Option<Instant>,
    lines: LineBudget,
    /// Numbers of the incomplete and failed dumps whose events arrived: the highest
    /// [`NOT_COMPLETE_MAX`] numbers.
    not_complete: BTreeSet<u64>,
    has_missed: bool,
    line: StatusLine,
}

/// Formats the status as a line, with rates since the previous status.
#[derive(Debug, Default)]
pub(super) struct StatusLine {
    /// Time of the previous status, with the packets and bytes stored by then.
    last: Option<(Instant, u64, u64)>,
}

impl StatusLine {
    /// Starts the first period, when the recording starts.
    pub(super) fn begin(&mut self) {
        self.last = Some((Instant::now(), 0, 0));
    }

    /// The status line, if at least `period` has passed since the previous line or the start.
    pub(super) fn due(&mut self, period: Duration, recorder: &Recorder) -> Option<String> {
        let now = Instant::now();
        let (before, packets, bytes) = *self.last.get_or_insert((now, 0, 0));
        let elapsed = now.duration_since(before);
        if elapsed < period {
            return None;
        }
        let status = recorder.status();
        let (stored, stored_bytes) = (sum(&status, |s| s.stored), sum(&status, |s| s.stored_bytes));
        let per_second = |count: u64| count as f64 / elapsed.as_secs_f64();
        let rates = (
            per_second(stored - packets),
            per_second(stored_bytes - bytes) * 8.0,
        );
        self.last = Some((now, stored, stored_bytes));
        Some(status_text(&status, Some(rates)))
    }
}

impl RecordScreen {
    pub(crate) fn new(quiet: bool, dumps: bool) -> Self {
        Self {
            quiet,
            dumps,
            terminal: stderr().is_terminal(),
            ..Self::default()
        }
    }

    /// Shows progress while memory is filled. Only on a terminal; a large ring takes seconds.
    pub(crate) fn filling(&mut self, done: u64, total: u64) {
        if self.quiet || !self.terminal {
            return;
        }
        let since = *self.filling_since.get_or_insert_with(Instant::now);
        if done == total {
            self.clear();
        } else if since.elapsed() >= FILLING_QUIET {
            let (done, total) = (show_size(done), show_size(total));
            self.draw(&format!("filling the ring: {done} of {total}"));
        }
    }

    /// Reports that the recording has started: its sources, its engine and its ring.
    pub(crate) fn started(&mut self, names: &str, engine: &str, ring: &Ring) {
        self.line.begin();
        if self.quiet {
            return;
        }
        let (size, pages) = (show_size(ring.bytes()), ring.pages());
        let does = if self.dumps {
            "recording"
        } else {
            "counting flows"
        };
        self.print(&format!(
            "{does} on {names} ({engine}, {size} ring, pages: {pages})"
        ));
        if let Some(path) = ring.path() {
            let path = path.display();
            self.print(&format!(
                "the ring is {path}: retroscope status --ring-file {path}"
            ));
        }
        match ring.numa() {
            Numa::Unset => {}
            Numa::Preferred { node } => {
                self.print(&format!("the ring's memory comes from NUMA node {node}"));
            }
            Numa::Refused { node, errno } => {
                let error = io::Error::from_raw_os_error(errno);
                self.print(&format!(
                    "the kernel does not take memory from NUMA node {node}: {error}; the ring is on any node"
                ));
            }
        }
    }

    /// Prints an event. `quiet` does not suppress problems: incomplete and failed dumps, failed
    /// commands, notices and refusals.
    pub(crate) fn show(&mut self, event: &RecorderEvent) {
        match event {
            RecorderEvent::Finished(report) => {
                self.hear(report.number, report.verdict);
            }
            RecorderEvent::Missed(_) => self.has_missed = true,
            RecorderEvent::Triggered { .. }
            | RecorderEvent::Compressed(_)
            | RecorderEvent::Deleted(_)
            | RecorderEvent::Posted(_)
            | RecorderEvent::Notice(_)
            | RecorderEvent::Alert(_)
            | RecorderEvent::Exported(_)
            | RecorderEvent::Changed(_)
            | RecorderEvent::Refused(_) => {}
        }
        let is_wanted = match event {
            RecorderEvent::Triggered { .. }
            | RecorderEvent::Compressed(_)
            | RecorderEvent::Deleted(_)
            | RecorderEvent::Changed(_) => !self.quiet,
            RecorderEvent::Posted(posted) => posted.outcome != PostOutcome::Done,
            RecorderEvent::Finished(report) => !self.quiet || report.verdict != Verdict::Complete,
            // These events are only for event subscribers and EVE.
            RecorderEvent::Exported(_) | RecorderEvent::Alert(_) => false,
            _ => true,
        };
        if !is_wanted || !self.lines.has_room(event) {
            return;
        }
        match event {
            RecorderEvent::Triggered {
                rule,
                trigger_ns,
                expression,
                reason,
                ..
            } => {
                let what = if expression.is_empty() {
                    "everything"
                } else {
                    expression
                };
                let at = rfc3339(*trigger_ns);
                let why = reason
                    .as_deref()
                    .map(|why| format!(" ({})", printable(why)));
                let why = why.unwrap_or_default();
                self.print(&format!("trigger '{rule}'{why} at {at}: dumping {what}"));
            }
            RecorderEvent::Finished(report) => self.print(&report.line()),
            RecorderEvent::Compressed(report) => self.print(&compressed(report)),
            RecorderEvent::Deleted(dump) => self.print(&deleted(dump)),
            RecorderEvent::Posted(PostResult { id, outcome, .. }) => {
                self.line(&format!("dump {id}: --post {outcome}"));
            }
            RecorderEvent::Notice(text) => self.line(text),
            RecorderEvent::Changed(change) => self.print(&change.to_string()),
            RecorderEvent::Refused(refusal) => self.line(&refusal.to_string()),
            RecorderEvent::Alert(_) | RecorderEvent::Exported(_) | RecorderEvent::Missed(_) => {}
        }
    }

    /// Ends the output after the last event. Prints the incomplete and failed dumps of `summary`
    /// whose events were missed, within [`LINES_MAX`], and the summary of events that were not
    /// shown. Clears the status line.
    pub(crate) fn end(&mut self, summary: &RecorderSummary) {
        for report in &summary.dumps {
            if self.has_missed && self.is_unheard(report.number, report.verdict) {
                self.show(&RecorderEvent::Finished(report.clone()));
            }
        }
        if let Some(text) = self.lines.cut(self.quiet) {
            self.line(&text);
        }
        self.clear();
    }

    /// Remembers a dump whose event arrived, if the dump is incomplete or failed.
    fn hear(&mut self, number: u64, verdict: Verdict) {
        if verdict != Verdict::Complete {
            self.not_complete.insert(number);
        }
        if self.not_complete.len() > NOT_COMPLETE_MAX {
            self.not_complete.pop_first();
        }
    }

    /// Whether a dump is incomplete or failed, and its event was missed.
    fn is_unheard(&self, number: u64, verdict: Verdict) -> bool {
        verdict != Verdict::Complete && !self.not_complete.contains(&number)
    }

    /// Prints a message.
    pub(crate) fn line(&mut self, text: &str) {
        self.clear();
        say(text);
    }

    /// Prints the statistics that SIGUSR2 requests.
    pub(crate) fn statistics(&mut self, status: &RecorderStatus) {
        self.clear();
        for source in &status.sources {
            say(&source_line(source));
        }
        say(&status_text(status, None));
    }

    /// Ends a period of messages whose time is over, and prints how many messages it left out.
    pub(crate) fn end_period(&mut self) {
        let since = self.lines.since;
        if since.is_some_and(|since| since.elapsed() >= LINES_PERIOD)
            && let Some(text) = self.lines.cut(self.quiet)
        {
            self.line(&text);
        }
    }

    /// Draws or prints the status line when the line is due. If a service manager shows the status
    /// (`is_shown`), only a terminal gets status lines, so that these do not fill the log.
    pub(crate) fn tick(&mut self, recorder: &Recorder, is_shown: bool) {
        let period = Duration::from_secs(if self.terminal { 1 } else { 10 });
        if self.quiet || is_shown && !self.terminal {
            return;
        }
        let Some(text) = self.line.due(period, recorder) else {
            return;
        };
        if self.terminal {
            self.draw(&text)
        } else {
            say(&text)
        }
    }

    /// Clears the status line.
    pub(crate) fn clear(&mut self) {
        if self.drawn {
            self.drawn = false;
            write(b"\r\x1b[K");
        }
    }

    fn print(&mut self, text: &str) {
        self.clear();
        write(format!("{text}\n").as_bytes());
    }

    fn draw(&mut self, text: &str) {
        self.drawn = true;
        write(format!("\r\x1b[K{text}").as_bytes());
    }
}

/// Ignores errors: stderr may be closed.
fn write(bytes: &[u8]) {
    let _ = stderr().write_all(bytes);
}

fn sum(status: &RecorderStatus, field: impl Fn(&SourceSnapshot) -> u64) -> u64 {
    status.sources.iter().map(field).sum()
}

/// The counts of one source in a line.
pub(crate) fn source_line(source: &SourceSnapshot) -> String {
    let number = |n: Option<u64>| n.map_or("unknown".to_owned(), |n| n.to_string());
    let lost = source
        .lost
        .iter()
        .map(|(cause, n)| format!("{cause} {}", number(*n)));
    let lost = match lost.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none".to_owned(),
        lost => lost,
    };
    let shed = match shed_by([source].into_iter()) {
        none if none.is_empty() => none,
        shed => format!("; shed by {shed}"),
    };
    let gaps = match source.gaps {
        0 => String::new(),
        times => format!(
            ", the interface was away {} for {:.3} s",
            counted(times, "time"),
            source.gap_ns as f64 / 1e9
        ),
    };
    let late = match source.late {
        0 => String::new(),
        late => format!(", up to {late} too late for finished dumps"),
    };
    format!(
        "{}: received {}, stored {}, filtered {}, cut {}, lost: {lost}{shed}{gaps}{late}",
        source.name,
        number(source.received),
        source.stored,
        source
            .filtered
            .map_or("by the kernel".to_owned(), |n| n.to_string()),
        source.cut
    )
}

/// Packets that were shed, by cause, and how many of these the engine dropped: `cutoff 12, ted 3
/// (10 of them by the engine)`.
pub(crate) fn shed_by<'a>(sources: impl Iterator<Item = &'a SourceSnapshot>) -> String {
    let (mut parts, mut engine) = (BTreeMap::<_, Option<u64>>::new(), Some(0));
    for source in sources {
        for (cause, shed) in &source.shed {
            let sum = parts.entry(cause).or_insert(Some(0));
            *sum = sum.zip(*shed).map(|(sum, shed)| sum + shed);
        }
        engine = engine
            .zip(source.shed_by_engine)
            .map(|(sum, shed)| sum + shed);
    }
    let number = |n: Option<u64>| n.map_or("unknown".to_owned(), |n| n.to_string());
    let shed = parts.iter().filter(|(_, shed)| **shed != Some(0));
    let shed: Vec<_> = shed
        .map(|(cause, shed)| format!("{cause} {}", number(*shed)))
        .collect();
    match engine {
        _ if shed.is_empty() => String::new(),
        Some(0) => shed.join(", "),
        engine => format!(
            "{} ({} of them by the engine)",
            shed.join(", "),
            number(engine)
        ),
    }
}

fn status_text(status: &RecorderStatus, rates: Option<(f64, f64)>) -> String {
    let rates =
        rates.map(|(packets, bits)| format!("{}pps {}bit/s", scaled(packets), scaled(bits)));
    let history = status
        .history
        .map(|history| format!("history {:.1} s", history.as_secs_f64()));
    let limit = status.history_goal.and_then(|(_, limit)| limit);
    let limit = limit.map(|bytes| format!("flows cut at {} KiB", bytes >> 10));
    let lapped = (status.lapped > 0).then(|| format!("not analyzed {}", status.lapped));
    let refused = match status.hits.suppressed.refused() {
        0 => String::new(),
        refused => format!(" ({refused} refused)"),
    };
    let parts = [
        rates,
        Some(counted(sum(status, |s| s.stored), "packet")),
        history,
        limit,
        Some(format!("lost {}", sum(status, |s| s.lost_known()))),
        lapped,
        Some(format!("triggers {}{refused}", status.hits.triggers)),
        Some(format!("dumps open {}", status.dumps_open)),
        (status.copied_bytes > 0)
            .then(|| format!("{}B to be written", scaled(status.copied_bytes as f64))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// Formats a number with a decimal prefix for a unit: `1.23 M`, `456 `.
fn scaled(value: f64) -> String {
    let (scale, unit) = [(1e9, "G"), (1e6, "M"), (1e3, "k")]
        .into_iter()
        .find(|(scale, _)| value >= *scale)
        .unwrap_or((1.0, ""));
    format!("{:.*} {unit}", usize::from(scale > 1.0) * 2, value / scale)
}

/// Message about a compressed dump.
fn compressed(report: &DumpReport) -> String {
    let (from, to) = report.compressed_bytes().unwrap_or_default();
    let (from, to) = (show_size(from), show_size(to));
    format!("compressed dump {}: {from} to {to}", report.id)
}

/// Message about a deleted dump.
fn deleted(dump: &DeletedDump) -> String {
    let why = match dump.why {
        WhyDeleted::Age => "it is too old (--keep)",
        WhyDeleted::Bytes => "dumps have too many bytes (--keep)",
        WhyDeleted::MinFree => "the file system has too little room (min-free)",
        WhyDeleted::Asked => "somebody asked for it",
    };
    format!("deleted dump {}: {}, {why}", dump.id, show_size(dump.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_storm_are_cut_and_counted() {
        let mut lines = LineBudget::default();
        let triggered = RecorderEvent::Triggered {
            number: 1,
            rule: String::new(),
            trigger_ns: 0,
            expression: String::new(),
            reason: None,
        };
        let notice = RecorderEvent::Notice(String::new());
        let mut printed = 0;
        for _ in 0..10_000 {
            printed += u32::from(lines.has_room(&triggered));
        }
        assert!(lines.has_room(&notice), "a sentence has room of its own");
        lines.has_room(&RecorderEvent::Missed(Missed {
            notices: 7,
            unknown: 3,
            ..Missed::default()
        }));
        assert_eq!(printed, LINES_MAX);
        let text = lines.cut(false).unwrap();
        assert_eq!(
            text,
            "not shown one by one: 9950 dumps started, 7 other messages, 3 events missed"
        );
        assert!(lines.has_room(&triggered), "begun anew");
        assert_eq!(lines.cut(true), None);
        // With `quiet`, missed events of unknown kind give no summary.
        lines.has_room(&RecorderEvent::Missed(Missed {
            unknown: 3,
            ..Missed::default()
        }));
        assert_eq!(lines.cut(true), None);
    }

    #[test]
    fn dumps_that_are_not_complete_are_told_once() {
        let mut screen = RecordScreen::default();
        let (complete, failed) = (Verdict::Complete, Verdict::Failed);
        for (number, verdict) in [(1, complete), (2, failed), (2, complete), (3, failed)] {
            screen.hear(number, verdict);
        }
        let unheard = [
            (1, failed),
            (2, failed),
            (3, failed),
            (4, complete),
            (5, failed),
        ]
        .map(|(number, verdict)| screen.is_unheard(number, verdict));
        assert_eq!(unheard, [true, false, false, false, true]);
        (10..20_000).for_each(|number| screen.hear(number, failed));
        assert_eq!(screen.not_complete.len(), NOT_COMPLETE_MAX);
        assert!(!screen.is_unheard(19_999, failed));
    }

    #[test]
    fn rates_are_scaled() {
        assert_eq!(scaled(0.0), "0 ");
        assert_eq!(scaled(999.4), "999 ");
        assert_eq!(scaled(1_234_567.0), "1.23 M");
    }
}
