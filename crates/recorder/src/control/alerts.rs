//! Alerts: their configuration, outcomes, counters, and events.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use retroscope_alert::{Alert, AlertIdentity};
use serde::{Serialize, Serializer};

use crate::control::{durations::Durations, lock};

/// How the recorder acts on alerts.
#[derive(Debug, Clone)]
pub struct AlertConfig {
    /// When recording from files: all alerts, in any order. Live, alerts arrive through
    /// [`RecorderHandle::alerts`](crate::RecorderHandle::alerts).
    pub alerts: Vec<Arc<Alert>>,
    /// Counts of the lines of the files with alerts.
    pub lines: AlertLines,
    /// Live: whether there are sources of alerts.
    pub are_expected: bool,
    /// How long after its time an alert acts, at the earliest, unless the recording ends before.
    pub delay: Duration,
    /// Captured bytes at which the dump of an alert without addresses ends at the latest.
    pub window_bytes: u64,
    /// Maximum number of dumps of alerts open at once, in addition to the dumps of triggers.
    pub max_dumps: usize,
}

impl AlertConfig {
    /// Whether alerts may arrive.
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

/// Counts of lines from sources of alerts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AlertLines {
    /// All lines, and pieces of lines.
    pub lines: u64,
    /// Alerts that are understood.
    pub alerts: u64,
    /// Whole lines that are no alerts.
    pub ignored: u64,
    /// Pieces of lines, whose meaning is lost.
    pub torn: u64,
    /// Alerts that cannot be understood.
    pub wrong: u64,
    /// Lines that arrived faster than they were processed.
    pub lost: u64,
}

/// The outcome of an alert. The last three outcomes follow later, in addition to `Dump` or
/// `Joined`, if the dump of the alert has no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AlertOutcome {
    /// The alert opened a dump.
    Dump,
    /// The alert belongs to a dump that was open.
    Joined,
    /// No dump: too many are open.
    MaxDumps,
    /// No dump: alerts may start no more dumps in this minute.
    DumpsPerMinute,
    /// No dump: dumps of alerts may write no more bytes in this hour.
    BytesPerHour,
    /// No dump: the alert's time is far ahead of the clock or after the recording, or too many
    /// alerts wait.
    NotYet,
    /// No dump: the alert names no IP packet, and names an interface that is not recorded.
    NoInterface,
    /// The alert's dump has no packet: the ring does not reach back to its time.
    AgedOut,
    /// The alert's dump has no packet: its time is before or after the recording.
    NotRecorded,
    /// The alert's dump has no packet, although the recording includes its time and the ring
    /// reaches back to its time.
    NothingMatched,
}

impl AlertOutcome {
    /// All outcomes.
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

    /// The word for `--json` and events.
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

    /// Whether the alert has no dump, or its dump has no packet.
    #[must_use]
    pub fn is_unmatched(self) -> bool {
        !matches!(self, Self::Dump | Self::Joined)
    }
}

/// An event about an alert: its identity and its outcome.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AlertNews {
    /// The identity in the alert's line.
    #[serde(flatten, serialize_with = "shared")]
    #[cfg_attr(feature = "openapi", schema(value_type = AlertIdentity))]
    pub identity: Arc<AlertIdentity>,
    /// The outcome of the alert.
    pub outcome: AlertOutcome,
    /// The dump's number, if the alert has a dump.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dump: Option<u64>,
    /// More about the outcome, as sentences: for example why no dump has a packet of the alert, or
    /// what is odd about the alert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Serializes the identity inside an `Arc`.
pub(crate) fn shared<S: Serializer>(
    identity: &Arc<AlertIdentity>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    identity.as_ref().serialize(serializer)
}

