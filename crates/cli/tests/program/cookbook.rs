//! Runs each recipe of docs/cookbook.md on packets that the test makes.
//!
//! One capture contains the traffic of all recipes. The traffic of each recipe begins 2 s after the
//! previous one. A recipe must trigger on its own packet and on no packet of another recipe.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};

use crate::{marked, support::PROGRAM};

const SECOND_NS: i64 = 1_000_000_000;
const CLIENT: [u8; 4] = [10, 0, 0, 7];
const SERVER: [u8; 4] = [198, 51, 100, 9];
const ROGUE: [u8; 4] = [192, 0, 2, 66];
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The packets of a recipe, in order. The last frame triggers.
struct Traffic {
    recipe: &'static str,
    frames: Vec<Vec<u8>>,
}

/// An Ethernet frame with an IPv4 packet. The Internet checksum (RFC 1071) stays zero, because no
/// filter of the recipes reads the checksum.
fn ipv4(protocol: u8, [source, destination]: [[u8; 4]; 2], payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap();
    let mut frame = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 7, 8, 0, 0x45, 0];
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend([source, destination].concat());
    frame.extend(payload);
    frame
}

fn udp(hosts: [[u8; 4]; 2], ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let header = [ports[0], ports[1], length, 0].map(u16::to_be_bytes);
    ipv4(17, hosts, &[header.as_flattened(), payload].concat())
}

fn tcp(
    hosts: [[u8; 4]; 2],
    ports: [u16; 2],
    flags: u8,
    window: u16,
    payload: impl AsRef<[u8]>,
) -> Vec<u8> {
    let ports = ports.map(u16::to_be_bytes);
    let numbers = [0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags];
    let rest = [window, 0, 0].map(u16::to_be_bytes);
    let header = [ports.as_flattened(), &numbers, rest.as_flattened()].concat();
    ipv4(6, hosts, &[&header, payload.as_ref()].concat())
}

fn data(ports: [u16; 2], payload: impl AsRef<[u8]>) -> Vec<u8> {
    tcp([SERVER, CLIENT], ports, ACK, 500, payload)
}

fn icmp(kind: u8, code: u8) -> Vec<u8> {
    ipv4(1, [SERVER, CLIENT], &[kind, code, 0, 0, 0, 0, 0, 0])
}

/// A DHCP message (RFC 2131, figure 1) whose first option is the message type `kind`.
fn dhcp(server: [u8; 4], kind: u8) -> Vec<u8> {
    let mut message = vec![0; 236];
    message.extend([0x63, 0x82, 0x53, 0x63, 53, 1, kind, 255]);
    udp([server, CLIENT], [67, 68], &message)
}

fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![255; 6];
    frame.extend([2, 0, 0, 0, 0, 7, 8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend([&[2, 0, 0, 0, 0, 7][..], &sender, &[0; 6], &target].concat());
    frame
}

fn router_advertisement(router: u8) -> Vec<u8> {
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, router, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 16, 58, 255]);
    frame.extend([&[0xfe, 0x80][..], &[0; 13], &[router]].concat());
    frame.extend([&[0xff, 0x02][..], &[0; 13], &[1]].concat());
    frame.extend([134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame
}

/// A DNS answer with this response code, whose message has `length` bytes.
fn dns(code: u8, length: usize) -> Vec<u8> {
    let mut message = vec![0, 1, 0x81, 0x80 | code];
    message.resize(length, 0);
    udp([SERVER, CLIENT], [53, 4000], &message)
}

fn traffic() -> Vec<Traffic> {
    let syn = |from: [u8; 4], port| tcp([from, SERVER], [4000, port], SYN, 500, "");
    let resets = |count| vec![tcp([SERVER, CLIENT], [80, 4000], RST | ACK, 0, ""); count];
    // Each connection sends a single SYN, because a second SYN would be a retransmission.
    let flood: Vec<Vec<u8>> = (0..1000)
        .map(|port| {
            tcp(
                [CLIENT, [203, 0, 113, 5]],
                [10_000 + port, 80],
                SYN,
                500,
                "",
            )
        })
        .collect();
    // A message of 266 bytes: its length contains a line feed.
    let bgp = |kind| [&[0xff; 16][..], &[1, 10, kind, 6, 2], &[0; 245]].concat();
    let sip = |status: &str| {
        let text = format!("SIP/2.0 {status}\r\n");
        udp([SERVER, CLIENT], [5060, 5060], text.as_bytes())
    };
    let burst = vec![data([8000, 4001], [0; 1400]); 720];
    let all: [(&str, Vec<Vec<u8>>); 22] = [
        ("DNS answers with SERVFAIL", vec![dns(0, 40), dns(2, 40)]),
        ("Large DNS answers", vec![dns(0, 1232), dns(0, 1233)]),
        (
            "DHCP refuses an address",
            vec![dhcp([192, 0, 2, 1], 5), dhcp([192, 0, 2, 1], 6)],
        ),
        (
            "A second DHCP server",
            vec![dhcp([192, 0, 2, 1], 2), dhcp(ROGUE, 2)],
        ),
        (
            "An address announced twice",
            vec![
                arp(2, CLIENT, SERVER),
                arp(1, CLIENT, CLIENT),
                arp(2, CLIENT, CLIENT),
            ],
        ),
        (
            "An unexpected IPv6 router",
            vec![router_advertisement(1), router_advertisement(2)],
        ),
        ("A storm of TCP resets", resets(50)),
        ("SYN without an answer", vec![syn(CLIENT, 8080); 3]),
        ("A SYN flood", flood),
        (
            "A receiver that stops reading",
            vec![
                data([80, 4000], ""),
                tcp([CLIENT, SERVER], [4000, 80], ACK, 0, ""),
            ],
        ),
        (
            "A packet that is too large for the path",
            vec![icmp(3, 1), icmp(3, 4)],
        ),
        ("A routing loop", vec![icmp(0, 0), icmp(11, 0)]),
        ("A microburst", burst),
        (
            "HTTP server errors",
            vec![
                data([80, 4000], "HTTP/1.1 404 Not Found\r\n"),
                data([80, 4000], "HTTP/1.1 503 Service Unavailable\r\n"),
            ],
        ),
        (
            "TLS alerts",
            vec![
                data([443, 4000], b"\x16\x03\x01\x00\x02\x02\x28"),
                data([443, 4000], b"\x15\x03\x03\x00\x02\x02\x28"),
            ],
        ),
        (
            "VoIP calls that fail",
            vec![
                sip("200 OK"),
                sip("407 Proxy Authentication Required"),
                sip("486 Busy Here"),
            ],
        ),
        (
            "A BGP session that ends",
            vec![data([179, 4000], bgp(4)), data([179, 4000], bgp(3))],
        ),
        (
            "Failing database logins",
            vec![
                data([5432, 4000], "E\0\0\0\x20SERROR\0C42P01\0"),
                data([5432, 4000], "E\0\0\0\x20SFATAL\0C28P01\0"),
            ],
        ),
        (
            "Passwords in clear",
            vec![tcp(
                [CLIENT, SERVER],
                [4000, 21],
                ACK,
                500,
                "PASS secret\r\n",
            )],
        ),
        ("SSH from outside", vec![syn(CLIENT, 22), syn(ROGUE, 22)]),
        (
            "The old SMB",
            vec![
                data([445, 4000], b"\0\0\x0a\x23\xfeSMB"),
                data([445, 4000], b"\0\0\x0a\x23\xffSMB"),
            ],
        ),
        (
            "NTP that amplifies",
            vec![
                udp([CLIENT, SERVER], [123, 123], &[0x23; 48]),
                udp([ROGUE, SERVER], [123, 123], &[0x17, 0, 3, 42]),
            ],
        ),
    ];
    let all = all.into_iter();
    all.map(|(recipe, frames)| Traffic { recipe, frames })
        .collect()
}

/// Writes the frames of each recipe 10 µs apart, 1 µs apart for the microburst. Each recipe begins
/// at an even second.
fn write(path: &Path, traffic: &[Traffic]) {
    let file = fs::File::create(path).unwrap();
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::ETHERNET)).unwrap();
    for (number, traffic) in traffic.iter().enumerate() {
        for (index, frame) in traffic.frames.iter().enumerate() {
            // The microburst must last less than a millisecond.
            let step = if traffic.recipe == "A microburst" {
                1_000
            } else {
                10_000
            };
            let at = 2 * SECOND_NS * number as i64 + step * index as i64;
            writer
                .record(at, u32::try_from(frame.len()).unwrap(), frame)
                .unwrap();
        }
    }
    writer.finish().unwrap();
}

/// The title and the arguments of each recipe of the page. Splits a command at spaces outside of
/// single quotes.
fn recipes(page: &str) -> Vec<(&str, Vec<String>)> {
    let sections = page.split("\n### ").skip(1);
    let mut all = Vec::new();
    for section in sections {
        let title = section.lines().next().unwrap();
        let command = section
            .lines()
            .find_map(|line| line.strip_prefix("$ retroscope "))
            .unwrap_or_else(|| panic!("{title}: no command"));
        let mut arguments = Vec::new();
        for (number, piece) in command.split('\'').enumerate() {
            if number % 2 == 1 {
                arguments.push(piece.to_owned());
            } else {
                arguments.extend(piece.split_whitespace().map(str::to_owned));
            }
        }
        all.push((title, arguments));
    }
    all
}

#[test]
fn every_recipe_triggers_on_its_own_traffic_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/cookbook.md")).unwrap();
    let recipes = recipes(&page);
    let traffic = traffic();
    let titles: Vec<&str> = recipes.iter().map(|it| it.0).collect();
    let expected: Vec<&str> = traffic.iter().map(|it| it.recipe).collect();
    assert_eq!(titles, expected, "recipes, and what the test sends");

    let directory = tempfile::tempdir().unwrap();
    let capture = directory.path().join("in.pcap");
    write(&capture, &traffic);
    for ((title, arguments), traffic) in recipes.iter().zip(&traffic) {
        let dumps = directory.path().join(title.replace(' ', "-"));
        let output = Command::new(PROGRAM)
            .current_dir(&root)
            .args(arguments.iter().map(|argument| match argument.as_str() {
                "-i" => "-r".as_ref(),
                "eth0" => capture.as_os_str(),
                "dumps" => dumps.as_os_str(),
                other => other.as_ref(),
            }))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{title}: {words}");
        let mut files: Vec<_> = fs::read_dir(&dumps)
            .unwrap()
            .map(|it| it.unwrap().path())
            .filter(|it| it.extension().is_some_and(|it| it == "pcapng"))
            .collect();
        assert_eq!(files.len(), 1, "{title}: {files:?}: {words}");
        let packets = marked::packets(&files.remove(0));
        let marked: Vec<_> = packets.iter().filter(|it| it.is_marked).collect();
        assert_eq!(marked.len(), 1, "{title}: {words}");
        assert_eq!(Some(&marked[0].data), traffic.frames.last(), "{title}");
    }
}
