//! ns per packet of some trigger scripts, in batches of 64 packets that stay in the cache.
//!
//! `cargo run --release -p retroscope-script --example script_throughput`
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Instant;

use retroscope_packet::LinkType;
use retroscope_script::{Limits, MANY, Machine, Packet, Script, ScriptError, compiles};

const SCRIPTS: [(&str, &str); 7] = [
    ("nothing", "return function(pkt) return false end"),
    (
        "port",
        "return function(pkt) return pkt:is_udp() and pkt:has_port(60000) end",
    ),
    (
        "two ports",
        "return function(pkt) return pkt:src_port() == 60000 or pkt:dst_port() == 60000 end",
    ),
    (
        "bytes",
        "return function(pkt) return pkt:u16(12) == 0x800 and pkt:u8(23) == 17 and pkt:u16(36) == 60000 end",
    ),
    (
        "net",
        "local n = net('10.3.0.0/16') return function(pkt) return pkt:host(n) end",
    ),
    (
        "startswith",
        "return function(pkt) return pkt:is_udp() and pkt:startswith('EXAMPLE') end",
    ),
    (
        "contains",
        "return function(pkt) return pkt:is_udp() and pkt:contains('EXAMPLE') end",
    ),
];

/// UDP and TCP over IPv4 between many hosts and ports, 64 bytes; two of 1024 to port 60000 with `EXAMPLE`.
fn frames() -> Vec<Vec<u8>> {
    let frame = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let mut frame = vec![0; 64];
        frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 50]);
        frame[23] = if n.is_multiple_of(4) { 6 } else { 17 };
        frame[26..34].copy_from_slice(&[10, 0, high, low, 10, 0, 0, 2]);
        frame[34..40].copy_from_slice(&[4, low, high, low, 0, 30]);
        frame[46] = 0x50;
        if n % 512 == 77 {
            frame[36..38].copy_from_slice(&60_000_u16.to_be_bytes());
            frame[42..49].copy_from_slice(b"EXAMPLE");
        }
        frame
    };
    (0..1024).map(frame).collect()
}

fn main() -> Result<(), ScriptError> {
    println!("compiled: {}", compiles());
    let frames = frames();
    let packet = |data| Packet {
        data,
        wire_len: 64,
        time_ns: 0,
        interface: 0,
        link_type: LinkType::ETHERNET,
        direction: 0,
    };
    let packets: Vec<Packet<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    for (name, text) in SCRIPTS {
        let mut trigger = Machine::new(&Script::new(name, text, false), Limits::default())?;
        let mut rounds: Vec<f64> = (0..21)
            .map(|_| {
                let start = Instant::now();
                let mut found = 0;
                for _ in 0..50 {
                    for some in packets.chunks(MANY) {
                        found += trigger.match_many(some).count_ones();
                    }
                }
                assert!(found == 0 || found == 100, "{name}: {found}");
                start.elapsed().as_secs_f64() * 1e9 / (50.0 * 1024.0)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        let (min, median, max) = (rounds[0], rounds[10], rounds[20]);
        println!("{name:11} {median:5.1} ns a packet ({min:.1} to {max:.1})");
    }
    Ok(())
}
