//! What `retroscope doctor` finds on a machine, and how it is told: the program looks, and its API answers with it.

use std::{fmt, sync::Arc};

use serde::Serialize;
use utoipa::ToSchema;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It is as it should be.
    Ok,
    /// Worth knowing: recording works, perhaps not as well as it could.
    Note,
    /// Packets would be lost, or are being lost, or none can be recorded.
    Warn,
}

/// One finding: one line about what is, one line about what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, one word: `permission`, `offload`, …
    #[schema(example = "offload")]
    pub check: &'static str,
    /// The interface it is about, if it is about one.
    pub interface: Option<String>,
    /// What is.
    pub what: String,
    /// What to do; `nothing to do` if that is so.
    #[serde(rename = "do")]
    pub advice: String,
}

impl Finding {
    /// A finding that is as it should be.
    #[must_use]
    pub fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, check, what, "nothing to do")
    }

    /// Worth knowing.
    #[must_use]
    pub fn note(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Note, check, what, advice)
    }

    /// Packets would be lost.
    #[must_use]
    pub fn warn(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Warn, check, what, advice)
    }

    /// A finding.
    #[must_use]
    pub fn new(
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
    #[must_use]
    pub fn on(self, interface: &str) -> Self {
        Self {
            interface: Some(interface.to_owned()),
            ..self
        }
    }
}

/// All findings and what they come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Doctor)]
pub struct DoctorReport {
    /// One for each thing that was looked at.
    pub findings: Vec<Finding>,
    /// Checks that found nothing to look at: a virtual interface has no receive ring.
    pub not_checked: Vec<&'static str>,
    /// Whether one of them would lose packets.
    pub loses_packets: bool,
}

impl DoctorReport {
    /// A report of findings, where `checks` are all that there could be.
    #[must_use]
    pub fn new(findings: Vec<Finding>, checks: &[&'static str]) -> Self {
        let warns = |finding: &Finding| finding.severity == Severity::Warn;
        let loses_packets = findings.iter().any(warns);
        let has_no_finding = |check: &&str| findings.iter().all(|finding| finding.check != *check);
        Self {
            not_checked: checks.iter().copied().filter(has_no_finding).collect(),
            findings,
            loses_packets,
        }
    }
}

/// What is found of interfaces with these names, or of all where there is none. The error: there is no such interface, or the system does not tell.
type InspectMachine = dyn Fn(&[String]) -> Result<DoctorReport, String> + Send + Sync;

/// Looks at the machine. Any thread may call it.
#[derive(Clone)]
pub struct Doctor(pub Arc<InspectMachine>);

impl fmt::Debug for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doctor")
    }
}
