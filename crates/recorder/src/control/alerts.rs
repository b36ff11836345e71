//! What becomes of alerts: how they are acted on, counters, and news.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use retroscope_alert::{Alert, Identity};
use serde::{Serialize, Serializer};

use crate::control::{durations::Durations, lock};

/// How alerts are acted on.
#[derive(Debug, Clone)]
pub struct AlertConfig {
    /// Alerts of files, in any order: from files each acts at its time. Live they come by [`RecorderHandle::alerts`](crate::Handle::alerts).
    pub alerts: Vec<Arc<Alert>>,
    /// What the lines of those files were.
    pub lines: AlertLines,
    /// Live: there are sources that alerts may come from.
    pub are_expected: bool,
    /// So long after its time an alert acts, at the earliest.
    pub delay: Duration,
    /// Most captured bytes of a dump of an alert that names no IP packet. Half of the bytes are for
    /// packets before the alert.
    pub window_bytes: u64,
    /// Dumps of alerts open at once, beside those of triggers.
    pub max_dumps: usize,
}

impl AlertConfig {
    /// Whether alerts may come.
    pub(crate) fn may_come(&self) -> bool {
        self.are_expected || !self.alerts.is_empty()
    }
}

/// No alerts.
impl Default for AlertConfig {
    fn default() -> Self {
        Self {
            alerts: Vec::new(),
            lines: AlertLines::default(),
            are_expected: false,
            delay: Duration::ZERO,
            window_bytes: 64 << 20,
            max_dumps: 4096,
        }
    }
}

/// What lines of alerts' sources were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AlertLines {
    /// All lines, and pieces of lines.
    pub lines: u64,
    /// Alerts that are understood.
    pub alerts: u64,
    /// Whole lines that are no alerts.
    pub ignored: u64,
    /// Pieces of lines: what they were is lost.
    pub torn: u64,
    /// Alerts that cannot be understood.
    pub wrong: u64,
    /// Lines that came faster than they were understood.
    pub lost: u64,
}

/// The outcome of an alert. The last three are in addition, for an alert whose dump has no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlertOutcome {
    /// It opened a dump.
    Dump,
    /// It belongs to a dump that was open.
    Joined,
    /// It opened none: too many are open.
    MaxDumps,
    /// It opened none: alerts may start no more dumps in this minute.
    DumpsPerMinute,
    /// It opened none: dumps of alerts may write no more bytes in this hour.
    BytesPerHour,
    /// It opened none: its time is far ahead of the clock or after the recording, or too many
    /// alerts wait.
    NotYet,
    /// It names no packet, and no interface that is recorded.
    NoInterface,
    /// Its dump has no packet: the ring does not reach back to its time.
    AgedOut,
    /// The same: it is of a time before the recording, or after it.
    NotRecorded,
    /// The same, though packets of that time were looked at.
    NothingMatched,
}

impl AlertOutcome {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Dump,
        Self::Joined,
        Self::MaxDumps,
        Self::DumpsPerMinute,
        Self::BytesPerHour,
        Self::NotYet,
        Self::NoInterface,
        Self::AgedOut,
        Self::NotRecorded,
        Self::NothingMatched,
    ];

    /// The word that events and `--json` use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dump => "dump",
            Self::Joined => "joined",
            Self::MaxDumps => "max-dumps",
            Self::DumpsPerMinute => "dumps-per-minute",
            Self::BytesPerHour => "bytes-per-hour",
            Self::NotYet => "not-yet",
            Self::NoInterface => "no-interface",
            Self::AgedOut => "aged-out",
            Self::NotRecorded => "not-recorded",
            Self::NothingMatched => "nothing-matched",
        }
    }

    /// Whether no packet of it is in any dump.
    #[must_use]
    pub fn is_unmatched(self) -> bool {
        !matches!(self, Self::Dump | Self::Joined)
    }
}

/// News of an alert: what it said of itself, and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct AlertNews {
    /// What its line says.
    #[serde(flatten, serialize_with = "shared")]
    pub identity: Arc<Identity>,
    /// What became of it.
    pub outcome: AlertOutcome,
    /// The dump's number, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dump: Option<u64>,
    /// Why no packet of it is in a dump, and what is odd about it, as sentences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What stands behind an `Arc`.
pub(crate) fn shared<S: Serializer>(
    identity: &Arc<Identity>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    identity.as_ref().serialize(serializer)
}

/// What became of alerts so far. Of one that opened or joined a dump that ends without a packet, that is counted too.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AlertCounts {
    /// Whether there are sources that they may come from.
    pub are_expected: bool,
    /// What lines were.
    pub lines: AlertLines,
    /// Alerts by [`AlertOutcome::ALL`].
    pub outcomes: [u64; AlertOutcome::ALL.len()],
    /// Those in finished dumps that tell when their flow began, …
    pub with_start: u64,
    /// … and of them those whose dump has the flow's first packet.
    pub found_start: u64,
    /// Alerts about a packet on the wire, in finished dumps with packets, whose frame is in the dump, …
    pub frames_found: u64,
    /// … and those whose frame is not.
    pub frames_missing: u64,
    /// Alerts whose Community ID is not that of their addresses and ports with seed 0.
    pub other_community_id: u64,
    /// Live: how old alerts were when they were acted on, by [`crate::AgeHistogram::BELOW_NS`].
    pub ages: [u64; 11],
    /// Those ages together, ns.
    pub ages_sum_ns: u64,
    /// Of these half were not older, ns, …
    pub p50_ns: Option<u64>,
    /// … and 99 % not.
    pub p99_ns: Option<u64>,
}

