//! A one-line description of a frame for human readers.
//!
//! The format is close to tcpdump's output without name resolution. A line shows facts of headers
//! and ARP messages, but no application data.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};

use crate::parsed::Mac;
use crate::proto::{ETHER_ARP, ICMP, ICMPV6, IGMP, SCTP, TCP, UDP};
use crate::{Icmp, Ip, LinkProtocol, LinkType, ParseOutcome, Parsed, Ports, parse};

/// Describes a frame. `data` are its captured bytes, `wire_len` is its length on the wire in bytes.
///
/// ```
/// use retroscope_packet::{LinkType, summary};
///
/// let udp = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
///     0x04, 0xd2, 0, 53, 0, 8, 0, 0, // UDP
/// ];
/// let line = summary(LinkType::RAW, &udp, 28).to_string();
/// assert_eq!(line, "IP 10.0.0.1.1234 > 10.0.0.2.53: UDP len 28");
/// ```
#[must_use]
pub fn summary(link_type: LinkType, data: &[u8], wire_len: u32) -> PacketSummary<'_> {
    PacketSummary {
        parsed: parse(link_type, data),
        data,
        wire_len,
    }
}

/// The line that [`summary`] makes. Printing it does not allocate.
#[derive(Debug, Clone, Copy)]
pub struct PacketSummary<'d> {
    parsed: Parsed,
    data: &'d [u8],
    wire_len: u32,
}

impl fmt::Display for PacketSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parsed = &self.parsed;
        for tag in parsed.vlan.tags() {
            write!(f, "vlan {}, ", tag.id())?;
        }
        if parsed.vlan.has_more() {
            f.write_str("…, ")?;
        }
        match parsed.network {
            Some(ip) => network(f, parsed, ip)?,
            None => self.link(f)?,
        }
        write!(f, " len {}", self.wire_len)?;
        if self.data.len() < usize::try_from(self.wire_len).unwrap_or(usize::MAX) {
            write!(f, " captured {}", self.data.len())?;
        }
        match parsed.outcome {
            ParseOutcome::Truncated => f.write_str(" [headers truncated]"),
            ParseOutcome::Malformed => f.write_str(" [malformed]"),
            ParseOutcome::Complete | ParseOutcome::UnknownLinkType => Ok(()),
        }
    }
}

impl PacketSummary<'_> {
    /// Prints a frame without a known IP header.
    fn link(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parsed = &self.parsed;
        if let Some(arp) = self.arp() {
            return arp_message(f, arp);
        }
        match (parsed.src_mac, parsed.dst_mac) {
            (Some(src), Some(dst)) => write!(f, "{} > {}", Mac(src), Mac(dst))?,
            (Some(src), None) => write!(f, "{} > ?", Mac(src))?,
            (None, Some(dst)) => write!(f, "? > {}", Mac(dst))?,
            (None, None) => write!(f, "link type {}", parsed.link_type.0)?,
        }
        match parsed.link_protocol {
            Some(LinkProtocol::EtherType(number)) => write!(f, ": ethertype 0x{number:04x}"),
            Some(LinkProtocol::Ppp(number)) => write!(f, ": PPP 0x{number:04x}"),
            Some(LinkProtocol::Family(number)) => write!(f, ": address family {number}"),
            Some(LinkProtocol::Device { hardware, protocol }) => {
                write!(f, ": device type {hardware} protocol 0x{protocol:04x}")
            }
            Some(LinkProtocol::Llc) => match parsed.llc {
                Some(llc) => match llc.snap {
                    Some(snap) => write!(
                        f,
                        ": SNAP 0x{:06x} 0x{:04x}",
                        snap.organization, snap.protocol
                    ),
                    None => write!(f, ": LLC dsap 0x{:02x} ssap 0x{:02x}", llc.dsap, llc.ssap),
                },
                None => f.write_str(": LLC"),
            },
            None => Ok(()),
        }
    }

    /// The frame's ARP message, if it is for IPv4 over 48-bit hardware addresses and was captured
    /// whole.
    fn arp(&self) -> Option<&[u8; 28]> {
        if self.parsed.ether_type != Some(ETHER_ARP) {
            return None;
        }
        let message = self.data.get(self.parsed.payload_offset?..)?;
        let message = message.first_chunk()?;
        (message[2..6] == [8, 0, 6, 4]).then_some(message)
    }
}

