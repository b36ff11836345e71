//! Formats all findings as text.

use std::fmt::Write as _;

use super::finding::{DoctorReport, Finding, Severity};
use crate::units::counted;

/// Formats all findings as text.
pub(super) trait Text {
    /// Columns for people: severity, subject, and finding, with advice below each note and warning.
    /// The end lists the checks without a finding, and counts the warnings.
    fn text(&self, colour: bool) -> String;
}

impl Text for DoctorReport {
    fn text(&self, colour: bool) -> String {
        let label = |finding: &Finding| match &finding.interface {
            Some(interface) => format!("{interface} {}", finding.check),
            None => finding.check.to_owned(),
        };
        let widths = self
            .findings
            .iter()
            .map(|finding| label(finding).chars().count());
        let width = widths.max().unwrap_or(0);
        let mut text = String::new();
        for finding in &self.findings {
            let word = paint(finding.severity, colour);
            // Writing into a `String` cannot fail.
            let (what, advice) = (&finding.what, &finding.advice);
            let _ = writeln!(text, "{word}  {:width$}  {what}", label(finding));
            if finding.severity != Severity::Ok {
                let _ = writeln!(text, "      {:width$}  → {advice}", "");
            }
        }
        if !self.not_checked.is_empty() {
            let checks = self.not_checked.join(", ");
            let _ = writeln!(
                text,
                "-     not checked, because this machine has none or does not report them: {checks}"
            );
        }
        let severities = self.findings.iter().map(|finding| finding.severity);
        let warnings = severities.filter(|one| *one == Severity::Warn).count();
        let _ = match warnings {
            0 => writeln!(text, "nothing found that would lose packets"),
            count => writeln!(
                text,
                "{} would lose packets",
                counted(count as u64, "finding")
            ),
        };
        text
    }
}

/// The severity as a word of four characters, padded with blanks, and in color if `colour` is set.
fn paint(severity: Severity, colour: bool) -> String {
    let (word, code) = match severity {
        Severity::Ok => ("ok", 32),
        Severity::Note => ("note", 33),
        Severity::Warn => ("warn", 31),
    };
    if colour {
        format!("\x1b[{code}m{word:4}\x1b[0m")
    } else {
        format!("{word:4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> DoctorReport {
        DoctorReport::new(
            vec![
                Finding::ok("clock", "is right"),
                Finding::note("offload", "merges", "switch it off").on("eth0"),
                Finding::warn("permission", "none", "run as root"),
            ],
            &["clock", "governor", "offload", "permission", "rss"],
        )
    }

    #[test]
    fn text_is_aligned() {
        assert_eq!(
            report().text(false),
            "ok    clock         is right\n\
             note  eth0 offload  merges\n                    → switch it off\n\
             warn  permission    none\n                    → run as root\n\
             -     not checked, because this machine has none or does not report them: governor, rss\n\
             1 finding would lose packets\n"
        );
        assert!(
            report()
                .text(true)
                .starts_with("\x1b[32mok  \x1b[0m  clock")
        );
    }

    #[test]
    fn json_has_every_field() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["loses_packets"], true);
        assert_eq!(
            json["findings"][1],
            serde_json::json!({
                "severity": "note", "check": "offload", "interface": "eth0", "what": "merges", "do": "switch it off",
            })
        );
        assert_eq!(json["findings"][0]["interface"], serde_json::Value::Null);
        assert_eq!(json["not_checked"], serde_json::json!(["governor", "rss"]));
    }

    #[test]
    fn only_warnings_lose_packets() {
        let mut findings = report().findings;
        assert!(DoctorReport::new(findings.clone(), &[]).loses_packets);
        findings.pop();
        assert!(!DoctorReport::new(findings, &[]).loses_packets);
        assert!(!DoctorReport::new(Vec::new(), &[]).loses_packets);
    }
}
