//! The LFN table: its speed against sharded maps with locks, and its error rates against the
//! formulas of its paper.
//!
//! R-Scope paper, section 2.4 and figure 10. All tables use the same keyed hash function. The
//! threads mostly search for flows that were put before.

use std::{
    collections::HashMap,
    hash::BuildHasherDefault,
    io,
    net::Ipv4Addr,
    sync::{Barrier, Mutex, PoisonError},
    thread,
    time::Instant,
};

use dashmap::DashMap;
use retroscope_flow::{BiflowKey, LfnTable, Secret};
use retroscope_packet::{FlowEndpoint, FlowKey, proto::TCP};
use retroscope_ring::ask_for_huge_pages;

use super::table::{Hashed, Through};
use crate::{
    measure::{Entrant, Failure, Heat, Spread},
    session::Session,
};

/// Cells of the table, as in the live recorder.
const CELLS: usize = 1 << 20;
/// One operation of this many is a put.
const PUTS: usize = 20;
/// Number of shards of the maps with mutexes.
const SHARDS: usize = 64;
/// Minimum number of operations of a run, all threads together: enough that the threads share the
/// table for most of the time, although one thread ends first.
const AT_ONCE: u64 = 1 << 22;

/// A table that threads share.
trait Table: Sync {
    fn put(&self, key: &BiflowKey, value: u64);
    fn get(&self, key: &BiflowKey) -> Option<u64>;
}

impl Table for LfnTable {
    fn put(&self, key: &BiflowKey, value: u64) {
        self.put(key, value);
    }

    fn get(&self, key: &BiflowKey) -> Option<u64> {
        self.get(key)
    }
}

/// DashMap, whose shards have one read-write lock each.
struct Dash(Secret, DashMap<Hashed, u64, BuildHasherDefault<Through>>);

impl Table for Dash {
    fn put(&self, key: &BiflowKey, value: u64) {
        self.1.insert(Hashed::new(&self.0, key), value);
    }

    fn get(&self, key: &BiflowKey) -> Option<u64> {
        self.1.get(&Hashed::new(&self.0, key)).map(|value| *value)
    }
}

/// The map of a shard.
type Shard = HashMap<Hashed, u64, BuildHasherDefault<Through>>;

/// Maps of the standard library, with one mutex each.
struct Sharded(Secret, Vec<Mutex<Shard>>);

impl Sharded {
    fn with<R>(&self, key: &BiflowKey, act: impl FnOnce(&mut Shard, Hashed) -> R) -> R {
        let hashed = Hashed::new(&self.0, key);
        let shard = &self.1[usize::try_from(hashed.hash() >> 32).unwrap_or(0) % SHARDS];
        act(
            &mut shard.lock().unwrap_or_else(PoisonError::into_inner),
            hashed,
        )
    }
}

impl Table for Sharded {
    fn put(&self, key: &BiflowKey, value: u64) {
        self.with(key, |shard, hashed| shard.insert(hashed, value));
    }

    fn get(&self, key: &BiflowKey) -> Option<u64> {
        self.with(key, |shard, hashed| shard.get(&hashed).copied())
    }
}

/// TCP between a host of a network and a server.
fn key(flow: u32) -> BiflowKey {
    let end = |addr: u32, port| FlowEndpoint {
        addr: Ipv4Addr::from_bits(addr).into(),
        port,
    };
    BiflowKey::from(FlowKey::Ports {
        proto: TCP,
        low: end(0x0a00_0000 + flow, 40_000),
        high: end(0xc000_0201, 443),
    })
}

/// Our table and two alternatives, with `flows` flows, on `threads` threads: millions of operations
/// a second, all threads together.
fn heat(session: &Session, flows: u32, threads: usize) -> Heat<'_> {
    let keys: Vec<BiflowKey> = (0..flows).map(key).collect();
    let sharded = (0..SHARDS).map(|_| Mutex::default()).collect();
    let tables: [(&str, LookupRun); 3] = [
        (
            "lfn",
            running(
                LfnTable::<64>::with_advice(CELLS, Secret::random(), ask_for_huge_pages),
                &keys,
                threads,
            ),
        ),
        (
            "dashmap",
            running(Dash(Secret::random(), DashMap::default()), &keys, threads),
        ),
        (
            "mutexes",
            running(Sharded(Secret::random(), sharded), &keys, threads),
        ),
    ];
    let entrants = tables.into_iter().map(|(name, run)| {
        Entrant::paced(name, session.scale.seconds, AT_ONCE, move |operations| {
            let per_second = run(operations / threads as u64)?;
            Ok((per_second / 1e6, per_second))
        })
    });
    session.heat(
        &format!("shared tables, {flows} flows, {threads} threads"),
        entrants.collect(),
    )
}

/// Makes a given number of operations per thread, and returns the operations a second.
type LookupRun = Box<dyn Fn(u64) -> Result<f64, Failure>>;

