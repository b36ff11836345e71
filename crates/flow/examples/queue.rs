//! What a timer costs in the queue and in a binary heap: the "hold" model, each step takes out the first timer and puts in another.
//!
//! `cargo run --release -p retroscope-flow --example queue [-- TIMERS…]`: 10^3 to 10^7 timers, the two in turn, medians of five.
#![allow(clippy::print_stdout, reason = "it is what an example is for")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Instant;

use retroscope_flow::{Entry, MultiresolutionQueue, Resolution};

const STEPS: u32 = 4_000_000;
const ROUNDS: usize = 5;
/// A timer is due within so many nanoseconds: 0 to 60 s.
const SPAN: u64 = 60_000_000_000;
/// Slots of 67 ms for 275 s, and of 4.3 s for 5 hours.
const RESOLUTIONS: [Resolution; 2] = [
    Resolution {
        bits: 26,
        slots: 4096,
    },
    Resolution {
        bits: 32,
        slots: 4096,
    },
];

/// Nanoseconds a step: `step` takes a timer out and puts in another, so much later.
fn timed(mut step: impl FnMut(u64)) -> f64 {
    let mut random = fastrand::Rng::with_seed(2);
    let start = Instant::now();
    for _ in 0..STEPS {
        step(random.u64(0..SPAN));
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(STEPS)
}

/// The first timers.
fn timers(count: u32) -> impl Iterator<Item = (u64, u32)> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..count).map(move |item| (random.u64(0..SPAN), item))
}

fn queue(count: u32) -> f64 {
    let mut queue = MultiresolutionQueue::new(&RESOLUTIONS);
    for (stamp, item) in timers(count) {
        queue.insert(Entry { stamp, item });
    }
    let time = timed(|later| {
        if let Some(Entry { stamp, item }) = queue.extract() {
            let stamp = stamp + later;
            queue.insert(Entry { stamp, item });
        }
    });
    black_box(queue.peek());
    time
}

fn heap(count: u32) -> f64 {
    let mut heap: BinaryHeap<_> = timers(count).map(Reverse).collect();
    let time = timed(|later| {
        if let Some(Reverse((stamp, item))) = heap.pop() {
            heap.push(Reverse((stamp + later, item)));
        }
    });
    black_box(heap.peek());
    time
}

fn main() {
    let mut counts: Vec<u32> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    if counts.is_empty() {
        counts = (3..=7).map(|power| 10_u32.pow(power)).collect();
    }
    println!("timers     heap ns   queue ns   heap/queue");
    for count in counts {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            times[0].push(heap(count));
            times[1].push(queue(count));
        }
        let [heap, queue] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        println!(
            "{count:>8} {heap:>9.1} {queue:>10.1} {:>12.1}",
            heap / queue
        );
    }
}
