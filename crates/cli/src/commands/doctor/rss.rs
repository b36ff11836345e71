//! Whether the NIC's hash splits conversations over its receive queues.
//!
//! The NIC's hash is irrelevant for `--set fanout=hash`, where the kernel computes the hash. The
//! NIC's hash matters for `fanout=qm`, `fanout=cpu`, AF_XDP and DPDK.

use retroscope_capture::{
    af_packet::rss_settings,
    rss::{FlowKind, RssSettings, Split, TOEPLITZ, symmetric_key},
};

use super::finding::Finding;

pub(super) const CHECK: &str = "rss";

/// Findings about one interface. An interface with a single receive queue has none, because nothing
/// is distributed.
pub(super) fn findings(interface: &str, receive_queues: Option<u64>) -> Vec<Finding> {
    let settings = rss_settings(interface).ok();
    // If sysfs shows another namespace, an indirection table is the sign of several queues.
    let has_table = settings
        .as_ref()
        .is_some_and(|settings| !settings.table.is_empty());
    if receive_queues.map_or(has_table, |queues| queues > 1) {
        judge(interface, settings.as_ref())
    } else {
        Vec::new()
    }
}

/// `settings`: `None` if the driver does not report its settings.
fn judge(name: &str, settings: Option<&RssSettings>) -> Vec<Finding> {
    let Some(settings) = settings else {
        return vec![Finding::note(
            CHECK,
            "cannot tell by which hash packets are spread over the receive queues",
            "record with --set fanout=hash, which does not depend on it",
        )];
    };
    // Kinds of flows that the NIC splits, or may split, for the reason `why`.
    let split = |why| {
        let kinds = FlowKind::ALL
            .into_iter()
            .filter(|kind| settings.splits(*kind) == Some(why));
        kinds.map(FlowKind::as_str).collect::<Vec<_>>()
    };
    let mut findings = Vec::new();
    let by_key = split(Split::Key);
    if !by_key.is_empty() {
        findings.push(Finding::note(
            CHECK,
            format!(
                "the hash splits conversations ({}): their directions reach different receive queues, which \
                 matters to fanout qm, AF_XDP and DPDK",
                by_key.join(", ")
            ),
            format!("sudo ethtool -X {name} hkey {}", key_text(&symmetric_key(settings.key.len()))),
        ));
    }
    let by_fields = split(Split::Fields);
    if let Some(first) = by_fields.first() {
        findings.push(Finding::note(
            CHECK,
            format!(
                "the hash covers one side of a conversation only ({}): its directions reach different receive queues",
                by_fields.join(", ")
            ),
            format!("sudo ethtool -N {name} rx-flow-hash {first} sdfn"),
        ));
    }
    let unknown = split(Split::Unknown).join(", ");
    if !unknown.is_empty() && findings.is_empty() {
        let function = match settings.function {
            TOEPLITZ => String::new(),
            number => format!(", function {number}"),
        };
        findings.push(Finding::note(
            CHECK,
            format!("cannot tell whether the hash splits conversations ({unknown}{function})"),
            format!("look at: ethtool -x {name}"),
        ));
    }
    if findings.is_empty() {
        let what = "both directions of a conversation reach the same receive queue";
        findings.push(Finding::ok(CHECK, what));
    }
    findings
}

/// A hash key in ethtool's notation.
fn key_text(key: &[u8]) -> String {
    let bytes: Vec<_> = key.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

#[cfg(test)]
mod tests {
    use retroscope_capture::rss::{ADDRESSES_AND_PORTS, DESTINATION};

    use super::{super::finding::Severity, *};

    fn settings(key: &[u8], destination: bool) -> RssSettings {
        let fields = match destination {
            true => ADDRESSES_AND_PORTS,
            false => ADDRESSES_AND_PORTS & !DESTINATION,
        };
        RssSettings {
            function: TOEPLITZ,
            key: key.to_vec(),
            symmetric_input: false,
            table: (0..128).map(|entry| entry % 4).collect(),
            fields: FlowKind::ALL.map(|kind| (kind, fields)).to_vec(),
        }
    }

    /// A key that usually sends the directions of a conversation to different queues.
    fn split_key(bytes: u8) -> Vec<u8> {
        (0..bytes).collect()
    }

    fn only(settings: &RssSettings) -> Finding {
        let findings = judge("eth0", Some(settings));
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.into_iter().next().unwrap()
    }

    #[test]
    fn the_line_that_fixes_a_key_has_a_key_of_its_length() {
        let finding = only(&settings(&split_key(40), true));
        assert_eq!(finding.severity, Severity::Note);
        assert!(
            finding.what.contains("(tcp4, udp4, tcp6, udp6)"),
            "{}",
            finding.what
        );
        let key = "6d:5a:".repeat(20);
        let expected = format!("sudo ethtool -X eth0 hkey {}", key.trim_end_matches(':'));
        assert_eq!(finding.advice, expected);
        let long = only(&settings(&split_key(52), true));
        assert_eq!(long.advice.matches("6d:5a").count(), 26);
    }

    #[test]
    fn symmetric_settings_are_fine() {
        assert_eq!(
            only(&settings(&symmetric_key(0), true)).severity,
            Severity::Ok
        );
    }

    #[test]
    fn one_sided_fields_get_the_line_that_adds_the_other() {
        let finding = only(&settings(&symmetric_key(0), false));
        assert_eq!(
            finding.advice,
            "sudo ethtool -N eth0 rx-flow-hash tcp4 sdfn"
        );
    }

    #[test]
    fn what_cannot_be_told_is_a_note() {
        let unknown = only(&settings(&[], true));
        assert!(unknown.what.starts_with("cannot tell whether"));
        let untold = judge("eth0", None).remove(0);
        assert!(untold.advice.contains("fanout=hash"));
        assert!(findings("lo", Some(1)).is_empty());
    }
}
