//! A shard that reads the ring itself, beside others.
//!
//! Live the readers are the members of one group, and divide the producers. From files each reads all records, and looks at those of its
//! shards: the inserter has numbered them by address pair (`intake/inserter/shards.rs`). What they find goes to the analyzer,
//! which opens and closes windows: live by a bounded queue, from files in the order of records, for which it waits.
//!
//! With `--set analyzers=inline` a file's only reader is moved on by the inserter's thread, behind each publication.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use retroscope_ring::{Positions, Reader, Waker};

use crate::{
    analysis::{
        RingReader,
        chunk::{Chunk, MANY},
        director::HitOrder,
        hit_queue::HitQueue,
        predicate::Expression,
        seats::{Gap, Seats},
        shard::{Findings, Numbered, Numbers, Over, Shard},
    },
    control::{common::Common, hits::Refusal, progress::promised, pulse::Pulse},
};

/// Batches between two looks at clocks.
const BATCHES: usize = 64;
/// Hits from files that are told together.
const TOGETHER: usize = 1024;
/// How long a live recording that is stopped still looks at packets, ns.
pub(crate) const STOP_DRAIN_NS: i64 = 3_000_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct ShardReader {
    common: Arc<Common>,
    seats: Arc<Seats>,
    seat: usize,
    reader: Reader,
    /// Of the analyzer.
    waker: Waker,
    found: Found,
    /// From files: its records before this were looked at.
    looked: u64,
    /// Live, of each producer whether it is one of its own that promise watermarks.
    promises: Vec<bool>,
    /// A lower bound of the times of the last batch of each producer, ns.
    last_ns: Vec<i64>,
    stopped_ns: Option<i64>,
    is_time_over: bool,
    /// The end of that time: the producer of the last packets, and how many of their batch were left.
    left: (usize, u64),
    pulse: Pulse,
}

/// What was found and is not told yet.
#[derive(Debug)]
struct Found {
    seats: Arc<Seats>,
    /// Live, with what they would dump; …
    live: HitQueue,
    /// … from files the analyzer says that, because it knows the packets before.
    files: Vec<HitOrder>,
    has_any: bool,
}

impl Findings for Found {
    fn are_wanted(&self) -> bool {
        self.seats.are_armed()
    }

    fn hit(&mut self, order: HitOrder, expression: Option<Result<Expression, Refusal>>) {
        self.has_any = true;
        match expression {
            Some(expression) => self.live.push((order, expression)),
            None => self.files.push(order),
        }
    }

    fn over(&mut self, _: u64, over: Over) {
        self.live.push_over(over);
    }
}

impl ShardReader {
    /// For the shard of a seat; `reader` is that of its producers.
    pub(crate) fn new(
        common: Arc<Common>,
        (seats, seat): (Arc<Seats>, usize),
        reader: Reader,
        waker: Waker,
    ) -> Self {
        let mut promises = common.intake.promises();
        for (producer, promises) in promises.iter_mut().enumerate() {
            *promises &= producer % seats.all().len() == seat;
        }
        Self {
            // From files there is one, whatever the number of queues.
            last_ns: vec![i64::MIN; promises.len().max(1)],
            promises,
            found: Found {
                seats: Arc::clone(&seats),
                live: HitQueue::default(),
                files: Vec::new(),
                has_any: false,
            },
            seats,
            seat,
            reader,
            waker,
            looked: 0,
            stopped_ns: None,
            is_time_over: false,
            left: (0, 0),
            pulse: common.pulses.of(format!("shard-{seat}")),
            common,
        }
    }

    /// Whether any packet was a hit so far.
    pub(crate) fn has_found(&self) -> bool {
        self.found.has_any
    }

    /// A handle that wakes it.
    pub(crate) fn waker(&self) -> Waker {
        self.reader.waker()
    }

    /// How far it and those that it shares producers with have read.
    pub(crate) fn positions(&self) -> Positions {
        self.reader.positions()
    }

    /// Analyzes the remaining packets after the inserters have ended. If a live recording is
    /// stopped, that takes a few seconds at most.
    pub(crate) fn end(mut self) {
        while self.step() && !self.is_time_over {}
        let (ring, positions) = (&self.common.ring, self.reader.positions());
        let now_ns = self.common.clock.now().ring_ns;
        let shards = self.seats.all().len();
        for producer in
            (0..ring.producers()).filter(|it| self.is_time_over && it % shards == self.seat)
        {
            let (broken_off, left) = self.left;
            let left = if producer == broken_off { left } else { 0 };
            let behind = ring
                .published(producer)
                .saturating_sub(positions.get(producer));
            let packets = behind + left;
            if packets > 0 {
                self.seats.all()[self.seat].miss(Gap {
                    producer,
                    span_ns: (self.last_ns[producer].min(now_ns), now_ns),
                    packets,
                    is_lapped: false,
                });
            }
        }
    }
}

