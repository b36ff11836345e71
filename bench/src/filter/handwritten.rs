//! The single filters as handwritten code that knows that packets are Ethernet: one length check
//! for each header, then comparisons. The functions are inlined into the loop over packets.
//!
//! On the packets of the benchmarks the functions agree with libpcap. A packet that is truncated
//! before the end of both addresses or both ports may match in libpcap by the remaining address or
//! port; here it does not match.

/// `udp port 60000`.
#[inline(always)]
pub(super) fn udp_port(frame: &[u8]) -> bool {
    ports(frame, UDP).is_some_and(|(src, dst)| src == 60_000 || dst == 60_000)
}

/// `tcp port 80 and host 10.0.0.1`.
#[inline(always)]
pub(super) fn tcp_port_and_host(frame: &[u8]) -> bool {
    const HOST: u32 = u32::from_be_bytes([10, 0, 0, 1]);
    let Some(head) = ipv4(frame) else {
        return false;
    };
    let (src, dst) = addresses(head);
    (src == HOST || dst == HOST)
        && head[PROTOCOL] == TCP
        && ports_of_ipv4(frame, head).is_some_and(|(src, dst)| src == 80 || dst == 80)
}

/// `host 192.168.1.1 or net 10.0.0.0/8`.
#[inline(always)]
pub(super) fn host_or_net(frame: &[u8]) -> bool {
    const HOST: u32 = u32::from_be_bytes([192, 168, 1, 1]);
    let is_one = |address: u32| address == HOST || address >> 24 == 10;
    hosts(frame).is_some_and(|(src, dst)| is_one(src) || is_one(dst))
}

/// `tcp[tcpflags] & (tcp-syn|tcp-fin) != 0`.
#[inline(always)]
pub(super) fn tcp_flags(frame: &[u8]) -> bool {
    const SYN_OR_FIN: u8 = 0x03;
    let Some(head) = ipv4(frame) else {
        return false;
    };
    head[PROTOCOL] == TCP
        && is_first(head)
        && frame
            .get(payload_of_ipv4(head) + 13)
            .is_some_and(|flags| flags & SYN_OR_FIN != 0)
}

/// The ten hosts of [`super::TEN_HOSTS`].
#[inline(always)]
pub(super) fn ten_hosts(frame: &[u8]) -> bool {
    hosts(frame).is_some_and(|(src, dst)| {
        super::TEN_HOSTS.contains(&src) || super::TEN_HOSTS.contains(&dst)
    })
}

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes of the headers of Ethernet and IPv4 without options.
const HEAD_BYTES: usize = 34;
/// Bytes of the headers of Ethernet and ARP for IPv4.
const ARP_BYTES: usize = 42;
const IPV4_START: usize = 14;
const PROTOCOL: usize = 23;
const NEXT_HEADER: usize = 20;
const IPV6_END: usize = 54;

/// The Ethernet and IPv4 headers of an IPv4 packet, without options.
#[inline(always)]
fn ipv4(frame: &[u8]) -> Option<&[u8; HEAD_BYTES]> {
    frame
        .first_chunk()
        .filter(|head: &&[u8; HEAD_BYTES]| [head[12], head[13]] == [0x08, 0x00])
}

/// Source and destination address in IPv4 headers.
#[inline(always)]
fn addresses(head: &[u8; HEAD_BYTES]) -> (u32, u32) {
    (word(head, 26), word(head, 30))
}

/// The IPv4 addresses of an IPv4, ARP or RARP packet.
#[inline(always)]
fn hosts(frame: &[u8]) -> Option<(u32, u32)> {
    let head: &[u8; HEAD_BYTES] = frame.first_chunk()?;
    match [head[12], head[13]] {
        [0x08, 0x00] => Some(addresses(head)),
        [0x08, 0x06] | [0x80, 0x35] => {
            let head: &[u8; ARP_BYTES] = frame.first_chunk()?;
            Some((word(head, 28), word(head, 38)))
        }
        _ => None,
    }
}

#[inline(always)]
fn word<const N: usize>(head: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// Whether the packet is not a later fragment, so that the start of the datagram follows the IP
/// header.
#[inline(always)]
fn is_first(head: &[u8; HEAD_BYTES]) -> bool {
    u16::from_be_bytes([head[20], head[21]]) & 0x1fff == 0
}

#[inline(always)]
fn payload_of_ipv4(head: &[u8; HEAD_BYTES]) -> usize {
    IPV4_START + usize::from(head[IPV4_START] & 0x0f) * 4
}

/// Source and destination port of a packet of this protocol, over IPv4 or IPv6.
#[inline(always)]
fn ports(frame: &[u8], protocol: u8) -> Option<(u16, u16)> {
    let head: &[u8; HEAD_BYTES] = frame.first_chunk()?;
    match [head[12], head[13]] {
        [0x08, 0x00] if head[PROTOCOL] == protocol => ports_of_ipv4(frame, head),
        [0x86, 0xdd] if head[NEXT_HEADER] == protocol => ports_at(frame, IPV6_END),
        _ => None,
    }
}

#[inline(always)]
fn ports_of_ipv4(frame: &[u8], head: &[u8; HEAD_BYTES]) -> Option<(u16, u16)> {
    if !is_first(head) {
        return None;
    }
    ports_at(frame, payload_of_ipv4(head))
}

#[inline(always)]
fn ports_at(frame: &[u8], at: usize) -> Option<(u16, u16)> {
    let [a, b, c, d] = *frame.get(at..)?.first_chunk()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}
