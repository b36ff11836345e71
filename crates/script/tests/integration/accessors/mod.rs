//! The accessors return the values in a packet and nothing else.

#[expect(unreachable_pub, reason = "shared with a fuzz target")]
mod check;

use std::path::{Path, PathBuf};

use self::check::{check, check_input};
use crate::common::{packet, trigger, udp};
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;
use retroscope_script::{ScriptError, ScriptPacket};

#[test]
fn they_agree_with_the_packet_crate_on_any_bytes() {
    let seed = std::env::var("SCRIPT_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let seed: u64 = seed.unwrap_or(1);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tcp = udp(80, b"GET / HTTP/1.1");
    tcp[23] = 6;
    tcp[46] = 0x50;
    let bases = [udp(53, b"payload"), udp(53, b""), tcp, v6(), tagged()];
    for round in 0..4000 {
        let mut input = vec![random.u8(0..3), random.u8(..), 0];
        input.extend_from_slice(&bases[round % bases.len()]);
        input.extend((0..random.usize(..30)).map(|_| random.u8(..)));
        for _ in 0..random.usize(..4) {
            let at = random.usize(3..input.len());
            input[at] = random.u8(..);
        }
        input.truncate(random.usize(3..=input.len()));
        if round % 8 == 0 {
            input[0] = random.u8(..);
        }
        if round % 16 == 0 {
            input[2] = random.u8(..);
        }
        println!("seed {seed}, round {round}");
        check_input(&input);
    }
}

#[test]
fn they_agree_with_the_packet_crate_on_captures() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let mut files = Vec::new();
    find_files(&traces, &mut files);
    if files.is_empty() {
        eprintln!("SKIPPED: no captures at {}", traces.display());
        return;
    }
    let mut packets = 0;
    for file in files {
        let Ok(mut reader) = CaptureReader::open(&file) else {
            continue;
        };
        for offset in 0..40 {
            let Ok(Some(record)) = reader.next() else {
                break;
            };
            let (interface, data) = (record.meta.interface as usize, record.data.to_vec());
            check(reader.interfaces()[interface].link_type, offset, &data);
            packets += 1;
        }
    }
    assert!(packets > 1000, "only {packets} packets");
}

/// All files below a folder.
fn find_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn offsets_are_numbers_that_lie_in_the_packet() {
    for offset in [
        "-1", "60", "59.5", "1e300", "-1e300", "0/0", "1/0", "-1/0", "2^31", "2^32", "2^53",
        "-2^31",
    ] {
        for read in ["u8", "u16", "u32"] {
            let mut trigger = trigger(&format!(
                "return function(pkt) return pkt:{read}({offset}) == nil end"
            ));
            assert_eq!(
                trigger.match_many(&[packet(&[7; 60]); 64]),
                u64::MAX,
                "{read}({offset})"
            );
        }
        let mut trigger = trigger(&format!(
            "return function(pkt) return pkt:bytes({offset}, 1) == nil and pkt:bytes(30, 31) == nil and pkt:bytes(0, -1) == nil end"
        ));
        assert_eq!(
            trigger.match_many(&[packet(&[7; 60]); 64]),
            u64::MAX,
            "bytes({offset})"
        );
    }
}

#[test]
fn what_is_no_number_is_refused_where_it_is_used() {
    let table = "setmetatable({}, {__le = function() return true end, __lt = function() return true end, __add = function() return 1 end})";
    for value in [
        "-1LL",
        "0ULL",
        "18446744073709551615ULL",
        "'1'",
        "{}",
        "nil",
        "true",
        table,
        "1i",
    ] {
        for call in [
            "u8(V)",
            "u16(V)",
            "u32(V)",
            "bytes(V, 1)",
            "bytes(1, V)",
            "has_port(V)",
        ] {
            let call = call.replace('V', value);
            let mut trigger = trigger(&format!(
                "return function(pkt)\nlocal value = pkt:{call} return value end"
            ));
            assert_eq!(trigger.match_many(&[packet(&[7; 60])]), 0, "{call}");
            let fault = trigger.fault.as_ref().expect("it is refused").to_string();
            assert!(fault.starts_with("test.lua:2: "), "{call}: {fault}");
        }
    }
}

