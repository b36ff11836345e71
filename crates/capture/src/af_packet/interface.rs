//! The interfaces of this network namespace, and which of them AF_PACKET can record.

use std::io;

use retroscope_packet::LinkType;

use super::sys::{Flags, InterfaceQuery};
use crate::{
    netlink::{
        LINK_BYTES, LINK_NAME, NEW_LINK, Netlink, NetlinkMessage, half, link_request, until_nul,
        word,
    },
    rss::{FlowKind, RssSettings},
    time_stamps,
};

/// `IFLA_MTU`.
const LINK_MTU: u16 = 4;

/// An interface in the list of [`interfaces`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceSummary {
    /// The interface's name.
    pub name: String,
    /// The index in this network namespace, from 1.
    pub index: u32,
    /// Switched on by the administrator.
    pub up: bool,
    /// Operational (`IFF_RUNNING`).
    pub running: bool,
    /// Whether this is the loopback interface.
    pub loopback: bool,
    /// Link type of the frames; `None`: the engine `af-packet` cannot record the interface.
    pub link_type: Option<LinkType>,
    /// The driver (`veth`, `virtio_net`, `tun`) if it is known, otherwise the kind of hardware.
    pub kind: String,
    /// Bytes of the largest packet above the link layer; `None`: unknown.
    pub mtu: Option<u32>,
}

/// Changes that an interface or the kernel makes to frames before the capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// Generic receive offload: the kernel may join received segments. `None`: unknown.
    pub generic_receive: Option<bool>,
    /// Large receive offload by the NIC. `None`: unknown.
    pub large_receive: Option<bool>,
    /// The NIC removes VLAN tags, which AF_PACKET reports as metadata. `None`: unknown.
    pub vlan_extraction: Option<bool>,
}

/// The interfaces of the calling thread's network namespace, sorted by index.
///
/// # Errors
/// The system's error, or the kernel's list is damaged or never complete.
pub fn interfaces() -> io::Result<Vec<InterfaceSummary>> {
    let query = InterfaceQuery::new()?;
    let read = |message: NetlinkMessage<'_>| summary(message).map(Some);
    let mut interfaces = Netlink::new()?.list(&link_request(0), read)?;
    // After the list is complete: a driver may answer slowly, and a list that changes while it is
    // read must be read again.
    interfaces.retain(|interface| query.name(interface.index).is_ok());
    for interface in interfaces
        .iter_mut()
        .filter(|interface| !interface.loopback)
    {
        if let Ok(driver) = query.driver(&interface.name)
            && !driver.is_empty()
        {
            interface.kind = driver;
        }
    }
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

/// Parses an interface of the kernel's list. `None`: the message is damaged or of another type.
fn summary(message: NetlinkMessage<'_>) -> Option<InterfaceSummary> {
    let (fixed, attributes) = message.parts(NEW_LINK, LINK_BYTES)?;
    let name = until_nul(attributes.get(&LINK_NAME)?).into_owned();
    // `struct ifinfomsg`: family, type, index, flags.
    let hardware_type = half(fixed, 2)?;
    let flags = Flags(word(fixed, 8)?.cast_signed());
    let kind = match flags.is_loopback() {
        true => "loopback".to_owned(),
        false => hardware_text(hardware_type),
    };
    Some(InterfaceSummary {
        index: word(fixed, 4)?,
        up: flags.is_up(),
        running: flags.is_running(),
        loopback: flags.is_loopback(),
        link_type: link_type(hardware_type),
        kind,
        mtu: attributes.get(&LINK_MTU).and_then(|mtu| word(mtu, 0)),
        name,
    })
}

/// Queries an interface's offloads.
///
/// # Errors
/// The system's error, for example if the interface does not exist.
pub fn offloads(interface: &str) -> io::Result<Offloads> {
    let query = InterfaceQuery::new()?;
    query.index(interface)?;
    let flags = query.ethtool_flags(interface).ok();
    let flag = |bit: u32| flags.map(|flags| flags & (1 << bit) != 0);
    Ok(Offloads {
        generic_receive: query.ethtool_gro(interface).ok(),
        // ETH_FLAG_LRO and ETH_FLAG_RXVLAN.
        large_receive: flag(15),
        vlan_extraction: flag(8),
    })
}

/// How a NIC buffers and stamps received packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reception {
    /// Entries of the receive ring, now and at most. `None`: unknown.
    pub ring: Option<(u32, u32)>,
    /// The NIC may ask the link partner to pause. `None`: unknown.
    pub sends_pauses: Option<bool>,
    /// The NIC stamps all received packets now. `None`: the driver does not report that the NIC
    /// can.
    pub stamps_all: Option<bool>,
}

