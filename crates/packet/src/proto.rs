//! Protocol numbers of IP and Ethernet (IANA "Protocol Numbers" and "EtherTypes" registries).

#![expect(missing_docs, reason = "a name says it")]

pub const HOP_BY_HOP: u8 = 0;
pub const ICMP: u8 = 1;
pub const IGMP: u8 = 2;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const AH: u8 = 51;
pub const ICMPV6: u8 = 58;
pub const DESTINATION: u8 = 60;
pub const SCTP: u8 = 132;
pub const MOBILITY: u8 = 135;
pub const HIP: u8 = 139;
pub const SHIM6: u8 = 140;

pub const ETHER_IPV4: u16 = 0x0800;
pub const ETHER_ARP: u16 = 0x0806;
pub const ETHER_IPV6: u16 = 0x86dd;
pub const ETHER_MPLS: u16 = 0x8847;
pub const ETHER_MPLS_MULTICAST: u16 = 0x8848;
pub const ETHER_PPPOE_SESSION: u16 = 0x8864;
pub const ETHER_RARP: u16 = 0x8035;
