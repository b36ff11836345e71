//! Protocol numbers that several modules name (IANA "Protocol Numbers" and "EtherTypes" registries).

pub(crate) const HOP_BY_HOP: u8 = 0;
pub(crate) const ICMP: u8 = 1;
pub(crate) const IGMP: u8 = 2;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const AH: u8 = 51;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const DESTINATION: u8 = 60;
pub(crate) const SCTP: u8 = 132;
pub(crate) const MOBILITY: u8 = 135;
pub(crate) const HIP: u8 = 139;
pub(crate) const SHIM6: u8 = 140;

pub(crate) const ETHER_IPV4: u16 = 0x0800;
pub(crate) const ETHER_ARP: u16 = 0x0806;
pub(crate) const ETHER_IPV6: u16 = 0x86dd;
pub(crate) const ETHER_MPLS: u16 = 0x8847;
pub(crate) const ETHER_MPLS_MULTICAST: u16 = 0x8848;
pub(crate) const ETHER_PPPOE_SESSION: u16 = 0x8864;
