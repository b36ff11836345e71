//! The outcomes of hits.

use std::fmt;

use retroscope_filter::FillError;
use serde::{Serialize, Serializer};

/// Why a hit started no dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The hit is in the window of an open dump of its rule, expression and window length.
    Open,
    /// The rule and the expression started a dump, and the hold-off time after the end of that
    /// dump's window is not over.
    HoldOff,
    /// The rule may start no more dumps in this minute.
    DumpsPerMinute,
    /// The dumps of the rule may write no more bytes in this hour.
    BytesPerHour,
    /// The rule, alerts or triggers by hand may have no more dumps open at once.
    MaxDumps,
    /// The packet does not have a variable that the dump template needs. Or the dump script failed,
    /// or a script or module returned an expression that cannot be compiled.
    Unfilled,
    /// The one dump of `--single`, or of a rule with `single`, started before the hit could act.
    Single,
    /// Live: the hit arrived while the queue to the director was full, and was only counted.
    QueueFull,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::Open,
        Self::HoldOff,
        Self::DumpsPerMinute,
        Self::BytesPerHour,
        Self::MaxDumps,
        Self::Unfilled,
        Self::Single,
        Self::QueueFull,
    ];

    /// The word that files and `--json` use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::HoldOff => "hold-off",
            Self::DumpsPerMinute => "dumps-per-minute",
            Self::BytesPerHour => "bytes-per-hour",
            Self::MaxDumps => "max-dumps",
            Self::Unfilled => "unfilled",
            Self::Single => "single",
            Self::QueueFull => "queue-full",
        }
    }

    /// The limit that refused the hit, in words; `None`: the reason is no limit.
    fn limit(self) -> Option<&'static str> {
        match self {
            Self::DumpsPerMinute => Some("too many dumps in a minute"),
            Self::BytesPerHour => Some("too many bytes in an hour"),
            Self::MaxDumps => Some("too many dumps are open"),
            Self::Open | Self::HoldOff | Self::Unfilled | Self::Single | Self::QueueFull => None,
        }
    }
}

/// Hits that started no dump, by reason. Serialized as a map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suppressions([u64; Reason::ALL.len()]);

impl Suppressions {
    pub(crate) fn add(&mut self, reason: Reason, hits: u64) {
        self.0[reason as usize] += hits;
    }

    /// Number of hits with this reason.
    #[must_use]
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// Number of all hits.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Number of hits that a limit refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let limits = Reason::ALL
            .into_iter()
            .filter(|reason| reason.limit().is_some());
        limits.map(|reason| self.of(reason)).sum()
    }

    /// The reasons that occurred, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64)> {
        let all = Reason::ALL.into_iter().zip(self.0);
        all.filter(|(_, count)| *count > 0)
    }
}

impl fmt::Display for Suppressions {
    /// `open 10, max-dumps 2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.iter();
        let texts = each.map(|(reason, count)| format!("{} {count}", reason.as_str()));
        f.write_str(&texts.collect::<Vec<_>>().join(", "))
    }
}

impl Serialize for Suppressions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = Reason::ALL.into_iter();
        serializer.collect_map(all.map(|reason| (reason.as_str(), self.of(reason))))
    }
}

/// Numbers of hits by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HitCounts {
    /// Hits that started a dump.
    pub triggers: u64,
    /// Hits that started no dump.
    pub suppressed: Suppressions,
}

/// The hits that started no dump, as a dump reports these hits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Suppressed {
    /// Further hits of the rule, expression and window length in the window of the open dump.
    pub(crate) count: u64,
    /// The ring times, ns, of the hits in `count` that the director processed first, at most
    /// [`SUPPRESSED_LISTED`].
    pub(crate) times_ns: Vec<i64>,
    /// Other hits of the rule that started no dump, since the rule's previous dump.
    pub(crate) before: Suppressions,
}

impl Suppressed {
    pub(crate) fn add(&mut self, time_ns: i64) {
        self.count += 1;
        if self.times_ns.len() < SUPPRESSED_LISTED {
            self.times_ns.push(time_ns);
        }
    }
}

/// Maximum number of hits whose times a sidecar lists.
const SUPPRESSED_LISTED: usize = 1000;

/// Why a hit that belongs to no open dump started no dump.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HitRefusal {
    /// A limit refused the hit.
    #[error("refused, {} ({})", .0.limit().unwrap_or_default(), .0.as_str())]
    Limit(Reason),
    /// As [`Reason::HoldOff`].
    #[error("it started no dump: the rule holds the expression off (hold-off)")]
    HeldOff,
    /// The one dump of `--single` was started.
    #[error("it started no dump: the first one disarmed all rules (--single)")]
    Disarmed,
    /// The one dump of the rule was started.
    #[error("it started no dump: the first one disabled the rule (single)")]
    Fired,
    /// The trigger packet cannot supply a variable.
    #[error("no dump: {0}")]
    Variable(#[from] FillError),
    /// The dump script failed, or the expression that a script or module returned has an error.
    #[error("no dump: {0}")]
    Script(String),
}

impl HitRefusal {
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Limit(reason) => *reason,
            Self::HeldOff => Reason::HoldOff,
            Self::Disarmed | Self::Fired => Reason::Single,
            Self::Variable(_) | Self::Script(_) => Reason::Unfilled,
        }
    }
}