/// Queries an interface's receive ring, flow control and time stamps (ethtool(8), `-g`, `-a` and
/// `-T`).
///
/// # Errors
/// The system's error, for example if the interface does not exist.
pub fn reception(interface: &str) -> io::Result<Reception> {
    let query = InterfaceQuery::new()?;
    query.index(interface)?;
    Ok(Reception {
        ring: query.ethtool_receive_ring(interface).ok(),
        sends_pauses: query.ethtool_sends_pauses(interface).ok(),
        stamps_all: time_stamps::stamps_all_now(&query, interface),
    })
}

/// The link type of a supported hardware type.
///
/// tun and WireGuard interfaces (`ARPHRD_NONE`) and some cellular modems (`ARPHRD_RAWIP`) deliver
/// bare IP packets. `ARPHRD_PPP` is refused: some drivers deliver PPP headers and some do not.
pub(super) fn link_type(hardware_type: u16) -> Option<LinkType> {
    const ARPHRD_RAWIP: u16 = 519;
    match hardware_type {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Some(LinkType::ETHERNET),
        libc::ARPHRD_NONE | ARPHRD_RAWIP => Some(LinkType::RAW),
        _ => None,
    }
}

/// A hardware type in words, for messages.
pub(super) fn hardware_text(hardware_type: u16) -> String {
    let text = match hardware_type {
        libc::ARPHRD_ETHER => "Ethernet",
        libc::ARPHRD_PPP => "PPP",
        libc::ARPHRD_TUNNEL | libc::ARPHRD_TUNNEL6 => "IP tunnel",
        libc::ARPHRD_SIT => "SIT tunnel",
        libc::ARPHRD_IPGRE => "GRE tunnel",
        libc::ARPHRD_INFINIBAND => "InfiniBand",
        libc::ARPHRD_IEEE80211 | libc::ARPHRD_IEEE80211_PRISM | libc::ARPHRD_IEEE80211_RADIOTAP => {
            "802.11"
        }
        libc::ARPHRD_CAN => "CAN",
        libc::ARPHRD_NONE => "raw IP",
        824 => "netlink monitor",
        _ => return format!("hardware type {hardware_type}"),
    };
    text.to_owned()
}

/// Queries how the NIC of an interface spreads packets over its receive queues.
///
/// # Errors
/// The system's error (`EOPNOTSUPP`: the driver reports no hash), or the indirection table is too
/// large.
pub fn rss_settings(interface: &str) -> io::Result<RssSettings> {
    let query = InterfaceQuery::new()?;
    let mut settings = query.ethtool_rss(interface)?;
    let fields_of = |kind| {
        let fields = query.ethtool_flow_hash(interface, kind as u32).ok()?;
        Some((kind, fields))
    };
    settings.fields = FlowKind::ALL.into_iter().filter_map(fields_of).collect();
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed() {
        let Some(loopback) = interfaces()
            .unwrap()
            .into_iter()
            .find(|interface| interface.loopback)
        else {
            eprintln!("SKIP: this network namespace has no loopback interface");
            return;
        };
        assert_eq!(loopback.link_type, Some(LinkType::ETHERNET));
        assert_eq!(loopback.kind, "loopback");
        assert!(loopback.mtu.unwrap() >= 1280);
        let offloads = offloads(&loopback.name).unwrap();
        assert_eq!(
            offloads.large_receive.map(|_| ()),
            offloads.vlan_extraction.map(|_| ())
        );
    }

    #[test]
    fn no_such_interface() {
        for name in [
            "",
            "no-such-if",
            "a name longer than fifteen bytes",
            "nul\0",
        ] {
            assert_eq!(
                offloads(name).unwrap_err().raw_os_error(),
                Some(libc::ENODEV),
                "{name}"
            );
            assert!(reception(name).is_err(), "{name}");
        }
    }

    #[test]
    fn only_known_headers_are_recorded() {
        assert_eq!(link_type(libc::ARPHRD_NONE), Some(LinkType::RAW));
        for refused in [
            libc::ARPHRD_PPP,
            libc::ARPHRD_SIT,
            libc::ARPHRD_CAN,
            libc::ARPHRD_IEEE80211_RADIOTAP,
        ] {
            assert_eq!(link_type(refused), None);
        }
    }
}
