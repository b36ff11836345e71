//! Findings of `retroscope doctor` about the machine, which the API serves too.

use std::{fmt, sync::Arc};

use serde::Serialize;
use utoipa::ToSchema;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The setting is good.
    Ok,
    /// Recording works, but may be less good than possible.
    Note,
    /// Packets are or would be lost, or nothing can be recorded.
    Warn,
}

/// A finding: one line for the fact, one line for the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The name of the check, one word, such as `permission` or `offload`.
    #[schema(example = "offload")]
    pub check: &'static str,
    /// The interface of the finding; `null`: the finding is about the machine.
    pub interface: Option<String>,
    /// The fact.
    pub what: String,
    /// The remedy, or `nothing to do`.
    #[serde(rename = "do")]
    pub advice: String,
}

impl Finding {
    /// A finding of severity `ok`.
    #[must_use]
    pub fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, check, what, "nothing to do")
    }

    /// A finding of severity `note`.
    #[must_use]
    pub fn note(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Note, check, what, advice)
    }

    /// A finding of severity `warn`.
    #[must_use]
    pub fn warn(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Warn, check, what, advice)
    }

    /// A finding of any severity, about the machine.
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

    /// The same finding, about an interface.
    #[must_use]
    pub fn on(self, interface: &str) -> Self {
        Self {
            interface: Some(interface.to_owned()),
            ..self
        }
    }
}

/// All findings and their summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Doctor)]
pub struct DoctorReport {
    /// The findings of all checks.
    pub findings: Vec<Finding>,
    /// Checks without a finding. For example, a virtual interface has no receive ring.
    pub not_checked: Vec<&'static str>,
    /// Whether a finding has the severity `warn`.
    pub loses_packets: bool,
}

impl DoctorReport {
    /// A report of these findings. `checks` names all checks.
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

/// Inspects the interfaces with these names; empty: all interfaces. Error: an interface does not
/// exist, or the system does not provide the facts.
type InspectMachine = dyn Fn(&[String]) -> Result<DoctorReport, String> + Send + Sync;

/// Inspects the machine. Any thread may call this function.
#[derive(Clone)]
pub struct Doctor(pub Arc<InspectMachine>);

impl fmt::Debug for Doctor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Doctor")
    }
}
