//! The settings of an interface, as ethtool(8) shows them with `-x` and `-n … rx-flow-hash`.

use std::io;

use super::symmetry::{FlowKind, HashFields, RssSettings};
use crate::af_packet::sys::InterfaceQuery;

/// `RXH_` bits of `linux/ethtool.h`.
const IP_SOURCE: u64 = 1 << 4;
const IP_DESTINATION: u64 = 1 << 5;
const PORT_SOURCE: u64 = 1 << 6;
const PORT_DESTINATION: u64 = 1 << 7;

/// Asks for the settings of an interface in the calling thread's network namespace.
///
/// # Errors
/// What the system said: there is no such interface, or (`EOPNOTSUPP`) its driver has no hash to tell of.
pub fn rss_settings(interface: &str) -> io::Result<RssSettings> {
    let query = InterfaceQuery::new()?;
    let mut settings = query.ethtool_rss(interface)?;
    let fields_of = |kind| {
        let bits = query.ethtool_flow_hash(interface, flow_type(kind)).ok()?;
        Some((kind, fields(bits)))
    };
    settings.fields = FlowKind::ALL.into_iter().filter_map(fields_of).collect();
    Ok(settings)
}

/// `TCP_V4_FLOW` and its like.
fn flow_type(kind: FlowKind) -> u32 {
    match kind {
        FlowKind::Tcp4 => 1,
        FlowKind::Udp4 => 2,
        FlowKind::Tcp6 => 5,
        FlowKind::Udp6 => 6,
    }
}

fn fields(bits: u64) -> HashFields {
    let known = IP_SOURCE | IP_DESTINATION | PORT_SOURCE | PORT_DESTINATION;
    HashFields {
        source: bits & IP_SOURCE != 0,
        destination: bits & IP_DESTINATION != 0,
        source_port: bits & PORT_SOURCE != 0,
        destination_port: bits & PORT_DESTINATION != 0,
        others: bits & !known != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_has_no_hash() {
        let error = rss_settings("lo").unwrap_err();
        assert!(
            matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)),
            "{error}"
        );
        let error = rss_settings("no-such-if").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn fields_are_bits() {
        let all = fields(0xf0);
        assert!(all.source && all.destination && all.source_port && all.destination_port);
        assert!(!all.others && fields(1 << 2).others);
        assert!(!fields(0x30).source_port);
    }
}
