//! Reads dumps with our own reader, and with other installed programs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use retroscope_pcapfile::{CaptureReader, LinkType};
use serde_json::Value;

use crate::traffic::{HEADERS, number_of};

/// The contents of a capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    /// Name and link type of each interface.
    pub(crate) interfaces: Vec<(String, LinkType)>,
    pub(crate) packets: Vec<Packet>,
}

/// A packet of a capture file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) time_ns: i64,
    pub(crate) interface: u16,
    pub(crate) data: Vec<u8>,
}

impl Packet {
    /// UDP destination port of an untagged Ethernet frame.
    pub(crate) fn to_port(&self) -> u16 {
        u16::from_be_bytes(self.data[36..38].try_into().unwrap())
    }
}

/// The file of a dump's entry in `--json`.
pub(crate) fn path(dump: &Value) -> PathBuf {
    PathBuf::from(dump["file"].as_str().unwrap())
}

/// Reads a finished dump and checks the properties of every dump: name and sidecar, time order,
/// window, and the count in the summary. Other programs must count the same packets.
pub(crate) fn read(dump: &Value) -> Capture {
    let path = path(dump);
    assert!(path.extension().is_some_and(|e| e == "pcapng"), "{dump}");
    let capture = read_file(&path);
    let sidecar: Value =
        serde_json::from_slice(&std::fs::read(path.with_extension("json")).unwrap()).unwrap();
    assert_eq!(sidecar["verdict"], dump["verdict"]);
    assert_eq!(dump["packets"], capture.packets.len(), "{dump}");
    let times: Vec<i64> = capture.packets.iter().map(|p| p.time_ns).collect();
    assert!(times.is_sorted(), "{} is not in order", path.display());
    let (from_ns, to_ns) = (time_ns(&dump["from"]), time_ns(&dump["to"]));
    assert!(
        times.iter().all(|ns| (from_ns..=to_ns).contains(ns)),
        "{dump}"
    );
    others_agree(&path, capture.packets.len());
    capture
}

/// Reads any capture. Asserts that no packet is truncated.
pub(crate) fn read_file(path: &Path) -> Capture {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        assert_eq!(record.meta.wire_len, record.meta.captured_len);
        packets.push(Packet {
            time_ns: record.meta.time_ns,
            interface: record.meta.interface,
            data: record.data.to_vec(),
        });
    }
    Capture {
        interfaces: reader
            .interfaces()
            .iter()
            .map(|i| (i.name.clone(), i.link_type))
            .collect(),
        packets,
    }
}

/// Number of packets that can be read from a capture whose end may be missing.
pub(crate) fn readable(path: &Path) -> u64 {
    let mut reader = CaptureReader::open(path).unwrap();
    while let Ok(Some(_)) = reader.next() {}
    reader.records_read()
}

/// Parses a time in RFC 3339 as the program writes it. Returns ns since the epoch.
pub(crate) fn time_ns(text: &Value) -> i64 {
    let time: jiff::Timestamp = text.as_str().unwrap().parse().unwrap();
    i64::try_from(time.as_nanosecond()).unwrap()
}

/// The sequence numbers of the packets to a port, in the order of the file.
pub(crate) fn numbers_to(capture: &Capture, port: u16) -> Vec<u64> {
    capture
        .packets
        .iter()
        .filter(|p| p.data.len() >= HEADERS + 8 && p.to_port() == port)
        .map(|p| number_of(&p.data))
        .collect()
}

/// Checks that tcpdump, capinfos and tshark count the same packets and exit without error. Skips
/// programs that do not start, tcpdump unless the file has a single link type, and tshark for more
/// than 10,000 packets.
fn others_agree(path: &Path, packets: usize) {
    let link_types: std::collections::BTreeSet<u16> = read_file(path)
        .interfaces
        .iter()
        .map(|(_, link_type)| link_type.0)
        .collect();
    if link_types.len() == 1
        && let Some((text, words)) = other("tcpdump", &["-n", "--count", "-r"], path)
    {
        assert!(
            text.starts_with(&format!("{packets} packet")),
            "tcpdump: {text} {words}"
        );
    }
    if let Some((text, words)) = other("capinfos", &["-M", "-c"], path) {
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("Number of packets:"))
            .map(|n| n.trim().to_owned());
        assert_eq!(count, Some(packets.to_string()), "capinfos: {text} {words}");
    }
    if packets <= 10_000
        && let Some((text, words)) = other(
            "tshark",
            &["-n", "-T", "fields", "-e", "frame.number", "-r"],
            path,
        )
    {
        assert_eq!(text.lines().count(), packets, "tshark: {words}");
    }
}

/// Standard output and error of another program, which must succeed. `None`, with a message, if the
/// program does not start.
fn other(program: &str, arguments: &[&str], path: &Path) -> Option<(String, String)> {
    let output = match Command::new(program).args(arguments).arg(path).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("SKIP: {program} does not run: {error}");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{program} {}: {words}",
        path.display()
    );
    Some((text, words))
}