impl RingReader for ShardReader {
    /// Whether somebody waits for what it has found by then.
    fn has_deadline(&self) -> bool {
        !self.common.is_live() || self.common.counters.are_dumps_unfinished()
    }

    /// Sleeps until there is something to read, or the timeout. Returns for how long.
    fn wait(&mut self, timeout: Duration) -> Duration {
        let start_ns = self.common.clock.mono_ns();
        self.reader.wait(timeout);
        let slept_ns = self.common.clock.mono_ns().saturating_sub(start_ns);
        Duration::from_nanos(slept_ns.unsigned_abs())
    }

    /// Looks at what is there, live at most some batches, and tells what it found. False: nothing was there.
    fn step(&mut self) -> bool {
        self.pulse.beat();
        let live = self.common.is_live();
        let seats = Arc::clone(&self.seats);
        let seat = &seats.all()[self.seat];
        // Read before the records, as the analyzer does.
        let promised_ns = if live {
            promised(&self.common.ring, &self.promises).min()
        } else {
            None
        };
        let shards = self.seats.all().len();
        let (mine, is_whole) = (self.seat, live || shards == 1);
        let is_mine = move |(_, packet): &Numbered<'_>| {
            is_whole || usize::from(packet.shard) % shards == mine
        };
        let mut batches = 0;
        while !live || (batches < BATCHES && !self.is_time_over) {
            let Some(batch) = self.reader.next() else {
                break;
            };
            let mut passed = 0;
            let last_ns = &mut self.last_ns[batch.producer];
            let from_ns = std::mem::replace(last_ns, batch.oldest_ns);
            if batch.missed.packets > 0 {
                seat.miss(Gap {
                    producer: batch.producer,
                    span_ns: (from_ns.min(batch.oldest_ns), from_ns.max(batch.oldest_ns)),
                    packets: batch.missed.packets,
                    is_lapped: true,
                });
            }
            if !live {
                // Only now the bucket of the batch before is given back: when the analyzer has seen all, nobody holds what may be overwritten.
                seat.tell_found(&mut self.found.files, self.looked);
            }
            let mut end = batch.first + batch.len() as u64;
            let mut packets = Numbers::from(batch.first, batch.iter()).filter(is_mine);
            let found = &mut self.found;
            let (control, clock) = (&self.common.control, &self.common.clock);
            let pulse = &self.pulse;
            let look = |shard: &mut Shard| {
                seat.refresh(shard, &mut found.live);
                let mut chunk = Chunk::new();
                loop {
                    pulse.beat();
                    // A script may be slow: none is asked about many packets behind the time to stop.
                    let is_stopping = live && control.stopping();
                    chunk.most = if is_stopping { 1 } else { MANY };
                    let look = || shard.look(batch.producer, &mut packets, &mut chunk, found);
                    let count = seat.times.time(clock, look);
                    if count == 0 {
                        return;
                    }
                    if live {
                        passed += count as u64;
                        if !found.live.is_empty() {
                            seat.tell(&mut found.live);
                            self.waker.wake();
                        }
                        seat.refresh(shard, &mut found.live);
                        if is_stopping && is_long_ago(&mut self.stopped_ns, clock.mono_ns()) {
                            end = batch.first + passed;
                            self.is_time_over = true;
                            return;
                        }
                    } else if let Some(last) = found.files.last()
                        && found.files.len() >= TOGETHER
                    {
                        let looked = last.record + 1;
                        seat.tell_found(&mut found.files, looked);
                    }
                }
            };
            seat.visit_waiting(look);
            self.looked = end;
            batches += 1;
            // Relaxed: numbers, summed by who asks.
            seat.analyzed
                .fetch_add(end - batch.first, Ordering::Relaxed);
            if self.is_time_over {
                self.left = (batch.producer, batch.first + batch.len() as u64 - end);
            }
        }
        let more = live && batches == BATCHES;
        if !more {
            self.reader.finish();
        }
        if live {
            if !more {
                seat.promise(promised_ns.unwrap_or(i64::MAX));
            }
        } else {
            seat.tell_found(&mut self.found.files, self.looked);
        }
        batches > 0
    }
}

/// Whether the time to look at packets is over at `mono_ns`, of a recording that is stopped.
fn is_long_ago(stopped_ns: &mut Option<i64>, mono_ns: i64) -> bool {
    mono_ns - *stopped_ns.get_or_insert(mono_ns) >= STOP_DRAIN_NS
}

impl Drop for ShardReader {
    fn drop(&mut self) {
        let seat = &self.seats.all()[self.seat];
        seat.tell_found(&mut self.found.files, u64::MAX);
        seat.promise(i64::MAX);
        self.waker.wake();
    }
}
