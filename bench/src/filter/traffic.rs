//! Generated packets for filters. Of [`Hot`], each single filter matches some and rejects most.

use retroscope_filter::{Aux, FilterFrame};

use super::{HUNDRED_HOSTS, TEN_HOSTS};

/// Number of flows of [`flow`], from which rules are made.
pub(super) const FLOWS: u32 = 10_000;
/// Bytes of a packet of [`Hot`] on the wire.
const HOT_BYTES: usize = 64;
/// Seed of the mixes: each mix is the same in every run.
const SEED: u64 = 5_2017;

/// The kind of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Tcp,
    Udp,
    /// TCP after an IPv4 header with options.
    TcpOptions,
    Tcp6,
    Udp6,
    Icmp,
    Arp,
    /// A later fragment of a UDP datagram.
    Fragment,
}

/// The specification of a packet. IPv6 addresses end with the 4 bytes of `src` and `dst`. Kinds
/// without ports ignore the ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec {
    pub(super) kind: FrameKind,
    pub(super) src: u32,
    pub(super) dst: u32,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) tcp_flags: u8,
    /// The flow of the packet, in either direction.
    pub(super) flow: Option<u32>,
}

/// 10.0.0.1.
const TEN_0_0_1: u32 = 0x0a00_0001;
const SYN: u8 = 0x02;
const FIN_ACK: u8 = 0x11;
const ACK: u8 = 0x10;

impl Spec {
    /// Writes the packet's headers to the start of `frame`, which has at least 64 bytes. The other
    /// bytes of `frame` do not change.
    pub(super) fn write(&self, frame: &mut [u8]) {
        let length = |headers: usize| {
            let bytes = u16::try_from(frame.len() - headers).unwrap_or(u16::MAX);
            bytes.to_be_bytes()
        };
        let (ipv4_length, ipv6_length) = (length(14), length(54));
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        let (src, dst) = (self.src.to_be_bytes(), self.dst.to_be_bytes());
        put(0, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        let payload = match self.kind {
            FrameKind::Arp => {
                put(12, &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1]);
                put(28, &src);
                put(38, &dst);
                return;
            }
            FrameKind::Tcp6 | FrameKind::Udp6 => {
                put(12, &[0x86, 0xdd, 0x60, 0, 0, 0]);
                put(18, &ipv6_length);
                put(20, &[self.protocol(), 64]);
                for (at, host) in [(22, src), (38, dst)] {
                    put(at, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
                    put(at + 12, &host);
                }
                54
            }
            FrameKind::Tcp
            | FrameKind::Udp
            | FrameKind::TcpOptions
            | FrameKind::Icmp
            | FrameKind::Fragment => {
                let words: u8 = if self.kind == FrameKind::TcpOptions {
                    6
                } else {
                    5
                };
                let offset = if self.kind == FrameKind::Fragment {
                    185
                } else {
                    0
                };
                put(12, &[0x08, 0x00, 0x40 | words, 0]);
                put(16, &ipv4_length);
                put(18, &[7, 7, 0, offset, 64, self.protocol(), 0, 0]);
                put(26, &src);
                put(30, &dst);
                put(34, &[1; 4]); // four no-operation options, or payload
                14 + usize::from(words) * 4
            }
        };
        if !matches!(self.kind, FrameKind::Icmp | FrameKind::Fragment) {
            put(payload, &self.src_port.to_be_bytes());
            put(payload + 2, &self.dst_port.to_be_bytes());
        }
        if matches!(self.kind, FrameKind::Tcp | FrameKind::TcpOptions) {
            put(payload + 12, &[0x50, self.tcp_flags]);
        }
    }

    fn protocol(&self) -> u8 {
        match self.kind {
            FrameKind::Tcp | FrameKind::TcpOptions | FrameKind::Tcp6 => 6,
            FrameKind::Udp | FrameKind::Udp6 | FrameKind::Fragment => 17,
            FrameKind::Icmp | FrameKind::Arp => 1,
        }
    }

    fn reversed(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            ..self
        }
    }
}

/// The packet that the client of flow `number`, below [`FLOWS`], sends. Each flow has its own
/// network of 24 bits and client port.
pub(super) fn flow(number: u32) -> Spec {
    let client = [10, number / 250, number % 250, 1 + number % 200];
    let [a, b, c, d] = client.map(|byte| byte & 0xff);
    #[expect(clippy::cast_possible_truncation, reason = "below 20,000 + FLOWS")]
    let src_port = (20_000 + number) as u16;
    Spec {
        kind: if number % 3 == 1 {
            FrameKind::Udp
        } else {
            FrameKind::Tcp
        },
        src: a << 24 | b << 16 | c << 8 | d,
        dst: 0xc000_0200 | (number % 50), // 192.0.2.0/24
        src_port,
        dst_port: if number % 3 == 1 { 53 } else { 80 },
        tcp_flags: ACK,
        flow: Some(number),
    }
}

/// Packets for rule sets, half of which belong to flows.
#[derive(Debug, Clone)]
pub(super) struct Mix(fastrand::Rng);

impl Mix {
    pub(super) fn new() -> Self {
        Self(fastrand::Rng::with_seed(SEED))
    }