/// Prints a frame with an IP header.
fn network(f: &mut fmt::Formatter<'_>, parsed: &Parsed, ip: Ip) -> fmt::Result {
    f.write_str(if ip.src.is_ipv4() { "IP " } else { "IP6 " })?;
    match parsed.transport {
        Some(Ports { src, dst }) => write!(f, "{}.{src} > {}.{dst}:", ip.src, ip.dst)?,
        None => write!(f, "{} > {}:", ip.src, ip.dst)?,
    }
    match ip.proto.or(ip.fragment.map(|fragment| fragment.proto)) {
        Some(proto) => protocol(f, proto)?,
        None => f.write_str(" protocol unknown")?,
    }
    if let Some(flags) = parsed.tcp_flags {
        f.write_str(" [")?;
        tcp_flags(f, flags)?;
        f.write_char(']')?;
    }
    if let Some(icmp) = parsed.icmp {
        icmp_message(f, icmp, ip.src)?;
    }
    if let Some(fragment) = ip.fragment {
        write!(f, " fragment id {} offset {}", fragment.id, fragment.offset)?;
        if fragment.more {
            f.write_str(" more")?;
        }
    }
    Ok(())
}

/// Prints an IP protocol's name, or its number if this function has no name for the protocol.
fn protocol(f: &mut fmt::Formatter<'_>, proto: u8) -> fmt::Result {
    let name = match proto {
        ICMP => "ICMP",
        IGMP => "IGMP",
        4 => "IPIP",
        TCP => "TCP",
        UDP => "UDP",
        41 => "IP6-in-IP",
        47 => "GRE",
        50 => "ESP",
        51 => "AH",
        ICMPV6 => "ICMP6",
        89 => "OSPF",
        103 => "PIM",
        112 => "VRRP",
        SCTP => "SCTP",
        other => return write!(f, " protocol {other}"),
    };
    write!(f, " {name}")
}

/// Prints a common ICMP message by name, other messages by number.
fn icmp_message(f: &mut fmt::Formatter<'_>, icmp: Icmp, addr: IpAddr) -> fmt::Result {
    let name = match (addr, icmp.kind) {
        (IpAddr::V4(_), 0) | (IpAddr::V6(_), 129) => "echo reply",
        (IpAddr::V4(_), 8) | (IpAddr::V6(_), 128) => "echo request",
        (IpAddr::V4(_), 3) | (IpAddr::V6(_), 1) => "unreachable",
        (IpAddr::V4(_), 11) | (IpAddr::V6(_), 3) => "time exceeded",
        (IpAddr::V4(_), 5) | (IpAddr::V6(_), 137) => "redirect",
        (IpAddr::V6(_), 2) => "packet too big",
        (IpAddr::V6(_), 133) => "router solicitation",
        (IpAddr::V6(_), 134) => "router advertisement",
        (IpAddr::V6(_), 135) => "neighbor solicitation",
        (IpAddr::V6(_), 136) => "neighbor advertisement",
        _ => return write!(f, " type {} code {}", icmp.kind, icmp.code),
    };
    write!(f, " {name}")?;
    if icmp.code == 0 {
        Ok(())
    } else {
        write!(f, " code {}", icmp.code)
    }
}

/// Prints TCP flags with tcpdump's letters: `S`, `S.`, `P.`, `none`.
fn tcp_flags(f: &mut fmt::Formatter<'_>, flags: u8) -> fmt::Result {
    const LETTERS: [(u8, char); 8] = [
        (1, 'F'),
        (2, 'S'),
        (4, 'R'),
        (8, 'P'),
        (32, 'U'),
        (64, 'E'),
        (128, 'W'),
        (16, '.'),
    ];
    if flags == 0 {
        return f.write_str("none");
    }
    let mut set = LETTERS.iter().filter(|(bit, _)| flags & bit != 0);
    set.try_for_each(|(_, letter)| f.write_char(*letter))
}

