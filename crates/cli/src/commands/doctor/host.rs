//! Whether this host uses an interface itself, which decides whether an engine may take it away.

use retroscope_capture::HostUse;

use super::finding::Finding;

pub(super) const CHECK: &str = "host";

/// What was found about one Ethernet interface.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    interface: String,
    /// What it is used for, in words; `None`: nothing was found.
    used: Option<String>,
    /// Why there may be more that was not found.
    unseen: Option<String>,
}

impl Facts {
    pub(super) fn gather(interface: &str) -> Self {
        let found = HostUse::of(interface);
        Self {
            interface: interface.to_owned(),
            used: found.is_used().then(|| found.to_string()),
            unseen: found.unseen().map(str::to_owned),
        }
    }

    pub(super) fn finding(&self) -> Finding {
        let finding = match (&self.used, &self.unseen) {
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
        };
        finding.on(&self.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    #[test]
    fn what_cannot_be_seen_is_told_where_it_matters() {
        let told = |used: Option<&str>, unseen: Option<&str>| {
            let facts = Facts {
                interface: "eth1".to_owned(),
                used: used.map(str::to_owned),
                unseen: unseen.map(str::to_owned),
            };
            let finding = facts.finding();
            assert_eq!(finding.interface.as_deref(), Some("eth1"));
            (finding.severity, finding.what)
        };
        let (severity, what) = told(None, Some("permission denied"));
        assert_eq!(severity, Severity::Note);
        assert!(
            what.ends_with("cannot be seen: permission denied"),
            "{what}"
        );
        for unseen in [None, Some("permission denied")] {
            let (severity, what) = told(Some("has an address"), unseen);
            assert_eq!(severity, Severity::Ok);
            assert!(what.starts_with("has an address: "), "{what}");
        }
        assert_eq!(told(None, None).0, Severity::Ok);
    }
}
