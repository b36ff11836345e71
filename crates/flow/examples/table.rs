//! What a packet costs in the table, in a hash map of `std`, and what reading memory at random costs on the same machine.
//!
//! `cargo run --release -p retroscope-flow --example table [-- FLOWS…]`: packets of random flows, which all are there, with expiry on;
//! the three in turn, medians of five.
#![allow(clippy::print_stdout, reason = "it is what an example is for")]

use std::collections::HashMap;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Instant;

use retroscope_flow::{Ends, FlowTable, Key, Packet, Secret, TimeOuts};
use retroscope_packet::{Endpoint, FlowKey, proto::UDP};

const PACKETS: u32 = 8_000_000;
const ROUNDS: usize = 5;
const BATCH: usize = 64;
/// A million packets a second.
const GAP_NS: i64 = 1000;

/// What the table keeps of a flow takes two cache lines.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(128))]
struct Lines([u64; 16]);

fn key(flow: u32) -> Key {
    let end = |addr, port| Endpoint {
        addr: Ipv4Addr::from_bits(addr).into(),
        port,
    };
    Key::from(FlowKey::Ports {
        proto: UDP,
        low: end(0x0a00_0000 + flow, 4000),
        high: end(0xc0a8_0001, 53),
    })
}

/// Packets of random flows, in batches. Which they are is told before the time is taken.
fn batches(flows: u32, seed: u64, mut take: impl FnMut(&[Packet])) -> f64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut batch = Vec::with_capacity(64 * BATCH);
    let (mut time_ns, mut seconds) = (0, 0.0);
    for _ in 0..PACKETS as usize / batch.capacity() {
        batch.clear();
        batch.extend((0..64 * BATCH).map(|_| {
            time_ns += GAP_NS;
            let ends = Ends {
                key: key(random.u32(0..flows)),
                is_reverse: random.bool(),
            };
            Packet::new(ends, time_ns, 100, None)
        }));
        let start = Instant::now();
        batch.chunks(BATCH).for_each(&mut take);
        seconds += start.elapsed().as_secs_f64();
    }
    seconds * 1e9 / f64::from(PACKETS)
}

fn table(flows: u32) -> f64 {
    let mut table = FlowTable::new(flows as usize, TimeOuts::default(), Secret::random());
    let all: Vec<_> = (0..flows)
        .map(|flow| {
            let (key, is_reverse) = (key(flow), false);
            Packet::new(Ends { key, is_reverse }, 0, 100, None)
        })
        .collect();
    table.update(&all, |_, _| {});
    drop(all);
    let mut ended = 0;
    let time = batches(flows, 1, |batch| {
        table.update(batch, |_, _| ended += 1);
        if let Some(last) = batch.last() {
            table.expire(last.time_ns, |_, _| ended += 1);
        }
    });
    black_box(ended);
    time
}

fn map(flows: u32) -> f64 {
    let mut map: HashMap<Key, Lines> = (0..flows)
        .map(|flow| (key(flow), Lines::default()))
        .collect();
    batches(flows, 1, |batch| {
        for packet in batch {
            let Lines(counts) = map.entry(packet.ends.key).or_default();
            counts[0] = packet.time_ns.cast_unsigned();
            counts[1] += 1;
            counts[2] += u64::from(packet.wire_len);
        }
    })
}

/// Reads and writes a line at random, each access independent of the one before.
fn memory(flows: u32) -> f64 {
    let mut lines = vec![Lines([1; 16]); flows as usize];
    let mut random = fastrand::Rng::with_seed(3);
    let start = Instant::now();
    for _ in 0..PACKETS {
        lines[random.u32(0..flows) as usize].0[0] += 1;
    }
    let time = start.elapsed().as_secs_f64() * 1e9 / f64::from(PACKETS);
    black_box(&lines);
    time
}

fn main() {
    let mut counts: Vec<u32> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    if counts.is_empty() {
        counts = vec![1_000, 100_000, 1_000_000];
    }
    println!("flows     table ns   std map ns   random access ns");
    for count in counts {
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            times[0].push(table(count));
            times[1].push(map(count));
            times[2].push(memory(count));
        }
        let [table, map, memory] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        println!("{count:>8} {table:>9.1} {map:>12.1} {memory:>18.1}");
    }
}
