//! Roles of tokens.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A role of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// `/metrics`, the OpenAPI document, and logging out.
    Metrics,
    /// `metrics`, and the state of the recorder without payload: for example status, rules, dumps,
    /// pins, events, headers of packets.
    View,
    /// `view`, and packets: queries and the files of dumps.
    Packets,
    /// `view`, and starting dumps, but not reading their files.
    Trigger,
    /// All roles, and changes of the recorder: for example rules, pins, `when-full`, deleting
    /// dumps, stop.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] = [
        Self::Metrics,
        Self::View,
        Self::Packets,
        Self::Trigger,
        Self::Admin,
    ];

    /// Whether this role permits operations that need `other`.
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

    /// The role's name.
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