/// Counts of alerts. An alert whose dump ends without a packet is counted twice: when it acts, and
/// when the dump ends. `with_start`, `found_start`, `frames_found` and `frames_missing` count only
/// the first 4,096 alerts of each dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[serde(into = "AlertSummary")]
pub struct AlertCounts {
    /// Whether there are sources of alerts.
    pub are_expected: bool,
    /// Counts of lines.
    pub lines: AlertLines,
    /// Alerts by [`AlertOutcome::ALL`].
    pub outcomes: [u64; AlertOutcome::ALL.len()],
    /// Alerts in finished dumps that state when their flow began.
    pub with_start: u64,
    /// Alerts, among `with_start`, whose dump has a packet that is as old as the start of the flow,
    /// or older.
    pub found_start: u64,
    /// Alerts about a packet on the wire, in finished dumps with packets, whose frame is in the
    /// dump.
    pub frames_found: u64,
    /// Alerts about a packet on the wire, in finished dumps with packets, whose frame is not in the
    /// dump.
    pub frames_missing: u64,
    /// Alerts whose Community ID differs from the one of their addresses and ports with seed 0.
    pub other_community_id: u64,
    /// Live: ages of alerts when they acted, by [`crate::AgeHistogram::BELOW_NS`].
    pub ages: [u64; 11],
    /// Sum of the ages, ns.
    pub ages_sum_ns: u64,
    /// Median age, ns.
    pub p50_ns: Option<u64>,
    /// Age that 99 % of the alerts do not exceed, ns.
    pub p99_ns: Option<u64>,
}

impl AlertCounts {
    /// Number of alerts with this outcome.
    #[must_use]
    pub fn of(&self, outcome: AlertOutcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Number of alerts that acted or were refused.
    #[must_use]
    pub fn total(&self) -> u64 {
        let acted = &AlertOutcome::ALL[..AlertOutcome::AgedOut as usize];
        acted.iter().map(|outcome| self.of(*outcome)).sum()
    }

    /// Number of alerts that have no dump, or whose dump has no packet.
    #[must_use]
    pub fn unmatched(&self) -> u64 {
        let unmatched = AlertOutcome::ALL.into_iter();
        let unmatched = unmatched.filter(|outcome| outcome.is_unmatched());
        unmatched.map(|outcome| self.of(outcome)).sum()
    }
}

/// [`AlertCounts`] in JSON.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AlertSummary {
    /// Whether the recorder has sources of alerts.
    expected: bool,
    lines: AlertLines,
    /// Alerts that acted or were refused.
    acted: u64,
    /// Alerts by outcome.
    outcomes: BTreeMap<&'static str, u64>,
    /// Alerts without a packet in a dump.
    unmatched: u64,
    /// Alerts in finished dumps that state when their flow began.
    with_start: u64,
    /// Alerts, among `with_start`, whose dump has a packet that is as old as the start of the flow,
    /// or older.
    found_start: u64,
    /// Alerts about a packet on the wire, in finished dumps with packets, whose frame is in the
    /// dump.
    frames_found: u64,
    /// Alerts about a packet on the wire, in finished dumps with packets, whose frame is not in the
    /// dump.
    frames_missing: u64,
    /// Alerts whose Community ID differs from the one of their addresses and ports with seed 0.
    other_community_id: u64,
    /// Live: the median age of alerts when they acted, seconds; `null`: no alert acted.
    age_p50_seconds: Option<f64>,
    /// Live: the age that 99 % of the alerts did not exceed, seconds; `null`: no alert acted.
    age_p99_seconds: Option<f64>,
}

impl From<AlertCounts> for AlertSummary {
    fn from(counts: AlertCounts) -> Self {
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e9);
        let all = AlertOutcome::ALL.into_iter();
        Self {
            expected: counts.are_expected,
            lines: counts.lines,
            acted: counts.total(),
            outcomes: all.map(|it| (it.as_str(), counts.of(it))).collect(),
            unmatched: counts.unmatched(),
            with_start: counts.with_start,
            found_start: counts.found_start,
            frames_found: counts.frames_found,
            frames_missing: counts.frames_missing,
            other_community_id: counts.other_community_id,
            age_p50_seconds: seconds(counts.p50_ns),
            age_p99_seconds: seconds(counts.p99_ns),
        }
    }
}

/// One line: `862 alerts in 300 dumps, 2 unmatched (nothing-matched 2); age p99 41 s; 93 % still
/// found their first packet`.
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

/// A duration as text: `41 s`, `1.3 s`, `25 ms`, `under 1 ms`.
fn age(ns: u64) -> String {
    match ns {
        0..1_000_000 => "under 1 ms".to_owned(),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        1_000_000_000..10_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

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
    /// Notes whether alerts may arrive, and the line counts of files.
    pub(crate) fn begin(&self, config: &AlertConfig) {
        self.are_expected.store(config.may_come(), Relaxed);
        self.add_lines(&config.lines);
    }

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

    /// Relaxed loads: no number is ordered with another.
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