impl AlertCounts {
    /// How many of an outcome.
    #[must_use]
    pub fn of(&self, outcome: AlertOutcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// How many were acted on, or refused.
    #[must_use]
    pub fn total(&self) -> u64 {
        let acted = &AlertOutcome::ALL[..AlertOutcome::AgedOut as usize];
        acted.iter().map(|outcome| self.of(*outcome)).sum()
    }

    /// How many of them have no packet in a dump.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        let unmatched = AlertOutcome::ALL.into_iter();
        let unmatched = unmatched.filter(|outcome| outcome.is_unmatched());
        unmatched.map(|outcome| self.of(outcome)).sum()
    }
}

impl Serialize for AlertCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e9);
        let all = AlertOutcome::ALL.into_iter();
        let outcomes: std::collections::BTreeMap<_, _> = all
            .map(|outcome| (outcome.as_str(), self.of(outcome)))
            .collect();
        serde_json::json!({
            "expected": self.are_expected,
            "lines": self.lines,
            "acted": self.total(),
            "outcomes": outcomes,
            "unmatched": self.unmatched(),
            "with_start": self.with_start,
            "found_start": self.found_start,
            "frames_found": self.frames_found,
            "frames_missing": self.frames_missing,
            "other_community_id": self.other_community_id,
            "age_p50_seconds": seconds(self.p50_ns),
            "age_p99_seconds": seconds(self.p99_ns),
        })
        .serialize(serializer)
    }
}

/// A line: `862 alerts: 300 dumps, 2 unmatched (nothing-matched 2); age p99 41 s; 93 % still found their first packet`.
impl fmt::Display for AlertCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let dumps = self.of(AlertOutcome::Dump);
        write!(
            f,
            "{total} alert{} in {dumps} dump{}",
            plural(total),
            plural(dumps)
        )?;
        if self.unmatched() > 0 {
            let all = AlertOutcome::ALL.into_iter();
            let all = all.filter(|outcome| outcome.is_unmatched() && self.of(*outcome) > 0);
            let all = all.map(|outcome| format!("{} {}", outcome.as_str(), self.of(outcome)));
            let all = all.collect::<Vec<_>>().join(", ");
            write!(f, ", {} unmatched ({all})", self.unmatched())?;
        }
        let lines = &self.lines;
        for (count, what) in [
            (lines.torn, "torn"),
            (lines.wrong, "not understood"),
            (lines.lost, "lost"),
        ] {
            if count > 0 {
                write!(f, "; {count} line{} {what}", plural(count))?;
            }
        }
        if self.frames_missing > 0 {
            let asked = self.frames_found + self.frames_missing;
            write!(f, "; {} of {asked} frames found", self.frames_found)?;
        }
        if let Some(p99_ns) = self.p99_ns {
            write!(f, "; age p99 {}", age(p99_ns))?;
        }
        if let Some(part) = (100 * self.found_start).checked_div(self.with_start) {
            write!(f, "; {part} % still found their first packet")?;
        }
        Ok(())
    }
}

/// `41 s`, `1.3 s`, `25 ms`.
fn age(ns: u64) -> String {
    match ns {
        0..1_000_000 => "under 1 ms".to_owned(),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        1_000_000_000..10_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

/// The counters. The analyzer counts outcomes as it acts and ages, the dumper what it finds.
#[derive(Debug, Default)]
pub(crate) struct AlertCounters {
    are_expected: AtomicBool,
    lines: Mutex<AlertLines>,
    outcomes: [AtomicU64; AlertOutcome::ALL.len()],
    pub(crate) with_start: AtomicU64,
    pub(crate) found_start: AtomicU64,
    pub(crate) frames_found: AtomicU64,
    pub(crate) frames_missing: AtomicU64,
    pub(crate) other_community_id: AtomicU64,
    pub(crate) ages: Durations,
}

impl AlertCounters {
    /// What the configuration has of them.
    pub(crate) fn begin(&self, config: &AlertConfig) {
        self.are_expected.store(config.may_come(), Relaxed);
        self.add_lines(&config.lines);
    }

    /// So many lines more.
    pub(crate) fn add_lines(&self, more: &AlertLines) {
        let mut lines = lock(&self.lines);
        lines.lines += more.lines;
        lines.alerts += more.alerts;
        lines.ignored += more.ignored;
        lines.torn += more.torn;
        lines.wrong += more.wrong;
        lines.lost += more.lost;
    }

    pub(crate) fn add(&self, outcome: AlertOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Relaxed: numbers that stand for themselves.
    pub(crate) fn counts(&self) -> AlertCounts {
        let load = |count: &AtomicU64| count.load(Relaxed);
        let (ages, ages_sum_ns) = self.ages.histogram_of(&crate::AgeHistogram::BELOW_NS);
        AlertCounts {
            are_expected: self.are_expected.load(Relaxed),
            lines: *lock(&self.lines),
            outcomes: std::array::from_fn(|at| load(&self.outcomes[at])),
            with_start: load(&self.with_start),
            found_start: load(&self.found_start),
            frames_found: load(&self.frames_found),
            frames_missing: load(&self.frames_missing),
            other_community_id: load(&self.other_community_id),
            ages,
            ages_sum_ns,
            p50_ns: self.ages.quantile(0.5),
            p99_ns: self.ages.quantile(0.99),
        }
    }
}
