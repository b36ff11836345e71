//! The cost of a packet in the flow table.
//!
//! The limit is memory: independent accesses to random cache lines, in as much memory as the table
//! uses for its flows, in huge pages if available. A packet needs one line of the index and two
//! lines of its flow, so the same accesses without any work are measured too. The opponent:
//! [DashMap](https://docs.rs/dashmap) with the same hash, and a heap of time-outs. As in our table,
//! a flow whose time is up goes back into the heap if it had packets since. DashMap keeps less of a
//! flow: times and counts.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    hash::{BuildHasherDefault, Hash, Hasher},
    hint::black_box,
    time::Instant,
};

use dashmap::{DashMap, Entry};
use retroscope_flow::{BiflowKey, FlowPacket, FlowTable, Secret, TimeOuts};
use retroscope_ring::ask_for_huge_pages;

use super::traffic::FlowLoad;
use crate::{
    measure::{Entrant, Failure, Heat, check_count},
    session::Session,
};

/// Packets or accesses of a batch. A batch is generated before the clock starts.
const AT_ONCE: usize = 1024;
/// Packets whose lines are read together before the first of these lines is changed, as the table
/// looks up 64 packets together.
const TOGETHER: usize = 64;
/// Spare capacity of the table: one sixteenth of the flows.
const SPARE: u32 = 16;

/// All entrants on one thread, millions of packets or accesses a second.
pub(super) fn heat(session: &Session, flows: u32) -> Result<Heat<'_>, Failure> {
    let load = FlowLoad {
        flows,
        packets_per_flow: 1024,
        seconds: 60,
    };
    let flows_max = (flows + flows / SPARE) as usize;
    let time_outs = TimeOuts::idle(load.time_out_ns());
    let mut table: FlowTable =
        FlowTable::with_advice(flows_max, time_outs, Secret::random(), ask_for_huge_pages);
    let mut map = Mapped::new(flows_max, load.time_out_ns());
    let mut counted = 0;
    let table = packets("table", session, load, move |packets| {
        let mut ended = 0;
        table.update(packets, |_, _| ended += 1);
        if let Some(last) = packets.last() {
            table.expire(last.time_ns, |_, _| ended += 1);
        }
        counted += packets.len() as u64;
        check_count(counted, table.counters().packets)?;
        black_box(ended);
        Ok(table.len())
    })?;
    let map = packets("dashmap", session, load, move |packets| {
        packets.iter().for_each(|packet| map.count(packet));
        if let Some(last) = packets.last() {
            map.expire(last.time_ns);
        }
        Ok(map.flows.len())
    })?;
    Ok(session.heat(
        "flow table",
        vec![
            table,
            map,
            accesses("random access", session, flows_max, &[0]),
            accesses("three lines", session, flows_max, &[0, 1, 1]),
        ],
    ))
}

/// An entrant that counts packets. `count` returns the number of flows.
fn packets<'a>(
    name: &str,
    session: &Session,
    load: FlowLoad,
    mut count: impl FnMut(&[FlowPacket]) -> Result<usize, Failure> + 'a,
) -> Result<Entrant<'a>, Failure> {
    let mut batch = Vec::with_capacity(AT_ONCE);
    let mut first = load.first().peekable();
    while first.peek().is_some() {
        batch.clear();
        batch.extend(first.by_ref().take(AT_ONCE));
        count(&batch)?;
    }
    let mut packets = load.packets();
    let run = move |much: u64| {
        let (mut seconds, mut flows) = (0.0, 0);
        for _ in 0..much {
            batch.clear();
            batch.extend(packets.by_ref().take(AT_ONCE));
            let start = Instant::now();
            flows = count(&batch)?;
            seconds += start.elapsed().as_secs_f64();
        }
        let share = flows as f64 / f64::from(load.flows);
        if !(0.9..1.1).contains(&share) {
            let why = format!("{flows} flows instead of {}", load.flows);
            return Err(Failure::Wrong(why));
        }
        let per_second = much as f64 / seconds;
        Ok((per_second * AT_ONCE as f64 / 1e6, per_second))
    };
    Ok(Entrant::paced(name, session.scale.seconds, 1, run))
}

