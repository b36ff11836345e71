//! Whether it is safe to send without asking the user.

use crate::af_packet::sys::InterfaceQuery;

/// Whether frames sent on `interface` probably do not reach the machine's real network. Either
/// `interface` is the loopback interface, or the calling thread is in another network namespace
/// than an ancestor of this process.
///
/// Ancestors whose namespace may not be read do not count. If the answer is `false`, the caller
/// should ask the user.
#[must_use]
pub fn in_network_namespace_or_loopback(interface: &str) -> bool {
    let is_loopback = || {
        InterfaceQuery::new()
            .and_then(|query| query.flags(interface))
            .is_ok_and(|flags| flags.is_loopback())
    };
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let is_elsewhere = || {
        let Some(own) = namespace("thread-self") else {
            return false;
        };
        let mut ancestors = std::iter::successors(parent("self"), |process| parent(process));
        ancestors.any(|process| namespace(&process).is_some_and(|theirs| theirs != own))
    };
    is_loopback() || is_elsewhere()
}

/// The parent of a process according to the kernel; `None` for the first process, or if the parent
/// cannot be read.
fn parent(process: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Some(line.trim().to_owned()).filter(|parent| parent != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_harmless() {
        if InterfaceQuery::new()
            .and_then(|query| query.index("lo"))
            .is_err()
        {
            eprintln!("SKIP: no interface lo");
            return;
        }
        assert!(in_network_namespace_or_loopback("lo"));
    }
}
