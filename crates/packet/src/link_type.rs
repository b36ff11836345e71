//! Link-layer header types.

/// Link-layer header type as capture files number it: a `LINKTYPE_` value of the [tcpdump.org
/// registry](https://www.tcpdump.org/linktypes.html). Libpcap's `DLT_` values differ for a few old
/// types, for example raw IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: 4 bytes of address family in the byte order of the capturing host.
    pub const NULL: Self = Self(0);
    /// IEEE 802.3 Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// PPP, with HDLC-like framing or without.
    pub const PPP: Self = Self(9);
    /// Raw IP: the value of `DLT_RAW` on most systems, seen in files.
    pub const RAW_BSD: Self = Self(12);
    /// Raw IP: the value of `DLT_RAW` on OpenBSD, seen in files.
    pub const RAW_OPENBSD: Self = Self(14);
    /// PPP over serial lines: HDLC-like framing, or Cisco's.
    pub const PPP_SERIAL: Self = Self(50);
    /// PPP over Ethernet, from the PPPoE header on.
    pub const PPP_ETHER: Self = Self(51);
    /// Raw IP: the version nibble distinguishes IPv4 from IPv6.
    pub const RAW: Self = Self(101);
    /// Cisco PPP with HDLC framing.
    pub const C_HDLC: Self = Self(104);
    /// OpenBSD loopback: 4 bytes of address family, network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// PPP after one byte of direction.
    pub const PPP_WITH_DIR: Self = Self(204);
    /// MPLS, from the first label on.
    pub const MPLS: Self = Self(219);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux "cooked" capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
}
