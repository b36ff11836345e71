//! Measures the ns per packet of some trigger scripts, in batches of 64 packets that stay in the
//! cache. Also measures a flow table alone, a module that does nothing, and a module that counts,
//! which both have a flow table. These three take turns, with 1,024 flows and with a million.
//!
//! `cargo run --release -p retroscope-script --example script_throughput`
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Instant;

use retroscope_flow::{Attribution, FlowTable, Secret, TrackerConfig};
use retroscope_packet::LinkType;
use retroscope_script::{
    LuaModule, MANY, Machine, Runner, Script, ScriptError, ScriptLimits, ScriptPacket, compiles,
};

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

/// 1024 frames of 64 bytes: UDP and TCP over IPv4 from many hosts and ports to one host. Two of the
/// frames go to port 60000 with `EXAMPLE`.
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
    let packet = |data| ScriptPacket {
        data,
        wire_len: 64,
        time_ns: 0,
        interface: 0,
        link_type: LinkType::ETHERNET,
        direction: 0,
    };
    let packets: Vec<ScriptPacket<'_>> = frames.iter().map(|frame| packet(frame)).collect();
    for (name, text) in SCRIPTS {
        let mut trigger = Machine::new(&Script::new(name, text, false), ScriptLimits::default())?;
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
        tell(name, &mut rounds);
    }
    modules(&packets)
}

fn tell(name: &str, rounds: &mut [f64]) {
    rounds.sort_by(f64::total_cmp);
    let (min, median, max) = (
        rounds[0],
        rounds[rounds.len() / 2],
        rounds[rounds.len() - 1],
    );
    println!("{name:11} {median:5.1} ns a packet ({min:.1} to {max:.1})");
}

const MODULES: [(&str, &str); 2] = [
    (
        "no-op",
        "return { handlePacket = function() return false end }",
    ),
    (
        "count",
        "return {
            stateType = 'uint64_t packets, bytes;',
            handlePacket = function(key, state, pkt)
                state.packets, state.bytes = state.packets + 1, state.bytes + pkt:wire_len()
                return false
            end,
        }",
    ),
];

/// One of the compared ways to count the flows of packets.
type Way<'w> = Box<dyn FnMut(&[ScriptPacket<'_>]) + 'w>;

fn modules(packets: &[ScriptPacket<'_>]) -> Result<(), ScriptError> {
    let config = TrackerConfig {
        flows_max: 2_000_000,
        ..TrackerConfig::default()
    };
    // One frame of 64 bytes for each of a million flows, in an order that no prefetcher predicts.
    let mut random = fastrand::Rng::with_seed(1);
    let frames: Vec<_> = (0..1 << 20)
        .map(|n: u32| {
            let mut frame = packets[0].data.to_vec();
            frame[26..30].copy_from_slice(&n.to_be_bytes());
            frame
        })
        .collect();
    let mut many: Vec<_> = frames
        .iter()
        .map(|data| ScriptPacket { data, ..packets[0] })
        .collect();
    random.shuffle(&mut many);
    for (name, packets, rounds) in [("1,024 flows", packets, 500), ("1,048,576 flows", &many, 1)] {
        let table = || {
            let mut attribution = Attribution::new(config.has_vlans, config.joins_fragments);
            let mut table = FlowTable::new(config.flows_max, config.time_outs, Secret::random());
            let mut counted = Vec::new();
            move |packets: &[ScriptPacket<'_>]| {
                counted.clear();
                counted.extend(packets.iter().filter_map(|packet| {
                    attribution.frame(
                        packet.link_type,
                        packet.data,
                        packet.time_ns,
                        packet.wire_len,
                    )
                }));
                table.update(&counted, |_, _| {});
            }
        };
        let mut ways: Vec<(&str, Way<'_>)> = vec![("table", Box::new(table()))];
        for (name, text) in MODULES {
            let script = Script::new(name, text, false);
            let module = LuaModule::new(&script, ScriptLimits::default())?;
            let mut runner = Runner::new(module, &config);
            let way = move |packets: &[ScriptPacket<'_>]| {
                runner.handle_packets(packets, &[0; MANY][..packets.len()], &mut Vec::new());
                assert_eq!(runner.counts().faults, 0);
            };
            ways.push((name, Box::new(way)));
        }
        println!("{name}");
        let mut times = vec![Vec::new(); ways.len()];
        for round in 0..12 {
            for ((_, way), times) in ways.iter_mut().zip(&mut times) {
                let start = Instant::now();
                for _ in 0..rounds {
                    packets.chunks(MANY).for_each(&mut *way);
                }
                let count = rounds * packets.len();
                #[expect(clippy::cast_precision_loss, reason = "a count below 2^52")]
                // The first round does not count: flows begin, and LuaJIT compiles.
                if round > 0 {
                    times.push(start.elapsed().as_secs_f64() * 1e9 / count as f64);
                }
            }
        }
        for ((name, _), times) in ways.iter().zip(&mut times) {
            tell(name, times);
        }
    }
    Ok(())
}
