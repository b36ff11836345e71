//! The report of a finished dump: verdict, losses and files.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde::{Serialize, Serializer};

use super::store::StoredFile;
pub use super::store::Verdict;
use crate::control::time::{rfc3339, seconds};

/// A time range of a window whose packets are missing in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Missing {
    /// The cause of the loss. The causes of queries are listed at
    /// [`QueryReport::missing`](crate::QueryReport::missing).
    ///
    /// - `evicted`: overwritten in the ring, or dropped to free the ring, before they were written.
    /// - `kernel`, `nic`, `no-free-bucket`, `interface-limit` and other causes of a source: lost at
    ///   intake.
    /// - `shed`: dropped on purpose; `by` has the reasons.
    /// - `interface-down`: the interface was down or removed, or its engine failed. The lost
    ///   packets are unknown.
    /// - `clock-step`: the clock was stepped, and stamps from the other side of the step put
    ///   packets at a wrong place.
    /// - `unknown`: the source may have lost packets. Its counters were not read in time, or the
    ///   kernel's input queues overflowed.
    /// - `fragments`: later fragments that may belong to the flow. Their first fragment is unknown:
    ///   it may be outside of the window or overwritten, or too many fragments waited or were
    ///   forgotten.
    /// - `late`: packets that were found too late: after the window was closed, or after the last
    ///   packet of a dump that reached its limit.
    /// - `disk`: not written because of an error.
    /// - `restamped`: in the file with another time stamp, because its format cannot store theirs.
    /// - `script`: the dump script failed and matches nothing from then on. Or a script or module
    ///   made a filter that cannot match the trigger packet's link type; the notes say so.
    /// - `stopped`: not written because the recording was aborted.
    /// - `unmatched`: the packets of the alert that opened the dump. The dump has no packet.
    pub cause: &'static str,
    /// The source that lost the packets, for losses at intake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Start of the time range, RFC 3339.
    pub from: String,
    /// End of the time range, RFC 3339.
    pub to: String,
    /// Number of missing packets. The number is counted before any dump filter, except for
    /// `fragments`, `late`, `disk`, `restamped` and packets dropped to free the ring. `null`:
    /// unknown.
    pub packets: Option<u64>,
    /// Upper bound on the missing packets, if `packets` is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
    /// For the cause `shed`: packets by `cutoff`, `history-goal`, `ted` and `shunt`. Upper bounds
    /// if `packets` is unknown.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub by: BTreeMap<&'static str, u64>,
}

impl Missing {
    pub(crate) fn new(cause: &'static str, from_ns: i64, to_ns: i64, packets: Option<u64>) -> Self {
        Self {
            cause,
            source: None,
            from: rfc3339(from_ns),
            to: rfc3339(to_ns),
            packets,
            at_most: None,
            by: BTreeMap::new(),
        }
    }

    pub(crate) fn at_most(cause: &'static str, from_ns: i64, to_ns: i64, packets: u64) -> Self {
        Self {
            at_most: Some(packets),
            ..Self::new(cause, from_ns, to_ns, None)
        }
    }
}

/// `up to 3 packets missing (fragments)`, `1 packet missing (kernel, eth0)`, `1 packet
/// (restamped)`.
impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The file has a changed copy of each of these packets.
        let is_changed = matches!(self.cause, "restamped" | "truncated");
        let missing = if is_changed { "" } else { " missing" };
        match (self.packets, self.at_most) {
            (Some(lost), _) => write!(f, "{}{missing}", packets(lost))?,
            (None, Some(bound)) => write!(f, "up to {}{missing}", packets(bound))?,
            (None, None) => f.write_str("unknown losses")?,
        }
        match &self.source {
            Some(source) => write!(f, " ({}, {source})", self.cause),
            None => write!(f, " ({})", self.cause),
        }
    }
}

