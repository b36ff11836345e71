//! Whether this program may capture: capabilities(7).

use std::path::{Path, PathBuf};

use rustix::thread::{CapabilitySet, capabilities};

use super::finding::Finding;

pub(super) const CHECK: &str = "permission";

/// What was found.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// CAP_NET_RAW is effective: it may open packet sockets.
    pub(super) net_raw: bool,
    /// CAP_NET_ADMIN is effective: it may change interfaces.
    pub(super) net_admin: bool,
    /// The program's file has capabilities of its own.
    pub(super) file_has_capabilities: bool,
    /// The program's file.
    pub(super) program: PathBuf,
}

impl Facts {
    /// Asks the kernel about this process and the file that it runs from.
    pub(super) fn gather() -> Self {
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("retroscope"));
        Self {
            net_raw: effective.contains(CapabilitySet::NET_RAW),
            net_admin: effective.contains(CapabilitySet::NET_ADMIN),
            file_has_capabilities: has_capabilities(&program),
            program,
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let program = self.program.display();
        let finding = match (self.net_raw, self.net_admin) {
            (true, true) => Finding::ok(
                CHECK,
                "may capture: CAP_NET_RAW and CAP_NET_ADMIN are effective",
            ),
            (true, false) => Finding::note(
                CHECK,
                "may capture, but not change interfaces: CAP_NET_ADMIN is missing",
                format!(
                    "if something is refused: sudo setcap cap_net_raw,cap_net_admin=eip {program}"
                ),
            ),
            (false, _) if self.file_has_capabilities => Finding::warn(
                CHECK,
                "may not capture: the program's file has capabilities, but they have no effect",
                format!(
                    "copy {program} to a file system without nosuid, or run it as: sudo {program} …"
                ),
            ),
            (false, _) => Finding::warn(
                CHECK,
                "may not capture: CAP_NET_RAW is missing (capture files can be read all the same)",
                format!(
                    "run it as: sudo {program} … or once: sudo setcap cap_net_raw,cap_net_admin=eip {program}"
                ),
            ),
        };
        vec![finding]
    }
}

/// Whether the file carries the attribute that setcap(8) writes.
fn has_capabilities(program: &Path) -> bool {
    let mut value = [0_u8; 64];
    rustix::fs::getxattr(program, "security.capability", &mut value).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    fn finding(net_raw: bool, net_admin: bool, file_has_capabilities: bool) -> Finding {
        let facts = Facts {
            net_raw,
            net_admin,
            file_has_capabilities,
            program: PathBuf::from("/opt/retroscope"),
        };
        let [finding] = <[_; 1]>::try_from(facts.findings()).unwrap();
        finding
    }

    #[test]
    fn only_the_raw_capability_is_needed() {
        assert_eq!(finding(true, true, false).severity, Severity::Ok);
        assert_eq!(finding(true, false, true).severity, Severity::Note);
        assert_eq!(finding(false, true, false).severity, Severity::Warn);
    }

    #[test]
    fn advice_names_both_commands() {
        let advice = finding(false, false, false).advice;
        assert!(advice.contains("sudo /opt/retroscope …"), "{advice}");
        assert!(
            advice.contains("sudo setcap cap_net_raw,cap_net_admin=eip /opt/retroscope"),
            "{advice}"
        );
        assert!(finding(false, false, true).advice.contains("nosuid"));
    }
}
