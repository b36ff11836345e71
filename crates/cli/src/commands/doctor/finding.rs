//! What the doctor has to say about one thing.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// It is as it should be.
    Ok,
    /// Worth knowing: recording works, perhaps not as well as it could.
    Note,
    /// Packets would be lost, or are being lost, or none can be recorded.
    Warn,
}

/// One finding: one line about what is, one line about what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// How bad it is.
    pub(super) severity: Severity,
    /// What was looked at, one word: `permission`, `offload`, …
    pub(super) check: &'static str,
    /// The interface it is about, if it is about one.
    pub(super) interface: Option<String>,
    /// What is.
    pub(super) what: String,
    /// What to do; `nothing to do` if that is so.
    #[serde(rename = "do")]
    pub(super) advice: String,
}

impl Finding {
    /// A finding that is as it should be.
    pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, check, what, "nothing to do")
    }

    /// Worth knowing.
    pub(super) fn note(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Note, check, what, advice)
    }

    /// Packets would be lost.
    pub(super) fn warn(
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Warn, check, what, advice)
    }

    pub(super) fn new(
        severity: Severity,
        check: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            check,
            interface: None,
            what: what.into(),
            advice: advice.into(),
        }
    }

    /// The same, about an interface.
    pub(super) fn on(self, interface: &str) -> Self {
        Self {
            interface: Some(interface.to_owned()),
            ..self
        }
    }
}