/// One dump in the output of `--json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DumpReport {
    /// The common part of the files' names, as in [`StoredDump::id`](crate::StoredDump::id).
    pub id: String,
    /// The capture file, usually with `.part` if the dump failed.
    #[serde(serialize_with = "lossy")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub file: PathBuf,
    /// Further capture files, if one file cannot store all packets (`--format pcap` with several
    /// link types).
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "lossy_all")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub more_files: Vec<PathBuf>,
    /// All capture files of the dump: `file`, then `more_files`.
    #[serde(serialize_with = "lossy_all")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub locations: Vec<PathBuf>,
    /// The trigger expression, the name of the script or module, `alert`, or `manual`. If a command
    /// triggered a rule: the name of the rule.
    pub rule: String,
    /// The name of the rule: as given, or its position among the triggers at the start, from 1.
    /// Absent for dumps by hand and of IDS alerts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<String>,
    /// The person who asked for the dump, if the trigger names a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<String>,
    /// The identity under which the control plane accepted the request, independent of `asked_by`:
    /// a token's name, or a user at the unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The reason, in the client's words; for an IDS alert, the alert's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time stamp of the trigger packet, of the alert or of the command, RFC 3339.
    pub trigger_time: String,
    /// Start of the window, RFC 3339.
    pub from: String,
    /// End of the window, RFC 3339.
    pub to: String,
    /// Packets in the file.
    pub packets: u64,
    /// Captured bytes of these packets.
    pub bytes: u64,
    /// Whether packets are missing: see [`Verdict`].
    pub verdict: Verdict,
    /// Reasons for a shorter window without a loss: `start`, `stop` or `end` of the recording, the
    /// end of the `flow`, or a `limit` of the dump.
    pub clipped: Vec<&'static str>,
    /// Missing packets, by cause.
    pub missing: Vec<Missing>,
    /// The error of a failed dump.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Remarks, for example about clock steps, losses that no counter reports, or link types that
    /// libpcap cannot read in one file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Packets in or near the window that the trigger rules did not see, and that may have been
    /// hits. Packets that the dump lacks are in `missing`.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_analyzed: u64,
    /// A clock was stepped within the window. The notes say which clock.
    #[serde(skip)]
    pub(crate) is_stepped: bool,
    /// The stamps of a source jumped back and forth within the window. The notes name the source.
    #[serde(skip)]
    pub(crate) is_disordered: bool,
    /// Stamp minus ring time of the trigger packet, ns. Without a trigger packet, of the alert or
    /// of the system's clock.
    #[serde(skip)]
    pub(crate) offset_ns: i64,
    /// The filled-in dump expression. Empty: every packet.
    #[serde(skip)]
    pub(crate) expression: String,
    #[serde(skip)]
    pub(crate) files: Vec<StoredFile>,
    /// The remarks about losses that no counter reports. With such a remark, `complete` only says
    /// that no loss is known.
    #[serde(skip)]
    pub losses_unknown: Vec<String>,
    /// Position in the order of triggers, from 1.
    #[serde(skip)]
    pub number: u64,
    /// Trigger time, ns of ring time.
    #[serde(skip)]
    pub trigger_ns: i64,
    /// Ring time of the earliest and the latest packet of the dump, ns.
    #[serde(skip)]
    pub span_ns: Option<(i64, i64)>,
    /// The plain captures that were replaced by compressed ones. Empty for a plain dump.
    #[serde(skip)]
    pub(crate) replaced: Vec<StoredFile>,
    /// Whether the sidecar was written.
    #[serde(skip)]
    pub sidecar: bool,
}

impl DumpReport {
    /// Bytes of the captures before and after compression; `None` for a plain dump.
    #[must_use]
    pub fn compressed_bytes(&self) -> Option<(u64, u64)> {
        let bytes = |files: &[StoredFile]| files.iter().map(|file| file.bytes).sum();
        (!self.replaced.is_empty()).then(|| (bytes(&self.replaced), bytes(&self.files)))
    }

    /// Recomputes the verdict from the missing packets. A failed dump stays failed.
    pub(crate) fn judge(&mut self) {
        self.verdict = match (&self.error, self.missing.is_empty()) {
            (Some(_), _) => Verdict::Failed,
            (None, true) => Verdict::Complete,
            (None, false) => Verdict::Incomplete,
        };
    }

    /// One line for a person.
    #[must_use]
    pub fn line(&self) -> String {
        let span = self.span_ns.map_or(String::new(), |(first, last)| {
            let before = self.trigger_ns.saturating_sub(first);
            let after = last.saturating_sub(self.trigger_ns);
            match (before >= 0, after >= 0) {
                (true, true) => format!(
                    ", {} before and {} after the trigger",
                    seconds(before),
                    seconds(after)
                ),
                (true, false) => format!(", {} before the trigger", range(before, -after)),
                (false, _) => format!(", {} after the trigger", range(-before, after)),
            }
        });
        let by = self.clipped.iter().map(|by| match *by {
            "limit" => "its limit".to_owned(),
            "flow" => "the end of its flow".to_owned(),
            by => format!("the {by} of the recording"),
        });
        let by: Vec<String> = by.collect();
        let clipped = match by.as_slice() {
            [] => String::new(),
            by => format!(" (window clipped by {})", by.join(" and ")),
        };
        format!(
            "{}: {}{span}: {}{clipped}",
            self.file.display(),
            packets(self.packets),
            self.reasons()
        )
    }