/// Prints an ARP message for IPv4 over 48-bit hardware addresses (RFC 826).
fn arp_message(f: &mut fmt::Formatter<'_>, message: &[u8; 28]) -> fmt::Result {
    let [
        ..,
        o1,
        o2,
        a,
        b,
        c,
        d,
        e,
        g,
        s1,
        s2,
        s3,
        s4,
        _,
        _,
        _,
        _,
        _,
        _,
        t1,
        t2,
        t3,
        t4,
    ] = *message;
    let sender = Ipv4Addr::new(s1, s2, s3, s4);
    let target = Ipv4Addr::new(t1, t2, t3, t4);
    match u16::from_be_bytes([o1, o2]) {
        1 => write!(f, "ARP who-has {target} tell {sender}"),
        2 => write!(f, "ARP {sender} is-at {}", Mac([a, b, c, d, e, g])),
        other => write!(f, "ARP operation {other} {sender} > {target}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with an Ethernet header from 02:…:01 to 02:…:02.
    fn ethernet(types: &[u8], payload: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], types, payload].concat()
    }

    fn line(data: &[u8]) -> String {
        summary(LinkType::ETHERNET, data, u32::try_from(data.len()).unwrap()).to_string()
    }

    fn v4(proto: u8, bits: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 0, 0, 7, 0, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet[6..8].copy_from_slice(&bits.to_be_bytes());
        packet.extend_from_slice(payload);
        packet
    }

    #[test]
    fn tcp_over_vlan() {
        let tcp = [
            0x04, 0xd2, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0,
        ];
        let packet = v4(6, 0, &tcp);
        assert_eq!(
            line(&ethernet(&[8, 0], &packet)),
            "IP 10.0.0.1.1234 > 10.0.0.2.80: TCP [S.] len 54"
        );
        assert_eq!(
            line(&ethernet(
                &[0x88, 0xa8, 0x20, 10, 0x81, 0, 0, 20, 8, 0],
                &packet
            )),
            "vlan 10, vlan 20, IP 10.0.0.1.1234 > 10.0.0.2.80: TCP [S.] len 62"
        );
    }

    #[test]
    fn fragments() {
        let udp = [0, 53, 0, 99, 0, 8, 0, 0];
        assert_eq!(
            line(&ethernet(&[8, 0], &v4(17, 0x2000, &udp))),
            "IP 10.0.0.1.53 > 10.0.0.2.99: UDP fragment id 7 offset 0 more len 42"
        );
        assert_eq!(
            line(&ethernet(&[8, 0], &v4(17, 185, &udp))),
            "IP 10.0.0.1 > 10.0.0.2: UDP fragment id 7 offset 1480 len 42"
        );
    }

    #[test]
    fn icmp() {
        assert_eq!(
            line(&ethernet(&[8, 0], &v4(1, 0, &[8, 0, 0, 0]))),
            "IP 10.0.0.1 > 10.0.0.2: ICMP echo request len 38"
        );
        assert_eq!(
            line(&ethernet(&[8, 0], &v4(1, 0, &[3, 1, 0, 0]))),
            "IP 10.0.0.1 > 10.0.0.2: ICMP unreachable code 1 len 38"
        );
        assert_eq!(
            line(&ethernet(&[8, 0], &v4(1, 0, &[40, 2, 0, 0]))),
            "IP 10.0.0.1 > 10.0.0.2: ICMP type 40 code 2 len 38"
        );
    }

    #[test]
    fn ipv6() {
        let mut packet = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        packet.extend_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
        packet.extend_from_slice(&"ff02::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        packet.extend_from_slice(&[0, 53, 0, 99, 0, 8, 0, 0]);
        assert_eq!(
            line(&ethernet(&[0x86, 0xdd], &packet)),
            "IP6 ::1.53 > ff02::1.99: UDP len 62"
        );
    }

    #[test]
    fn arp() {
        let mut message = vec![
            0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
        ];
        assert_eq!(
            line(&ethernet(&[8, 6], &message)),
            "ARP who-has 10.0.0.2 tell 10.0.0.1 len 42"
        );
        message[7] = 2;
        assert_eq!(
            line(&ethernet(&[8, 6], &message)),
            "ARP 10.0.0.1 is-at 02:00:00:00:00:01 len 42"
        );
        message[5] = 16;
        let other = "02:00:00:00:00:01 > 02:00:00:00:00:02: ethertype 0x0806 len 42";
        assert_eq!(line(&ethernet(&[8, 6], &message)), other);
    }

    #[test]
    fn others() {
        let macs = "02:00:00:00:00:01 > 02:00:00:00:00:02";
        assert_eq!(
            line(&ethernet(&[0x88, 0xcc], &[0; 46])),
            format!("{macs}: ethertype 0x88cc len 60")
        );
        assert_eq!(
            line(&ethernet(&[0, 38], &[0x42, 0x42, 3])),
            format!("{macs}: LLC dsap 0x42 ssap 0x42 len 17")
        );
        let frame = ethernet(&[8, 0], &[0x45, 0, 0]);
        assert_eq!(
            summary(LinkType::ETHERNET, &frame, 60).to_string(),
            format!("{macs}: ethertype 0x0800 len 60 captured 17 [headers truncated]")
        );
        assert_eq!(
            line(&ethernet(&[8, 0], &[0x41; 20])),
            format!("{macs}: ethertype 0x0800 len 34 [malformed]")
        );
        assert_eq!(
            summary(LinkType(147), &[1, 2], 2).to_string(),
            "link type 147 len 2"
        );
    }

    #[test]
    fn deep_stack_is_marked() {
        let tags: Vec<u8> = [0x81, 0, 0, 1]
            .repeat(9)
            .into_iter()
            .chain([0x88, 0xcc])
            .collect();
        assert!(
            line(&ethernet(&tags, &[0])).starts_with(
                "vlan 1, vlan 1, vlan 1, vlan 1, vlan 1, vlan 1, vlan 1, vlan 1, …, 02:"
            )
        );
    }
}
