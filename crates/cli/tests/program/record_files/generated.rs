//! Dumps of generated captures, compared with the oracle. The tests need no external captures or
//! tools.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::Path,
};

use fastrand::Rng;
use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    FileInterface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter, Resolution, SectionOptions,
};

use super::{S, compare, oracle::Packet, question, read};

/// Number of packets of a capture.
const PACKETS: usize = 1500;
const CONVERSATIONS: u16 = 12;
const START_US: i64 = 1_700_000_000_000_000;

/// A packet of a generated capture.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) packet: Packet,
    /// Number of the conversation, 0 to 11. Even conversations are TCP, odd conversations UDP.
    pub(crate) conversation: u16,
    /// Whether the client sends the packet to the server. The client's port is 1000 + the
    /// conversation, the server's port 2000 + the conversation.
    pub(crate) is_from_client: bool,
}

/// Addresses of a conversation's client and server, and whether they are IPv6. All clients are
/// 10.0.0.1 or fd00::1, so a filter for a host matches several conversations.
fn addresses(conversation: u16) -> ([Vec<u8>; 2], bool) {
    let server = u8::try_from(conversation % 4 + 2).unwrap_or_default();
    if conversation % 3 == 2 {
        let address = |last| [&[0xfd][..], &[0; 14], &[last]].concat();
        return ([address(1), address(server)], true);
    }
    let address = |last| vec![10, 0, 0, last];
    ([address(1), address(server)], false)
}

/// A frame of a conversation with `payload` bytes after the transport header. Every fourth
/// conversation has a VLAN tag.
fn frame(conversation: u16, is_from_client: bool, payload: u16) -> Vec<u8> {
    let (mut ends, is_v6) = addresses(conversation);
    let mut ports = [1000 + conversation, 2000 + conversation];
    if !is_from_client {
        ends.reverse();
        ports.reverse();
    }
    let is_tcp = conversation.is_multiple_of(2);
    let transport = if is_tcp { 20 } else { 8 } + payload;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if conversation % 4 == 3 {
        frame.extend([0x81, 0, 0, 7]);
    }
    let protocol = if is_tcp { 6 } else { 17 };
    if is_v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(transport.to_be_bytes());
        frame.extend([protocol, 64]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + transport).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    }
    frame.extend(ends.concat());
    frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    match is_tcp {
        // Only the ACK flag is set, so no packet begins or ends a connection.
        true => frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]),
        false => frame.extend([&transport.to_be_bytes()[..], &[0, 0]].concat()),
    }
    frame.extend((0..payload).map(|at| at.to_le_bytes()[0]));
    frame
}

/// Packets of half a minute, up to 0.4 s out of order. Some packets are truncated.
pub(crate) fn made(seed: u64) -> Vec<Made> {
    let mut random = Rng::with_seed(seed);
    let mut now_us = START_US;
    let one = |_| {
        now_us += random.i64(1..40_000);
        let (conversation, is_from_client) = (random.u16(..CONVERSATIONS), random.bool());
        let mut data = frame(conversation, is_from_client, random.u16(..1400));
        let wire_len = u32::try_from(data.len()).unwrap();
        if random.u8(..) < 16 {
            data.truncate(100);
        }
        let late_us = [0, random.i64(0..400_000)][usize::from(random.u8(..) < 32)];
        let packet = Packet {
            time_ns: (now_us - late_us) * 1000,
            wire_len,
            link_type: LinkType::ETHERNET,
            interface: format!("eth{}", conversation % 2),
            data,
        };
        Made {
            packet,
            conversation,
            is_from_client,
        }
    };
    (0..PACKETS).map(one).collect()
}

/// Writes a pcapng file with two interfaces.
fn write_pcapng(path: &Path, made: &[Made]) {
    let file = BufWriter::new(File::create(path).unwrap());
    let mut writer = PcapNgWriter::new(file, &SectionOptions::default()).unwrap();
    for name in ["eth0", "eth1"] {
        let interface = FileInterface {
            name: name.into(),
            ..FileInterface::new(LinkType::ETHERNET)
        };
        writer.add_interface(&interface).unwrap();
    }
    for Made { packet, .. } in made {
        let interface = u32::from(packet.interface == "eth1");
        let (time_ns, wire_len) = (packet.time_ns, packet.wire_len);
        let options = PacketOptions::default();
        let written = writer.packet(interface, time_ns, wire_len, &packet.data, &options);
        written.unwrap();
    }
    writer.finish().unwrap();
}

/// Writes a pcap file.
pub(crate) fn write_pcap(path: &Path, made: &[Made], resolution: Resolution) {
    let options = PcapOptions {
        resolution,
        ..PcapOptions::new(LinkType::ETHERNET)
    };
    let file = BufWriter::new(File::create(path).unwrap());
    let mut writer = PcapWriter::new(file, options).unwrap();
    for Made { packet, .. } in made {
        let written = writer.record(packet.time_ns, packet.wire_len, &packet.data);
        written.unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn dumps_of_generated_captures_hold_what_the_oracle_finds() {
    let questions = [
        question(&["tcp", "udp", "ip6"], "$flow", 4 * S, 13 * S),
        question(&["greater 1300"], "", S / 2, 2 * S),
        question(&["ip", "vlan and ip"], "host $srcIP", S, 5 * S),
    ];
    let folder = tempfile::tempdir().unwrap();
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let made = made(seed);
    let (mut dumps, mut bytes) = (0, 0);
    for name in ["made.pcapng", "micro.pcap", "nano.pcap"] {
        let path = folder.path().join(name);
        match name {
            "made.pcapng" => write_pcapng(&path, &made),
            "micro.pcap" => write_pcap(&path, &made, Resolution::Micro),
            _ => write_pcap(&path, &made, Resolution::Nano),
        }
        let packets = made.iter().map(|it| Packet {
            interface: match name {
                "made.pcapng" => it.packet.interface.clone(),
                _ => name.to_owned(),
            },
            ..it.packet.clone()
        });
        let packets: Vec<Packet> = packets.collect();
        let (read, is_complete) = read(&path);
        assert!(is_complete && read == packets, "{name}, seed {seed}");
        bytes += fs::metadata(&path).unwrap().len();
        for question in &questions {
            let found = compare(&path, &packets, question).expect("few dumps");
            eprintln!("{found} dumps");
            dumps += found;
        }
    }
    assert!(
        dumps > 100 && bytes > 1_000_000,
        "{dumps} dumps, {bytes} bytes"
    );
}