    /// The verdict with its reasons, as in `incomplete: 12 packets missing (evicted); eth0: losses
    /// unknown: nic`.
    #[must_use]
    pub fn reasons(&self) -> String {
        let mut text = self.verdict.as_str().to_owned();
        let mut separator = ": ";
        if let Some(error) = &self.error {
            text.push_str(separator);
            text.push_str(error);
            separator = ", ";
        }
        for missing in &self.missing {
            text.push_str(&format!("{separator}{missing}"));
            separator = ", ";
        }
        if self.is_stepped {
            text.push_str("; clock stepped");
        }
        if self.is_disordered {
            text.push_str("; stamps in disorder");
        }
        for unknown in &self.losses_unknown {
            text.push_str(&format!("; {unknown}"));
        }
        text
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// JSON is UTF-8; a path may not be.
pub(super) fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

fn lossy_all<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

pub(crate) fn packets(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} packet{plural}")
}

/// A range for a person. If both times look alike, one time.
fn range(from_ns: i64, to_ns: i64) -> String {
    let (from, to) = (seconds(from_ns), seconds(to_ns));
    if from == to {
        from
    } else {
        format!("{from} to {to}")
    }
}

/// The program's name and version.
pub const PROGRAM: &str = concat!("retroscope ", env!("CARGO_PKG_VERSION"));

pub(crate) fn file_name(path: &Path) -> PathBuf {
    path.file_name().map_or_else(PathBuf::new, PathBuf::from)
}

#[cfg(test)]
pub(crate) use tests::report as report_of_test;

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn report() -> DumpReport {
        DumpReport {
            id: "x".to_owned(),
            file: "d/x.pcapng".into(),
            more_files: Vec::new(),
            locations: vec!["d/x.pcapng".into()],
            rule: "udp".into(),
            rule_name: None,
            asked_by: None,
            caller: None,
            reason: None,
            trigger_time: rfc3339(5_000_000_000),
            from: rfc3339(0),
            to: rfc3339(6_000_000_000),
            packets: 3,
            bytes: 180,
            verdict: Verdict::Complete,
            clipped: vec!["start"],
            missing: Vec::new(),
            error: None,
            notes: Vec::new(),
            not_analyzed: 0,
            is_stepped: false,
            is_disordered: false,
            offset_ns: 0,
            expression: String::new(),
            files: Vec::new(),
            losses_unknown: Vec::new(),
            replaced: Vec::new(),
            number: 1,
            trigger_ns: 5_000_000_000,
            span_ns: Some((3_500_000_000, 5_250_000_000)),
            sidecar: true,
        }
    }

    fn numbers(text: &str) -> Vec<f64> {
        text.split([' ', ',', ':'])
            .filter_map(|word| word.parse().ok())
            .collect()
    }

    #[test]
    fn a_line_has_the_file_its_packets_and_its_span() {
        let line = report().line();
        assert!(line.starts_with("d/x.pcapng: "), "{line}");
        assert_eq!(numbers(&line), [3.0, 1.5, 0.25], "{line}");
        assert!(
            line.contains(": complete") && line.contains(" start "),
            "{line}"
        );
        let span = |first_ns, last_ns| {
            let report = DumpReport {
                clipped: Vec::new(),
                span_ns: Some((first_ns, last_ns)),
                ..report()
            };
            let line = report.line();
            let mut numbers = numbers(&line);
            numbers.remove(0);
            (numbers, line.contains(" before "), line.contains(" after "))
        };
        let (early_ns, trigger_ns, late_ns) = (2_247_000_000, 5_000_000_000, 5_250_000_000);
        for (first_ns, last_ns, seconds, is_before, is_after) in [
            (trigger_ns, trigger_ns, &[0.0, 0.0][..], true, true),
            (early_ns, late_ns, &[2.753, 0.25], true, true),
            (early_ns, early_ns, &[2.753], true, false),
            (early_ns, early_ns + 1000, &[2.753], true, false),
            (late_ns, late_ns, &[0.25], false, true),
            (early_ns, early_ns + 1_000_000, &[2.753, 2.752], true, false),
            (late_ns, late_ns + 1_000_000, &[0.25, 0.251], false, true),
        ] {
            let expected = (seconds.to_vec(), is_before, is_after);
            assert_eq!(span(first_ns, last_ns), expected, "{first_ns} to {last_ns}");
        }
    }

    #[test]
    fn changed_packets_are_not_called_missing() {
        let has_word = |cause| {
            Missing::new(cause, 0, 1, Some(2))
                .to_string()
                .contains("missing")
        };
        assert!(["evicted", "fragments", "disk"].into_iter().all(has_word));
        assert!(!["restamped", "truncated"].into_iter().any(has_word));
    }

    #[test]
    fn what_is_missing_decides_the_verdict() {
        let mut report = report();
        report.missing.push(Missing::new("evicted", 0, 1, Some(12)));
        report.judge();
        assert_eq!(report.verdict, Verdict::Incomplete);
        let names = |report: &DumpReport, words: &[&str]| {
            let reasons = report.reasons();
            words.iter().all(|word| reasons.contains(word))
        };
        assert!(names(&report, &["incomplete: ", "12", "evicted"]));
        let mut bounded = report.clone();
        bounded.missing[0] = Missing::at_most("fragments", 0, 1, 3);
        assert!(names(&bounded, &["up to 3", "fragments"]));
        report.error = Some("No space left on device".into());
        report.judge();
        assert!(names(
            &report,
            &["failed: No space left on device", "12", "evicted"]
        ));
        let json = serde_json::to_value(&report).unwrap();
        let missing = serde_json::json!([{"cause": "evicted", "from": rfc3339(0), "to": rfc3339(1), "packets": 12}]);
        assert_eq!(
            (&json["verdict"], &json["missing"]),
            (&"failed".into(), &missing)
        );
    }
}
