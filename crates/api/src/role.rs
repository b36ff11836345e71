//! What a token may be used for.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A role. `metrics` is part of all others; `view` of `packets` and `trigger`; and `admin` has all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// `/metrics`.
    Metrics,
    /// What the recorder does and did, without a byte of a packet: status, rules, dumps, pins, events.
    View,
    /// View, and packets: queries, the files of dumps.
    Packets,
    /// View, and starting dumps; their files it does not get.
    Trigger,
    /// Everything: rules, pins, what happens when the ring is full, deleting dumps, stop.
    Admin,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Metrics,
        Self::View,
        Self::Packets,
        Self::Trigger,
        Self::Admin,
    ];

    /// Whether who has this role may do what takes `other`.
    #[must_use]
    pub fn includes(self, other: Self) -> bool {
        match self {
            Self::Admin => true,
            Self::Packets | Self::Trigger => {
                other == self || matches!(other, Self::View | Self::Metrics)
            }
            Self::View => matches!(other, Self::View | Self::Metrics),
            Self::Metrics => other == Self::Metrics,
        }
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::View => "view",
            Self::Packets => "packets",
            Self::Trigger => "trigger",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found
            .ok_or_else(|| format!("{text:?} is no role: metrics, view, packets, trigger or admin"))
    }
}
