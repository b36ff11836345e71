//! Compares the accessors with the packet crate and with slices, for any packet. Shared by the
//! tests and the fuzz target `lua_accessors`.

use std::{
    cell::RefCell,
    fmt::Display,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use retroscope_packet::{LinkType, Parsed, parse};
use retroscope_script::{Machine, Script, ScriptLimits, ScriptPacket};

/// Link types to test. The first byte of an input chooses the link type.
const LINK_TYPES: [LinkType; 8] = [
    LinkType::ETHERNET,
    LinkType::ETHERNET,
    LinkType::ETHERNET,
    LinkType::RAW,
    LinkType::LINUX_SLL,
    LinkType::NULL,
    LinkType::PPP,
    LinkType(147),
];

/// A script with nearly all accessors, a script with accessors that use few headers, for which less
/// is parsed, and a script that computes the names of its accessors.
const SCRIPTS: [&str; 3] = [
    include_str!("show.lua"),
    // Some of the accessors in the third and fourth `print` of `show.lua`.
    "return function(pkt)
        print(pkt:ip(), pkt:proto(), pkt:is_tcp(), pkt:is_udp(), pkt:is_later_fragment())
        print(pkt:src_port(), pkt:dst_port(), pkt:has_port(80), pkt:tcp_flags())
        return true
    end",
    // The text contains the names of two accessors, `to` and `len`. The facts that only the other
    // accessors need are requested when these are called.
    "return function(pkt)
        print(pkt['i' .. 'p'](pkt), pkt['pro' .. 'to'](pkt), pkt['sr' .. 'c'](pkt))
        print(pkt['le' .. 'n'](pkt), pkt['wire_' .. 'len'](pkt))
        return true
    end",
];

/// Time does not matter here: a fuzzer with sanitizers on a busy machine takes long for a call.
const LIMITS: ScriptLimits = ScriptLimits {
    time: Duration::from_secs(60),
    memory_bytes: 64 << 20,
};

thread_local! {
    static SHOW: RefCell<[Machine; 3]> = RefCell::new(SCRIPTS.map(|text| {
        Machine::new(&Script::new("show.lua", text, false), LIMITS).expect("the script is right")
    }));
}

/// Checks the accessors of `SCRIPTS` on a packet of any bytes: one byte chooses the link type, two
/// an offset, and the rest is the packet.
///
/// # Panics
/// If an accessor returns a wrong value.
pub fn check_input(input: &[u8]) {
    let Some((&[choice, low, high], data)) = input.split_first_chunk() else {
        return;
    };
    let offset = i64::from(i16::from_le_bytes([low, high]));
    let link_type = LINK_TYPES[usize::from(choice) % LINK_TYPES.len()];
    check(link_type, offset, data);
}

/// Checks the accessors of `SCRIPTS` on one packet, at one offset.
///
/// # Panics
/// If an accessor returns a wrong value.
pub fn check(link_type: LinkType, offset: i64, data: &[u8]) {
    let packet = ScriptPacket {
        data,
        wire_len: u32::try_from(data.len()).expect("short") + 7,
        time_ns: offset,
        interface: 3,
        link_type,
        direction: u8::from(offset & 1 == 1),
    };
    let expected = [expected(&packet), ports(&packet), unnamed(&packet)];
    for (script, expected) in expected.into_iter().enumerate() {
        let said = SHOW.with_borrow_mut(|show| {
            let show = &mut show[script];
            let taken = show.match_many(&[packet]);
            assert!(
                show.fault.is_none(),
                "{:?}: {data:02x?}",
                show.fault.as_ref()
            );
            assert_eq!(
                taken, 1,
                "the payload's offset lies in the packet: {data:02x?}"
            );
            show.take_notes()
        });
        assert_eq!(
            said, expected,
            "script {script}, {link_type:?}, offset {offset}: {data:02x?}"
        );
    }
}

/// Words of a line in the format of Lua's `print`.
macro_rules! line {
    ($($word:expr),+) => { [$($word.to_string()),+].join("\t") };
}

fn expected(packet: &ScriptPacket<'_>) -> Vec<String> {
    let ScriptPacket { data, .. } = *packet;
    let parsed = parse(packet.link_type, data);
    let at = |len: usize| {
        let start = usize::try_from(packet.time_ns).ok()?;
        data.get(start..start.checked_add(len)?)
    };
    let number = |len| at(len).map(|bytes| bytes.iter().fold(0_u64, |n, b| n << 8 | u64::from(*b)));
    // `u8` rounds an offset between two bytes down, and returns nil if the byte after the offset
    // does not exist.
    let between = at(2).map(|bytes| bytes[0]);
    let ip = parsed.network;
    let (src, dst) = (ip.map(|ip| ip.src), ip.map(|ip| ip.dst));
    let proto = ip.and_then(|ip| ip.proto);
    let ports = parsed.transport;
    let has_port = ports.is_some_and(|p| [p.src, p.dst].map(i64::from).contains(&packet.time_ns));
    let half = |addr: Option<IpAddr>| matches!(addr, Some(IpAddr::V4(a)) if a.to_bits() >> 31 == 1);
    let low = |addr: Option<IpAddr>| matches!(addr, Some(IpAddr::V6(a)) if a.to_bits() >> 127 == 0);
    let payload = parsed.payload(data);
    let some = at(3).unwrap_or(b"none");
    let starts = |with| payload.is_some_and(|payload| payload.starts_with(with));
    let contains = payload.is_some_and(|payload| payload.windows(some.len()).any(|w| w == some));
    let tcp = |at: usize| -> Option<[u8; 4]> {
        let header = parsed.tcp_flags.and(parsed.transport_offset)? as usize;
        data.get(header + at..)?.first_chunk().copied()
    };
    vec![
        line!(
            data.len(),
            packet.wire_len,
            packet.interface,
            packet.link_type.0,
            packet.direction == 1,
            false
        ),
        line!(
            word(number(1)),
            word(number(2)),
            word(number(4)),
            hex(at(3)),
            hex(at(0)),
            word(between)
        ),
        line!(
            word(ip.map(|ip| if ip.src.is_ipv4() { 4 } else { 6 })),
            word(proto),
            proto == Some(6),
            proto == Some(17),
            parsed.is_later_fragment(),
            word(src),
            word(dst)
        ),
        line!(
            word(ports.map(|p| p.src)),
            word(ports.map(|p| p.dst)),
            has_port,
            word(parsed.tcp_flags),
            word(parsed.vlan.outer().map(|tag| tag.id())),
            word(parsed.ether_type)
        ),
        line!(
            half(src),
            half(dst),
            half(src) || half(dst),
            low(src),
            low(dst),
            low(src) || low(dst)
        ),
        line!(
            word(payload.map(<[u8]>::len)),
            hex(payload),
            hex(payload.map(|payload| &payload[..payload.len().min(2)]))
        ),
        line!(starts(some), contains, payload.is_some(), payload.is_some()),
        line!(
            word(ip_byte(&parsed, data, 8, 7)),
            word(tos(&parsed, data)),
            word(tcp(4).map(u32::from_be_bytes)),
            word(tcp(8).map(u32::from_be_bytes)),
            word(
                tcp(14)
                    .filter(|_| payload.is_some())
                    .map(|[a, b, ..]| u16::from_be_bytes([a, b]))
            ),
            word(parsed.icmp.map(|icmp| icmp.kind)),
            word(parsed.icmp.map(|icmp| icmp.code)),
            word(parsed.network_offset),
            arp(&parsed, payload)
        ),
    ]
}

/// The byte at offset `v4` of an IPv4 header, or at offset `v6` of an IPv6 header.
fn ip_byte(parsed: &Parsed, data: &[u8], v4: usize, v6: usize) -> Option<u8> {
    let place = if parsed.network?.src.is_ipv4() {
        v4
    } else {
        v6
    };
    data.get(parsed.network_offset? as usize + place).copied()
}

fn tos(parsed: &Parsed, data: &[u8]) -> Option<u8> {
    let second = ip_byte(parsed, data, 1, 1)?;
    let first = ip_byte(parsed, data, 0, 0)?;
    let is_v4 = parsed.network?.src.is_ipv4();
    Some(if is_v4 {
        second
    } else {
        first << 4 | second >> 4
    })
}

/// The expected values of `pkt:arp()` for ARP of IPv4 over Ethernet (RFC 826): operation, sender's
/// address and target's address. Otherwise `nil`.
fn arp(parsed: &Parsed, payload: Option<&[u8]>) -> String {
    let packet = payload.and_then(|payload| payload.first_chunk::<28>());
    match packet {
        Some(packet) if parsed.ether_type == Some(0x806) && packet[..6] == [0, 1, 8, 0, 6, 4] => {
            let address = |at: usize| {
                let octets: [u8; 4] = packet[at..at + 4].try_into().expect("four");
                Ipv4Addr::from(octets)
            };
            let operation = u16::from_be_bytes([packet[6], packet[7]]);
            line!(operation, address(14), address(24))
        }
        _ => "nil".to_owned(),
    }
}

/// The expected output of the second script.
fn ports(packet: &ScriptPacket<'_>) -> Vec<String> {
    let parsed = parse(packet.link_type, packet.data);
    let ip = parsed.network;
    let proto = ip.and_then(|ip| ip.proto);
    let ports = parsed.transport;
    vec![
        line!(
            word(ip.map(|ip| if ip.src.is_ipv4() { 4 } else { 6 })),
            word(proto),
            proto == Some(6),
            proto == Some(17),
            parsed.is_later_fragment()
        ),
        line!(
            word(ports.map(|p| p.src)),
            word(ports.map(|p| p.dst)),
            ports.is_some_and(|p| p.src == 80 || p.dst == 80),
            word(parsed.tcp_flags)
        ),
    ]
}

/// The expected output of the third script.
fn unnamed(packet: &ScriptPacket<'_>) -> Vec<String> {
    let ip = parse(packet.link_type, packet.data).network;
    vec![
        line!(
            word(ip.map(|ip| if ip.src.is_ipv4() { 4 } else { 6 })),
            word(ip.and_then(|ip| ip.proto)),
            word(ip.map(|ip| ip.src))
        ),
        line!(packet.data.len(), packet.wire_len),
    ]
}

fn word(value: Option<impl Display>) -> String {
    value.map_or("nil".to_owned(), |value| value.to_string())
}

fn hex(bytes: Option<&[u8]>) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    bytes.map_or("nil".to_owned(), |bytes| format!("<{}>", hex(bytes)))
}
