//! Whether this host itself uses an interface, which an engine is about to take away from it.

mod sys;

use std::{fs, io};

/// What the host uses an interface for: an address or a route, in words; `None`: nothing. In the calling thread's network namespace.
pub(crate) fn host_uses(interface: &str) -> io::Result<Option<&'static str>> {
    if sys::has_address(interface)? {
        return Ok(Some("an address"));
    }
    Ok(has_route(interface).then_some("a route"))
}

/// Whether a route leads through `interface`, but for those that every interface has (link-local and multicast of IPv6).
/// The calling thread's network namespace.
fn has_route(interface: &str) -> bool {
    let read =
        |name| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let version4 = read("route");
    let version6 = read("ipv6_route");
    version4
        .lines()
        .skip(1)
        .any(|line| line.split_whitespace().next() == Some(interface))
        || version6.lines().any(|line| {
            let is_own = line.starts_with("fe80") || line.starts_with("ff");
            !is_own && line.split_whitespace().last() == Some(interface)
        })
}
