//! Whether this program may capture: capabilities(7).

use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities};

use super::finding::{Finding, Severity};
use crate::commands::program;

pub(super) const CHECK: &str = "permission";

/// Capabilities that an AF_XDP socket needs in addition to CAP_NET_RAW: to load the program, to
/// create its maps, and to lock packet memory beyond the limit on locked memory.
const FOR_XDP: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK"),
];

/// Reads the capabilities of this process and of its executable.
pub(super) fn finding() -> Finding {
    let program = program();
    // CAP_NET_RAW allows packet sockets, which is enough for the engines af-packet and pcap.
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    judge(effective, has_capabilities(&program), &program)
}

/// `file_has_capabilities`: whether the executable has file capabilities.
fn judge(effective: CapabilitySet, file_has_capabilities: bool, program: &Path) -> Finding {
    let program = program.display();
    if effective.contains(CapabilitySet::NET_RAW) {
        let missing = FOR_XDP.iter().filter(|one| !effective.contains(one.0));
        let missing: Vec<&str> = missing.map(|one| one.1).collect();
        if missing.is_empty() {
            return Finding::ok(CHECK, "may capture, with AF_XDP too");
        }
        return Finding::new(
            Severity::Ok,
            CHECK,
            format!(
                "may capture, but not with AF_XDP: that takes {} too",
                missing.join(", ")
            ),
            format!(
                "nothing to do; for AF_XDP: sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock=eip {program}"
            ),
        );
    }
    if file_has_capabilities {
        return Finding::warn(
            CHECK,
            "may not capture: the program's file has capabilities, but they have no effect",
            format!(
                "copy {program} to a file system without nosuid, or run it as: sudo {program} …"
            ),
        );
    }
    Finding::warn(
        CHECK,
        "may not capture: CAP_NET_RAW is missing (capture files can be read all the same)",
        format!("run it as: sudo {program} … or once: sudo setcap cap_net_raw=eip {program}"),
    )
}

/// Whether the file has the attribute that setcap(8) writes.
fn has_capabilities(program: &Path) -> bool {
    let mut value = [0_u8; 64];
    rustix::fs::getxattr(program, "security.capability", &mut value).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(effective: CapabilitySet, file_has_capabilities: bool) -> Finding {
        let program = Path::new("/opt/retroscope");
        judge(effective, file_has_capabilities, program)
    }

    #[test]
    fn only_the_raw_capability_is_needed() {
        let raw = CapabilitySet::NET_RAW;
        let found = finding(raw, true);
        assert_eq!(found.severity, Severity::Ok);
        let missing = "that takes CAP_NET_ADMIN, CAP_BPF, CAP_IPC_LOCK too";
        assert!(found.what.ends_with(missing), "{}", found.what);
        let found = finding(raw | CapabilitySet::NET_ADMIN | CapabilitySet::BPF, true);
        let missing = "that takes CAP_IPC_LOCK too";
        assert!(found.what.ends_with(missing), "{}", found.what);
        let found = finding(CapabilitySet::all(), false);
        assert_eq!(found.advice, "nothing to do");
        let others = CapabilitySet::all() - raw;
        assert_eq!(finding(others, false).severity, Severity::Warn);
    }

    #[test]
    fn advice_names_both_commands() {
        let advice = finding(CapabilitySet::empty(), false).advice;
        assert!(advice.contains("sudo /opt/retroscope …"), "{advice}");
        assert!(
            advice.contains("sudo setcap cap_net_raw=eip /opt/retroscope"),
            "{advice}"
        );
        let advice = finding(CapabilitySet::empty(), true).advice;
        assert!(advice.contains("nosuid"), "{advice}");
    }
}