#[test]
fn texts_and_networks_are_checked() {
    // The second value is part of the message: the type of the argument, or its text.
    for (call, given) in [
        ("pkt:startswith(1)", "number"),
        ("pkt:contains({})", "table"),
        ("pkt:host('10.0.0.0/8')", "string"),
        ("pkt:payload('1')", "string"),
        ("net('10.0.0.0/33')", "10.0.0.0/33"),
        ("net('here')", "here"),
    ] {
        let mut trigger = trigger(&format!("return function(pkt) return {call} end"));
        trigger.match_many(&[packet(&[7; 60])]);
        let fault = trigger.fault.as_ref().expect("it is refused");
        assert!(matches!(fault, ScriptError::Failed { .. }));
        assert!(fault.to_string().contains(given), "{call}: {fault}");
    }
}

/// If the script's text does not contain the name of an accessor, the accessor requests its facts
/// when it is called. This must work in the middle of a batch, also if the loop is compiled.
#[test]
fn accessors_may_be_reached_by_any_name() {
    let mut trigger = trigger(
        "local name = 'dst_' .. 'por' .. 't' local calls = 0
         return function(pkt) calls = calls + 1 return calls > 70 and pkt[name](pkt) == 7 end",
    );
    let frames: Vec<Vec<u8>> = (0..64).map(|port| udp(port % 8, b"")).collect();
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    assert_eq!(trigger.match_many(&packets), 0);
    let seventh = 0x8080_8080_8080_8080;
    assert_eq!(trigger.match_many(&packets), seventh & u64::MAX << 6);
    for _ in 0..200 {
        assert_eq!(trigger.match_many(&packets), seventh);
    }
}

#[test]
fn times_are_exact() {
    let mut trigger = trigger(
        "return function(pkt) return pkt:time_ns() == 1700000000123456789LL and pkt:time() > 1700000000.123 and pkt:time() < 1700000000.124 end",
    );
    let packet = |time_ns| ScriptPacket {
        time_ns,
        ..packet(&[])
    };
    let (exact, next) = (
        packet(1_700_000_000_123_456_789),
        packet(1_700_000_000_123_456_790),
    );
    assert_eq!(trigger.match_many(&[exact, next, exact]), 0b101);
}

#[test]
fn a_batch_is_seen_packet_by_packet_and_in_order() {
    let mut trigger = trigger(
        "local last = -1 return function(pkt) local n = pkt:u16(36) local next = n == last + 1 last = n return next and n % 3 == 0 end",
    );
    let frames: Vec<Vec<u8>> = (0..640).map(|port| udp(port, b"")).collect();
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    let mut found = Vec::new();
    let mut from = 0;
    for size in [1, 64, 7, 64, 64, 33, 1, 64, 64, 64, 64, 64, 64, 22] {
        let bits = trigger.match_many(&packets[from..from + size]);
        found.extend((0..size).filter(|n| bits >> n & 1 == 1).map(|n| n + from));
        from += size;
    }
    assert_eq!(from, 640);
    assert_eq!(found, (0..640).step_by(3).collect::<Vec<_>>());
}

/// UDP over IPv6 over Ethernet.
fn v6() -> Vec<u8> {
    let mut frame = vec![0; 62];
    frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
    (frame[19], frame[20]) = (12, 17);
    (frame[22], frame[37], frame[53]) = (0xfe, 1, 2);
    frame[54..62].copy_from_slice(&[0, 53, 200, 1, 0, 12, 0, 0]);
    frame.extend_from_slice(b"body and padding");
    frame
}

fn tagged() -> Vec<u8> {
    let mut frame = udp(60_000, b"tagged");
    frame.splice(12..12, [0x81, 0, 0x20, 100]);
    frame
}

#[test]
fn link_types_without_headers_known_have_bytes_only() {
    let mut trigger = trigger(
        "return function(pkt) return pkt:u8(0) == 7 and pkt:ip() == nil and pkt:payload() == nil and not pkt:contains('') end",
    );
    let unknown = ScriptPacket {
        link_type: LinkType(147),
        ..packet(&[7; 60])
    };
    assert_eq!(trigger.match_many(&[unknown, packet(&[7; 60])]), 0b01);
}
