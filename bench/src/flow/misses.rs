//! How often the flow path misses the caches with either queue of time-outs, after figure 11 of
//! R-Scope (Ros-Giralt et al. 2018).
//!
//! valgrind's cachegrind runs this program with caches of [`CACHES`], so the figures do not depend
//! on the machine's caches. A run without packets measures the setup of the table and its first
//! flows. The misses of this run are subtracted.

use std::{cmp::Reverse, collections::BinaryHeap, env, hint::black_box, io, process::Command};

use retroscope_flow::{FlowTable, MultiresolutionQueue, Secret, TimeOuts, TimerEntry, Timers};

use super::traffic::FlowLoad;
use crate::{
    measure::{Failure, Spread, check_count},
    session::Session,
};

/// First level and last level: bytes, ways, bytes of a line.
const CACHES: [&str; 2] = ["--D1=32768,8,64", "--LL=33554432,16,64"];
/// A million flows, half of which get no more packets; one packet of eight begins a flow.
const LOAD: FlowLoad = FlowLoad {
    flows: 1 << 20,
    packets_per_flow: 8,
    seconds: 4,
};
/// Packets for which misses are counted.
const PACKETS: u64 = 1 << 20;
/// Packets of one batch.
const AT_ONCE: usize = 64;

/// `flow/misses/…`: misses of the first level and of the last level.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    for queue in ["heap", "mrpq"] {
        let names = ["d1", "ll"].map(|level| format!("flow/misses/{queue}/{level}"));
        if !names.iter().any(|name| session.wants(name)) {
            continue;
        }
        crate::say(&format!("{}: under valgrind", names[0]));
        let misses = misses(queue);
        for (at, name) in names.iter().enumerate() {
            let figure = misses.clone().map(|misses| Spread::once(misses[at]));
            session.row(name, None, || figure)?;
        }
    }
    Ok(())
}

/// Misses per packet of both levels.
fn misses(queue: &str) -> Result<[f64; 2], Failure> {
    let (with, without) = (counted(queue, PACKETS)?, counted(queue, 0)?);
    Ok([0, 1].map(|level| with[level].saturating_sub(without[level]) as f64 / PACKETS as f64))
}

/// Misses of a run with this many packets.
fn counted(queue: &str, packets: u64) -> Result<[u64; 2], Failure> {
    let program = env::current_exe().map_err(|error| Failure::system("own path", error))?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=yes"]);
    valgrind.args(CACHES);
    valgrind.arg("--cachegrind-out-file=/dev/null").arg(program);
    valgrind.args(["flow-path", "--out", ".", "--timers", queue, "--packets"]);
    let output = valgrind.arg(packets.to_string()).output();
    let output = match output {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let why = "valgrind is not installed (apt-get install valgrind)";
            return Err(Failure::CannotRun(why.to_owned()));
        }
        output => output.map_err(|error| Failure::system("valgrind", error))?,
    };
    let text = String::from_utf8_lossy(&output.stderr);
    let count = |name| told(&text, name);
    match (count("D1  misses:"), count("LLd misses:")) {
        (Some(d1), Some(ll)) if output.status.success() => Ok([d1, ll]),
        _ => Err(Failure::Wrong(format!("valgrind said: {text}"))),
    }
}

/// The first number after a name: `==12== D1  misses:  1,234  (…)`.
fn told(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.split_once(name)?;
    let number = rest.split_whitespace().next()?;
    number.replace(',', "").parse().ok()
}

/// The program that runs under valgrind: a table's first flows, and then `packets` packets.
/// `queue`: `heap` for a binary heap, any other text for our queue.
///
/// # Errors
/// [`Failure::Count`]: a packet was not counted.
pub fn flow_path(queue: &str, packets: u64) -> Result<(), Failure> {
    match queue {
        "heap" => run::<Heap>(packets),
        _ => run::<MultiresolutionQueue>(packets),
    }
}

fn run<Q: Timers>(packets: u64) -> Result<(), Failure> {
    let time_outs = TimeOuts::idle(LOAD.time_out_ns());
    let flows_max = (LOAD.flows + LOAD.flows / 16) as usize;
    // Fixed words, so that each run has the same hashes.
    let secret = Secret::from_words(|n| fastrand::Rng::with_seed(n as u64).u64(..));
    let mut table = FlowTable::<Q>::with_advice(flows_max, time_outs, secret, |_| {});
    let mut ended = 0;
    let mut all = LOAD.first().chain(LOAD.packets());
    let mut left = u64::from(LOAD.flows) + packets;
    let mut batch = Vec::with_capacity(AT_ONCE);
    while left > 0 {
        batch.clear();
        batch.extend(
            all.by_ref()
                .take(AT_ONCE.min(usize::try_from(left).unwrap_or(AT_ONCE))),
        );
        left -= batch.len() as u64;
        table.update(&batch, |_, _| ended += 1);
        if let Some(last) = batch.last() {
            table.expire(last.time_ns, |_, _| ended += 1);
        }
    }
    black_box(ended);
    check_count(u64::from(LOAD.flows) + packets, table.counters().packets)
}

/// Time-outs in a binary heap.
struct Heap(BinaryHeap<Reverse<(u64, u32)>>);

impl Timers for Heap {
    fn empty() -> Self {
        Self(BinaryHeap::new())
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn insert(&mut self, TimerEntry { stamp, item }: TimerEntry) {
        self.0.push(Reverse((stamp, item)));
    }

    fn extract_due(&mut self, now: u64) -> Option<TimerEntry> {
        self.0.peek().filter(|Reverse((stamp, _))| *stamp <= now)?;
        self.extract_early()
    }

    fn extract_early(&mut self) -> Option<TimerEntry> {
        let Reverse((stamp, item)) = self.0.pop()?;
        Some(TimerEntry { stamp, item })
    }

    fn advance(&mut self, _: u64) {}

    fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_queues_end_the_same_flows() {
        fn table<Q: Timers>() -> retroscope_flow::FlowTableCounters {
            let load = FlowLoad {
                flows: 1 << 10,
                ..LOAD
            };
            let time_outs = TimeOuts::idle(load.time_out_ns());
            let secret = Secret::from_words(|n| n as u64 + 1);
            let mut table = FlowTable::<Q>::with_advice(1 << 12, time_outs, secret, |_| {});
            for packet in load.first().chain(load.packets().take(20_000)) {
                table.update(&[packet], |_, _| {});
                table.expire(packet.time_ns, |_, _| {});
            }
            table.finish(|_, _| {});
            table.counters()
        }
        let ours = table::<MultiresolutionQueue>();
        assert!(ours.timed_out > 1 << 10, "{ours:?}");
        assert_eq!(table::<Heap>().begun, ours.begun);
    }

    #[test]
    fn what_valgrind_tells_is_found() {
        let text =
            "==7== D   refs:      9,1 (8 rd)\n==7== D1  misses:     65,028  (5 rd   + 1 wr)\n";
        assert_eq!(told(text, "D1  misses:"), Some(65_028));
        assert_eq!(told(text, "LLd misses:"), None);
    }
}
