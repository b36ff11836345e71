//! Whether this host uses an interface itself, which decides whether an engine may take it away.

use retroscope_capture::HostUse;

use super::finding::Finding;

pub(super) const CHECK: &str = "host";

/// About one Ethernet interface.
pub(super) fn finding(interface: &str) -> Finding {
    let found = HostUse::of(interface);
    let used = found.is_used().then(|| found.to_string());
    judge(used.as_deref(), found.unseen.as_deref())
}

/// `used`: what it is used for, in words. `unseen`: why there may be more that was not found.
fn judge(used: Option<&str>, unseen: Option<&str>) -> Finding {
    match (used, unseen) {
        (Some(used), _) => Finding::ok(
            CHECK,
            format!("{used}: --engine af-xdp takes it away with --take-interface only"),
        ),
        (None, Some(why)) => Finding::note(
            CHECK,
            format!(
                "whether a macvlan or VLAN in another network namespace stands on it cannot be seen: {why}"
            ),
            "run as root: sudo retroscope doctor",
        ),
        (None, None) => Finding::ok(
            CHECK,
            "this host does not use it: an engine may take it away",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    #[test]
    fn what_cannot_be_seen_is_told_where_it_matters() {
        let told = |used: Option<&str>, unseen: Option<&str>| {
            let finding = judge(used, unseen);
            (finding.severity, finding.what)
        };
        let (severity, what) = told(None, Some("permission denied"));
        assert_eq!(severity, Severity::Note);
        assert!(what.ends_with(": permission denied"), "{what}");
        for unseen in [None, Some("permission denied")] {
            let (severity, what) = told(Some("has an address"), unseen);
            assert_eq!(severity, Severity::Ok);
            assert!(what.starts_with("has an address: "), "{what}");
        }
        assert_eq!(told(None, None).0, Severity::Ok);
    }
}