    /// The next packet.
    pub(super) fn spec(&mut self) -> Spec {
        if !self.0.bool() {
            return self.other();
        }
        let spec = flow(self.0.u32(0..FLOWS));
        if self.0.bool() { spec } else { spec.reversed() }
    }

    /// A packet of no flow: other hosts, other client ports, some IPv6, ICMP, ARP, fragments. One
    /// service port in a hundred is 60000.
    fn other(&mut self) -> Spec {
        let random = &mut self.0;
        let kind = match random.u32(0..100) {
            0..45 => FrameKind::Tcp,
            45..80 => FrameKind::Udp,
            80..83 => FrameKind::TcpOptions,
            83..88 => FrameKind::Tcp6,
            88..92 => FrameKind::Udp6,
            92..95 => FrameKind::Icmp,
            95..97 => FrameKind::Arp,
            _ => FrameKind::Fragment,
        };
        let service = match random.u32(0..100) {
            0 => 60_000,
            1..50 => 443,
            50..70 => 80,
            70..85 => 53,
            _ => random.u16(30_000..60_000),
        };
        let spec = Spec {
            kind,
            src: 0xac10_0000 | random.u32(0..1 << 20), // 172.16.0.0/12
            dst: 0xc612_0000 | random.u32(0..1 << 17), // 198.18.0.0/15
            src_port: random.u16(1024..20_000),
            dst_port: service,
            tcp_flags: match random.u32(0..20) {
                0 => SYN,
                1 => FIN_ACK,
                _ => ACK,
            },
            flow: None,
        };
        if random.bool() { spec } else { spec.reversed() }
    }

    /// A packet for the single filters. One packet in four gets a source address that some filter
    /// names.
    fn hot(&mut self) -> Spec {
        let spec = self.other();
        let random = &mut self.0;
        let host = match random.u32(0..32) {
            0 => {
                return Spec {
                    kind: FrameKind::Tcp,
                    src: TEN_0_0_1,
                    src_port: if random.bool() { 80 } else { 443 },
                    ..spec
                };
            }
            1 => 0xc0a8_0101, // 192.168.1.1
            2..6 => 0x0a00_0000 | random.u32(0..1 << 24),
            6 => TEN_HOSTS[random.usize(0..TEN_HOSTS.len())],
            7 => HUNDRED_HOSTS[random.usize(0..HUNDRED_HOSTS.len())],
            _ => return spec,
        };
        Spec { src: host, ..spec }
    }
}

/// A few hundred packets that stay in the cache. A few are truncated to 14 or 34 bytes.
#[derive(Debug)]
pub(super) struct Hot {
    /// Packets with their captured lengths.
    packets: Vec<([u8; HOT_BYTES], usize)>,
}

impl Hot {
    pub(super) const PACKETS: usize = 512;

    pub(super) fn new() -> Self {
        let mut mix = Mix::new();
        let packet = |_| {
            let mut frame = [0; HOT_BYTES];
            mix.hot().write(&mut frame);
            let captured = match mix.0.u32(0..64) {
                0 => 14,
                1 => 34,
                _ => HOT_BYTES,
            };
            (frame, captured)
        };
        Self {
            packets: (0..Self::PACKETS).map(packet).collect(),
        }
    }

    pub(super) fn frames(&self) -> Vec<FilterFrame<'_>> {
        let packets = self.packets.iter();
        packets
            .map(|(bytes, captured)| FilterFrame::new(&bytes[..*captured], 64, Aux::default()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use retroscope_packet::{LinkType, parse};

    use super::*;

    #[test]
    fn flows_are_different_and_half_of_the_mix_is_theirs() {
        let flows: Vec<Spec> = (0..FLOWS).map(flow).collect();
        let nets: HashSet<u32> = flows.iter().map(|flow| flow.src >> 8).collect();
        let ports: HashSet<u16> = flows.iter().map(|flow| flow.src_port).collect();
        assert_eq!((nets.len(), ports.len()), (10_000, 10_000));
        let mut mix = Mix::new();
        let theirs = (0..10_000).filter(|_| mix.spec().flow.is_some()).count();
        assert!((4_800..5_200).contains(&theirs), "{theirs}");
    }

    /// The product's own parser finds the addresses of each generated IPv4 packet.
    #[test]
    fn packets_are_what_they_say() {
        let mut mix = Mix::new();
        for _ in 0..2_000 {
            let spec = mix.hot();
            let mut frame = [0; 64];
            spec.write(&mut frame);
            let parsed = parse(LinkType::ETHERNET, &frame);
            let has_hosts = !matches!(spec.kind, FrameKind::Tcp6 | FrameKind::Udp6);
            let Some(network) = parsed.network.filter(|_| has_hosts) else {
                assert!(!has_hosts || spec.kind == FrameKind::Arp, "{spec:?}");
                continue;
            };
            let address = |host: u32| std::net::IpAddr::from(std::net::Ipv4Addr::from(host));
            let addresses = [spec.src, spec.dst].map(address);
            assert_eq!([network.src, network.dst], addresses, "{spec:?}");
        }
    }
}
