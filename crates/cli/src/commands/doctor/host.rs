//! Whether this host itself uses an interface, for example by an address. If so, the engines AF_XDP
//! and DPDK do not take the interface away from the kernel without `take-interface`.

use retroscope_capture::{HostUse, UNSEEN};

use super::finding::Finding;

pub(super) const CHECK: &str = "host";

/// The finding about one Ethernet interface.
pub(super) fn finding(interface: &str) -> Finding {
    judge(&HostUse::of(interface))
}

fn judge(found: &HostUse) -> Finding {
    let what = if found.is_used() {
        format!("{found}: --engine af-xdp takes it away with --set take-interface=true only")
    } else {
        format!("this host does not use it: an engine may take it away ({UNSEEN})")
    };
    Finding::ok(CHECK, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_and_what_cannot_be_seen_are_reported() {
        let unused = judge(&HostUse::default());
        assert!(unused.what.contains(UNSEEN), "{}", unused.what);
        let used = finding("no-such-if");
        assert!(used.what.contains("take-interface"), "{}", used.what);
    }
}