/// An entrant that increments a byte in cache lines of the session's memory, in as much memory as
/// the table uses for its flows. `lines` names, for each line of a packet, its random place; lines
/// of the same place follow each other.
fn accesses<'a>(
    name: &str,
    session: &'a Session,
    flows_max: usize,
    lines: &'static [usize],
) -> Entrant<'a> {
    const LINE: usize = 64;
    let mut random = fastrand::Rng::with_seed(3);
    Entrant::paced(name, session.scale.seconds, 1, move |much| {
        let mut memory = session.memory.borrow_mut();
        let bytes = memory.bytes_mut();
        let count = (flows_max * size_of::<retroscope_flow::Flow>()).min(bytes.len()) / LINE;
        let mut seconds = 0.0;
        let mut places = Vec::with_capacity(AT_ONCE * lines.len());
        for _ in 0..much {
            places.clear();
            for _ in 0..AT_ONCE {
                let mut last = (usize::MAX, 0);
                for &place in lines {
                    let line = if last.0 == place {
                        last.1 + 1
                    } else {
                        random.usize(0..count - lines.len())
                    };
                    last = (place, line);
                    places.push(line * LINE);
                }
            }
            let start = Instant::now();
            for places in places.chunks(TOGETHER * lines.len()) {
                let read = places.iter().fold(0, |sum, at| sum ^ bytes[*at]);
                black_box(read);
                for at in places {
                    bytes[*at] = bytes[*at].wrapping_add(1);
                }
            }
            seconds += start.elapsed().as_secs_f64();
        }
        let per_second = much as f64 / seconds;
        Ok((per_second * AT_ONCE as f64 / 1e6, per_second))
    })
}

/// A key with its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hashed {
    hash: u64,
    key: BiflowKey,
}

impl Hashed {
    pub(super) fn new(secret: &Secret, key: &BiflowKey) -> Self {
        let hash = secret.hash(key);
        Self { hash, key: *key }
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

impl Hash for Hashed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A hasher that returns its input number.
#[derive(Debug, Default)]
pub(super) struct Through(u64);

impl Hasher for Through {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is hashed before");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The data of a flow in the map. Arrays are by direction.
#[derive(Debug, Clone, Copy)]
struct Counts {
    first_ns: i64,
    last_ns: i64,
    packets: [u64; 2],
    bytes: [u64; 2],
}

/// When a flow of the map is checked.
#[derive(Debug, PartialEq, Eq)]
struct Due {
    time_ns: i64,
    flow: Hashed,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.time_ns.cmp(&other.time_ns)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The flows in a DashMap.
struct Mapped {
    secret: Secret,
    time_out_ns: i64,
    flows: DashMap<Hashed, Counts, BuildHasherDefault<Through>>,
    due: BinaryHeap<Reverse<Due>>,
}

impl Mapped {
    fn new(flows_max: usize, time_out_ns: i64) -> Self {
        Self {
            secret: Secret::random(),
            time_out_ns,
            flows: DashMap::with_capacity_and_hasher(flows_max, BuildHasherDefault::default()),
            due: BinaryHeap::with_capacity(flows_max),
        }
    }

    fn count(&mut self, packet: &FlowPacket) {
        let key = packet.ends.key;
        let hash = self.secret.hash(&key);
        let flow = Hashed { hash, key };
        let mut counts = match self.flows.entry(flow) {
            Entry::Occupied(entry) => entry.into_ref(),
            Entry::Vacant(entry) => {
                let time_ns = packet.time_ns + self.time_out_ns;
                self.due.push(Reverse(Due { time_ns, flow }));
                entry.insert(Counts {
                    first_ns: packet.time_ns,
                    last_ns: packet.time_ns,
                    packets: [0; 2],
                    bytes: [0; 2],
                })
            }
        };
        let from = usize::from(packet.ends.is_reverse);
        counts.first_ns = counts.first_ns.min(packet.time_ns);
        counts.last_ns = counts.last_ns.max(packet.time_ns);
        counts.packets[from] += 1;
        counts.bytes[from] += u64::from(packet.wire_len);
    }

    fn expire(&mut self, now_ns: i64) {
        while let Some(Reverse(due)) = self.due.peek()
            && due.time_ns <= now_ns
            && let Some(Reverse(Due { flow, .. })) = self.due.pop()
        {
            let last_ns = self.flows.get(&flow).map(|counts| counts.last_ns);
            match last_ns.map(|last_ns| last_ns + self.time_out_ns) {
                Some(time_ns) if time_ns > now_ns => self.due.push(Reverse(Due { time_ns, flow })),
                _ => drop(self.flows.remove(&flow)),
            }
        }
    }
}
