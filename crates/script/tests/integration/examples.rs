//! The scripts in `examples/` do what their comments say.

use std::path::PathBuf;

use crate::common::{PATIENT, packet, udp};
use retroscope_script::{DerivedDump, Machine, Script, ScriptPacket};

fn example(name: &str) -> Script {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../examples", name]
        .iter()
        .collect();
    Script::read(&path, false).unwrap()
}

fn trigger(name: &str) -> Machine {
    Machine::new(&example(name), PATIENT).unwrap()
}

/// The frames that a script matches: bit `n` is frame `n`.
fn taken(trigger: &mut Machine, frames: &[Vec<u8>]) -> u64 {
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    let found = trigger.match_many(&packets);
    assert!(trigger.fault.is_none(), "{:?}", trigger.fault.as_ref());
    found
}

/// TCP from 10.0.0.1:1234 to 10.0.0.2:80.
fn tcp(flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = udp(
        80,
        &[&[0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0], payload].concat(),
    );
    frame[23] = 6;
    frame
}

/// The packet with source and destination swapped: IP addresses and ports.
fn reverse(mut frame: Vec<u8>) -> Vec<u8> {
    for n in 0..4 {
        frame.swap(26 + n, 30 + n);
    }
    frame.swap(34, 36);
    frame.swap(35, 37);
    frame
}

/// A packet from another address.
fn from(mut frame: Vec<u8>, address: [u8; 4]) -> Vec<u8> {
    frame[26..30].copy_from_slice(&address);
    frame
}

#[test]
fn every_example_is_run_here() {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../examples"]
        .iter()
        .collect();
    let files = std::fs::read_dir(folder).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".lua")).collect();
    names.sort_unstable();
    let run_here = [
        "dump-by-payload.lua",
        "dump-same-flow.lua",
        "dump-same-net.lua",
        // The test of docs/cookbook.md in crates/cli runs this script and rst-storm.lua.
        "microburst.lua",
        "payload-begins-with.lua",
        "rst-storm.lua",
        "syn-flood.lua",
        "udp-port.lua",
    ];
    assert_eq!(names, run_here);
}

#[test]
fn payload_begins_with() {
    let mut trigger = trigger("payload-begins-with.lua");
    let frames = [
        udp(9, b"EXAMPLE and more"),
        udp(9, b"EXAMPLE"),
        udp(9, b"EXAMPL"),
        udp(9, b"an EXAMPLE"),
        tcp(0x18, b"EXAMPLE"),
        udp(9, b"EXAMPLE and more")[..45].to_vec(),
        udp(9, b""),
    ];
    assert_eq!(taken(&mut trigger, &frames), 0b11);
}

#[test]
fn udp_port() {
    let mut trigger = trigger("udp-port.lua");
    let frames = [
        udp(60_000, b""),
        reverse(udp(60_000, b"")),
        udp(60_001, b""),
        tcp(2, b""),
    ];
    assert_eq!(taken(&mut trigger, &frames), 0b11);
}

#[test]
fn syn_flood() {
    let mut trigger = trigger("syn-flood.lua");
    let frames = [tcp(0x02, b""), tcp(0x12, b""), udp(80, b"")];
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    for round in 1..=1200 {
        let found = trigger.match_many(&packets);
        assert_eq!(
            found,
            u64::from(round == 1000),
            "round {round}: {:?}",
            trigger.fault.as_ref()
        );
    }
    let later = ScriptPacket {
        time_ns: 1_000_000_000,
        ..packets[0]
    };
    assert_eq!(trigger.match_many(&[later]), 0);
}

/// Requests to more hosts than the table of the script holds do not hide a flood to one host.
#[test]
fn syn_flood_among_many_hosts() {
    let mut trigger = trigger("syn-flood.lua");
    let mut ask = |frame: &[u8]| trigger.match_many(&[packet(frame)]) == 1;
    let (flooded, mut other) = (tcp(0x02, b""), tcp(0x02, b""));
    assert!(!(0..998).any(|_| ask(&flooded)));
    for host in 0..10_000_u16 {
        other[30] = 11;
        other[32..34].copy_from_slice(&host.to_be_bytes());
        assert!(!ask(&other));
    }
    assert!((0..3).any(|_| ask(&flooded)));
}

#[test]
fn dump_same_net() {
    let mut script = Machine::new(&example("dump-same-net.lua"), PATIENT).unwrap();
    let cause = udp(60_000, b"");
    let Some(DerivedDump::Predicate { predicate, name }) = script.derive(&packet(&cause)) else {
        panic!("{:?}", script.fault.as_ref());
    };
    assert_eq!(name.as_deref(), Some("net 10.0.0.0/24"));
    let frames = [
        from(udp(1, b""), [10, 0, 0, 200]),
        from(udp(1, b""), [10, 0, 1, 1]), // to 10.0.0.2
        reverse(from(udp(1, b""), [10, 0, 1, 1])),
    ];
    let mut elsewhere = from(udp(1, b""), [10, 0, 1, 1]);
    elsewhere[30..34].copy_from_slice(&[10, 1, 0, 1]);
    let packets = [
        packet(&frames[0]),
        packet(&frames[1]),
        packet(&frames[2]),
        packet(&elsewhere),
        packet(&[0; 60]),
    ];
    assert_eq!(
        script.match_derived(&predicate, &packets),
        0b00111,
        "{:?}",
        script.fault.as_ref()
    );
    assert_eq!(script.derive(&packet(&[0; 60])), Some(DerivedDump::Nothing));
}

#[test]
fn dump_same_flow() {
    let mut script = Machine::new(&example("dump-same-flow.lua"), PATIENT).unwrap();
    let mut derive = |frame: &[u8]| match script.derive(&packet(frame)) {
        Some(DerivedDump::Predicate {
            predicate,
            name: None,
        }) => predicate,
        other => panic!("{other:?} {:?}", script.fault.as_ref()),
    };
    let one = derive(&tcp(0x10, b""));
    // A second dump is separate, and the first dump keeps its trigger packet.
    let two = derive(&from(tcp(0x10, b""), [10, 0, 0, 7]));
    let frames = [
        tcp(0x18, b"GET"),
        reverse(tcp(0x18, b"200 OK")),
        tcp(0x10, b""),
        from(tcp(0x18, b"GET"), [10, 0, 0, 7]),
        udp(80, b"GET"),
    ];
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    assert_eq!(
        script.match_derived(&one, &packets),
        0b00011,
        "{:?}",
        script.fault.as_ref()
    );
    assert_eq!(script.match_derived(&two, &packets), 0b01000);
}

#[test]
fn dump_by_payload() {
    let mut script = Machine::new(&example("dump-by-payload.lua"), PATIENT).unwrap();
    let mut derive = |payload: &[u8]| script.derive(&packet(&udp(53, payload))).unwrap();
    let expression = |text: &str| DerivedDump::Expression(text.to_owned());
    assert_eq!(
        derive(&[0, 1, 0x81, 0x80]),
        expression("host $dstIP and udp port 53")
    );
    assert_eq!(derive(&[0, 1, 1, 0]), expression("$flow"));
    assert_eq!(derive(&[]), expression("$flow"));
}