/// Fills a table, and returns a run on this table.
fn running(table: impl Table + 'static, keys: &[BiflowKey], threads: usize) -> LookupRun {
    let keys = keys.to_vec();
    for (flow, key) in (0..).zip(&keys) {
        table.put(key, flow << 32);
    }
    Box::new(move |operations| {
        let all_are_there = Barrier::new(threads);
        let operate = |thread: u64| {
            // As in traffic: the next packet is in the cache, and its flow is anywhere in the
            // table.
            let mut order: Vec<(u32, BiflowKey)> = (0..).zip(keys.iter().copied()).collect();
            fastrand::Rng::with_seed(thread).shuffle(&mut order);
            let (mut missed, mut wrong) = (0, 0);
            // The table dominates: everything else in an operation takes 0.2 ns.
            let mut turns = order.chunks_exact(PUTS).cycle();
            all_are_there.wait();
            let start = Instant::now();
            for number in 0..operations / PUTS as u64 {
                let Some([(flow, key), others @ ..]) = turns.next() else {
                    break;
                };
                table.put(key, u64::from(*flow) << 32 | number);
                for (flow, key) in others {
                    match table.get(key) {
                        None => missed += 1,
                        Some(value) => wrong += u64::from(value >> 32 != u64::from(*flow)),
                    }
                }
            }
            (missed, wrong, start.elapsed().as_secs_f64())
        };
        let found: Vec<(u64, u64, f64)> = thread::scope(|scope| {
            let operate = &operate;
            let spawn = |thread| scope.spawn(move || operate(thread));
            let running: Vec<_> = (0..threads as u64).map(spawn).collect();
            let joined = running.into_iter().map(thread::ScopedJoinHandle::join);
            joined.collect::<Result<_, _>>().map_err(Failure::panicked)
        })?;
        let all = operations * threads as u64;
        let sum = |of: fn(&(u64, u64, f64)) -> u64| found.iter().map(of).sum::<u64>();
        let (missed, wrong) = (sum(|it| it.0), sum(|it| it.1));
        let seconds = found.iter().map(|it| it.2).fold(0.0, f64::max);
        // The limit of missed keys is about twice the rate of the formula in `errors`.
        if wrong > 0 || missed as f64 > all as f64 * keys.len() as f64 / CELLS as f64 {
            let why = format!("{wrong} values of other flows, {missed} of {all} not found");
            return Err(Failure::Wrong(why));
        }
        Ok(all as f64 / seconds)
    })
}

/// The judged rows, with flows in about a hundredth and about a tenth of the cells, and the first
/// row also with one thread.
pub(super) fn judged(session: &Session) -> io::Result<()> {
    for (name, flows, threads) in [
        ("flow/lfn/vs-sharded-map", 10_000, 2),
        ("flow/lfn/vs-sharded-map-100k", 100_000, 2),
        ("flow/lfn/vs-sharded-map-1-thread", 10_000, 1),
    ] {
        session.row(
            name,
            Some("the faster one of DashMap and 64 maps with a mutex each"),
            || {
                let heat = heat(session, flows, threads);
                heat.ratio("lfn", heat.best(&["dashmap", "mutexes"])?)
            },
        )?;
    }
    Ok(())
}

/// The rows of figure 10 of R-Scope, in percent: keys that are not found, and keys that are found
/// with the value of another key. For values of another key, the tables have hashes short enough
/// for measurable rates.
pub(crate) fn errors(session: &Session) -> io::Result<()> {
    for load in [1, 2, 5, 10, 20, 50] {
        let name = |of: &str| format!("flow/lfn/{of}/{load}pc");
        let formula = |possible: usize| 100.0 * (keys_of(load) - 1) as f64 / (2 * possible) as f64;
        for (of, are_living) in [("measured", false), ("living", true)] {
            let negatives = name(&format!("negatives/{of}"));
            session.row(&negatives, None, || {
                session.alone(&negatives, || {
                    Ok(part::<64>(load, are_living, |found, _| found.is_none()))
                })
            })?;
            let positives = name(&format!("positives/{of}"));
            session.row(&positives, None, || {
                session.alone(&positives, || {
                    Ok(part::<SHORT>(load, are_living, |found, put| {
                        found.is_some_and(|value| value != put)
                    }))
                })
            })?;
        }
        for (of, possible) in [
            ("negatives/formula", SMALL),
            ("positives/formula-l", 1 << SHORT),
        ] {
            session.row(&name(of), None, || Ok(Spread::once(formula(possible))))?;
        }
    }
    Ok(())
}

/// Cells of the tables of figure 10.
const SMALL: usize = 1 << 16;
/// Bits of short hashes: four possible hashes for each cell.
const SHORT: u32 = 18;
/// Number of tables that each repetition of a point measures.
const TABLES: u64 = 16;

fn keys_of(load: usize) -> u64 {
    (SMALL * load / 100) as u64
}

/// The percentage of looked-up keys whose result satisfies `is_such`, called with the result and
/// the put value. The number of looked-up keys is `load` percent of the cells. With `are_living`,
/// nine times as many other keys are put before these keys, and are not looked up.
fn part<const HASH_BITS: u32>(
    load: usize,
    are_living: bool,
    is_such: fn(Option<u64>, u64) -> bool,
) -> f64 {
    let count = keys_of(load);
    let first = if are_living { 9 * count } else { 0 };
    let key = |number: u64| BiflowKey::opaque(0, &number.to_ne_bytes());
    let found = |_| {
        let table = LfnTable::<HASH_BITS>::new(SMALL, Secret::random());
        (0..first + count).for_each(|number| table.put(&key(number), number));
        let is_such = |number: &u64| is_such(table.get(&key(*number)), *number);
        (first..first + count).filter(is_such).count()
    };
    let found: usize = (0..TABLES).map(found).sum();
    100.0 * found as f64 / (TABLES * count) as f64
}
