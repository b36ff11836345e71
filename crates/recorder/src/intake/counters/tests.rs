use std::{
    fs,
    sync::{Arc, mpsc},
    thread,
};

use retroscope_capture::LossCause;
use rustix::thread::gettid;

use super::*;
use crate::intake::Intake;

impl LossLog {
    /// The losses that touch the closed interval.
    pub(crate) fn within(&self, from_ns: i64, to_ns: i64) -> Vec<LossEvent> {
        self.within_until(u64::MAX, &[(from_ns, to_ns)])
    }
}

fn reading(statistics: SourceStatistics) -> EngineReading {
    EngineReading {
        statistics,
        ..EngineReading::default()
    }
}

fn statistics(received: u64, lost: u64) -> EngineReading {
    reading(SourceStatistics {
        received: Some(received),
        lost: vec![(LossCause::Kernel, Some(lost))],
        as_of_ns: None,
    })
}

#[test]
fn a_gap_that_reaches_back_is_not_cut_where_gaps_are_merged() {
    const S: i64 = 1_000_000_000;
    let log = LossLog::default();
    let gap = |from_ns, to_ns| log.push(0, 0, "not_analyzed", [(from_ns, to_ns); 2], 1);
    gap(100 * S - 50_000_000, 100 * S);
    gap(90 * S, 100 * S); // a bucket with one late packet
    gap(90 * S - 1, 90 * S);
    assert_eq!(log.within(91 * S, 92 * S).len(), 1);
    assert_eq!(log.within(0, 90 * S - 1).len(), 1);
    for step in 0..i64::try_from(LOSS_EVENTS).unwrap() {
        gap(200 * S - step * S / 5, 200 * S - step * S / 5);
    }
    assert_eq!(
        log.within(i64::MIN, i64::MAX)[0].packets,
        3 + LOSS_EVENTS as u64
    );
    let oldest = 200 * S - (LOSS_EVENTS as i64 - 1) * S / 5;
    assert_eq!(log.within(oldest, oldest).len(), 1);
    assert_eq!(log.within(91 * S, 92 * S).len(), 1);
}

#[test]
fn a_ledger_closes_from_its_own_counters() {
    let queues = [QueueCounters::new(), QueueCounters::new()];
    queues[0].add(BurstCount {
        stored: 5,
        filtered: 2,
        ..BurstCount::default()
    });
    queues[0].set_engine(statistics(10, 3));
    queues[1].add(BurstCount {
        stored: 1,
        no_bucket: 4,
        interface_limit: 2,
        ..BurstCount::default()
    });
    queues[1].set_engine(statistics(8, 0));
    let snapshot = SourceSnapshot::of("eth0", queues.iter(), (0, 0));
    assert_eq!(
        (snapshot.received, snapshot.stored, snapshot.filtered),
        (Some(18), 6, Some(2))
    );
    assert_eq!(
        snapshot.lost,
        BTreeMap::from([
            ("kernel", Some(3)),
            (LOST_NO_BUCKET, Some(4)),
            (LOST_INTERFACE_LIMIT, Some(2))
        ])
    );
    assert_eq!(snapshot.in_flight(), Some(1));
}

#[test]
fn unknown_stays_unknown() {
    let queue = QueueCounters::new();
    queue.set_engine(reading(SourceStatistics {
        received: None,
        lost: vec![(LossCause::Nic, None)],
        as_of_ns: None,
    }));
    let snapshot = SourceSnapshot::of("x", std::iter::once(&queue), (0, 0));
    assert_eq!(
        (
            snapshot.received,
            snapshot.lost["nic"],
            snapshot.in_flight()
        ),
        (None, None, None)
    );
}

#[test]
fn a_loss_lies_between_two_readings() {
    let log = LossLog::default();
    let mut watch = LossWatch::new(0, 100);
    watch.observe(&statistics(10, 0), (200, 200), &log);
    watch.observe(&statistics(20, 7), (300, 300), &log);
    assert_eq!(log.within(0, 199), []);
    assert_eq!(
        log.within(250, 260),
        [LossEvent {
            source: 0,
            cause: "kernel",
            spans_ns: [(200, 300); 2],
            packets: 7,
            is_part: true,
            record: 0
        }]
    );
    assert_eq!(log.within(301, 400), []);
}

#[test]
fn a_loss_may_be_younger_than_what_is_known() {
    let log = LossLog::default();
    let mut watch = LossWatch::new(0, 100);
    let read = |lost, as_of_ns| {
        let mut reading = statistics(10, lost);
        reading.statistics.as_of_ns = Some(as_of_ns);
        reading
    };
    watch.observe(&read(0, 180), (200, 200), &log);
    watch.observe(&read(7, 280), (300, 300), &log);
    let found = log.within(290, 295);
    assert_eq!(found[0].spans_ns[0], (180, 300));
}

#[test]
fn a_counter_that_comes_back_tells_of_the_time_between() {
    let log = LossLog::default();
    let mut watch = LossWatch::new(0, 100);
    let mut observe = |lost, at_ns| {
        let mut reading = statistics(10, 0);
        reading.statistics.lost = vec![(LossCause::Kernel, lost), (LossCause::Nic, Some(0))];
        watch.observe(&reading, (at_ns, at_ns), &log);
    };
    observe(None, 200);
    observe(Some(3), 300);
    observe(None, 400);
    observe(None, 500);
    assert_eq!(log.within(301, 500), []);
    observe(Some(7), 600);
    let spans = |at_ns| {
        let found = log.within(at_ns, at_ns);
        let spans = found
            .iter()
            .map(|it| (it.spans_ns[0].0, it.spans_ns[0].1, it.packets));
        spans.collect::<Vec<_>>()
    };
    assert_eq!(spans(150), [(100, 600, 7)], "merged: they touch");
    assert_eq!(spans(450), [(100, 600, 7)]);
}

#[test]
fn what_concerns_two_stretches_is_counted_once() {
    let log = LossLog::default();
    let count = |from_ns, to_ns| {
        let found = log.within(from_ns, to_ns);
        let told = found
            .iter()
            .map(|it| (it.spans_ns[0].0, it.spans_ns[0].1, it.packets));
        told.collect::<Vec<_>>()
    };
    log.push(0, 0, CLOCK_STEP, [(100, 110), (50, 60)], 7);
    log.push(0, 0, CLOCK_STEP, [(110, 120), (60, 70)], 1);
    assert_eq!(count(0, 49), []);
    assert_eq!(count(0, 55), [(50, 70, 8)]);
    assert_eq!(count(71, 99), []);
    assert_eq!(count(105, 200), [(100, 120, 8)]);
    assert_eq!(count(65, 105), [(50, 120, 8)]);
    log.push(0, 0, CLOCK_STEP, [(100, 120), (1000, 1001)], 2);
    assert_eq!(count(60, 100), [(50, 120, 10)]);
    assert_eq!(count(130, 999), []);
}

/// From files the losses of a window depend on its end, not on the time of the request.
#[test]
fn what_is_found_behind_the_end_of_a_window_is_not_told() {
    let log = LossLog::default();
    let n = 2 * LOSS_EVENTS as u64;
    let count = |until| {
        let found = log.within_until(until, &[(0, 10)]);
        found.iter().map(|it| it.packets).sum::<u64>()
    };
    for record in 1..=n {
        log.push(record, 0, CLOCK_STEP, [(5, 6); 2], 1);
        assert_eq!(count(7), record.min(7));
    }
    log.forget_records();
    assert_eq!(count(n), n);
    assert!(log.events.lock().unwrap().len() < LOSS_EVENTS);
    log.push(n + 1, 0, CLOCK_STEP, [(5, 6); 2], 1);
    assert_eq!((count(n), count(n + 1)), (n, n + 1));
}

#[test]
fn a_log_of_files_settles_in_one_pass() {
    let log = LossLog::default();
    let packets = || {
        let found = log.within(i64::MIN, i64::MAX);
        found.iter().map(|it| it.packets).sum::<u64>()
    };
    let many = 128 * LOSS_EVENTS as u64;
    for number in 0..many {
        assert_eq!(log.is_full(), number >= 2 * LOSS_EVENTS as u64);
        let at_ns = number as i64 * 3_600_000_000_000 % 7_919;
        let source = usize::try_from(number % 20).unwrap();
        log.push(number, source, "disorder", [(at_ns, at_ns); 2], 1);
    }
    let start = std::time::Instant::now();
    log.forget_records();
    let took = start.elapsed();
    assert!(!log.is_full());
    assert_eq!(packets(), many);
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_full_log_forgets_no_packet() {
    let log = LossLog::default();
    let n = 3 * LOSS_EVENTS as i64;
    for i in 0..n {
        let from_ns = i * 1_000_000_000;
        log.push(0, 0, "kernel", [(from_ns, from_ns + 1); 2], 1);
    }
    assert_eq!(log.within(i64::MIN, i64::MAX)[0].packets, n as u64);
    assert!(log.events.lock().unwrap().len() <= LOSS_EVENTS);
}

#[test]
fn a_flood_of_one_cause_leaves_the_others_their_places() {
    let log = LossLog::default();
    let (n, every) = (20 * LOSS_EVENTS as i64, 1000);
    for at_ns in 0..n {
        log.push(0, 0, LOST_INTERFACE_LIMIT, [(at_ns, at_ns); 2], 1);
        if at_ns % every == 0 {
            log.push(0, 1, "kernel", [(at_ns, at_ns); 2], 1);
        }
    }
    let kernel = |from_ns, to_ns| {
        let found = log.within(from_ns, to_ns).into_iter();
        found.filter(|it| it.source == 1).map(|it| it.packets).sum()
    };
    for at_ns in (0..n).step_by(1000) {
        let told: [u64; 2] = [kernel(at_ns, at_ns), kernel(at_ns + 1, at_ns + every - 1)];
        assert_eq!(told, [1, 0], "{at_ns}");
    }
    let all: u64 = log.within(0, n).iter().map(|it| it.packets).sum();
    assert_eq!(all, n as u64 + (n / every) as u64 + 1);
    assert!(log.events.lock().unwrap().len() <= LOSS_EVENTS);
}

/// A verdict pauses while it reads the first of two sources. Meanwhile the inserter of the second
/// source logs a loss and then declares its losses known.
#[test]
fn a_loss_that_comes_while_a_verdict_asks_is_told() {
    let sources = ["eth1", "eth2"].map(|name| (name.to_owned(), 1));
    let intake = Intake::new(sources.into_iter(), Arc::default(), false);
    let [first, second] = [0, 1].map(|index| &intake.sources[index].queues[0]);
    first.set_ended();
    let stop = lock(&first.undecided);
    let (tell, told) = mpsc::channel();
    let missing = thread::scope(|scope| {
        let verdict = scope.spawn(|| {
            tell.send(gettid()).unwrap();
            intake.missing((0, 10), 10, 0, &[])
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        // The verdict's thread sleeps only while it waits for the mutex that this thread holds.
        while !fs::read_to_string(&stat).unwrap().contains(") S ") {
            thread::yield_now();
        }
        intake.losses.push(0, 1, "kernel", [(5, 5); 2], 1);
        second.set_engine(reading(SourceStatistics {
            as_of_ns: Some(10),
            ..SourceStatistics::default()
        }));
        drop(stop);
        verdict.join().unwrap()
    });
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(missing[0].cause, "kernel");
}

/// A window with only a part of the range in which packets were shed reports an upper bound.
#[test]
fn what_was_shed_at_the_edge_of_a_window_is_a_bound() {
    let intake = Intake::new(
        std::iter::once(("eth1".to_owned(), 1)),
        Arc::default(),
        false,
    );
    intake.shed.push(0, 0, SHED, [(10, 20); 2], 3);
    intake.shed.push(0, 0, SHED, [(30, 30); 2], 2);
    let told = |from_ns, to_ns| {
        let (missing, _) = intake.known_losses(&[(from_ns, to_ns)], 0);
        let told = missing
            .iter()
            .map(|one| (one.cause, one.packets, one.at_most));
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(10, 20), [(SHED, Some(3), None)]);
    assert_eq!(told(0, 40), [(SHED, Some(5), None)]);
    assert_eq!(told(15, 40), [(SHED, None, Some(5))]);
    assert_eq!(told(25, 30), [(SHED, Some(2), None)]);
    assert_eq!(told(21, 29), []);
}

/// The times agree with R-Scope's table 1 within 6 ms, for its 136,314,880 bytes in buffers of 64
/// KiB.
#[test]
fn what_a_source_holds_is_how_long_a_packet_may_take() {
    let of = |stored, stored_bytes| SourceSnapshot {
        stored,
        stored_bytes,
        buffer: Some(SourceBuffer::Bytes(136_314_880)),
        ..SourceSnapshot::default()
    };
    let large = of(10, 655_360);
    for (gbits, paper_ms) in [(1, 1090), (2, 550), (4, 270), (6, 180), (8, 140), (10, 110)] {
        let ms = large.longest_ns(gbits * 1_000_000_000).unwrap() / 1_000_000;
        assert!(ms.abs_diff(paper_ms) <= 6, "{gbits}: {ms}");
    }
    // Frames of 60 bytes take 84 bytes on the wire and 140 in memory. 10 Gbit/s carry 14.88 million
    // of these frames a second.
    let small = of(0, 0);
    assert_eq!(small.buffer_packets(), Some(973_677));
    assert_eq!(small.longest_ns(10_000_000_000), Some(65_431_094));
    let unknown = SourceSnapshot::default();
    assert_eq!(
        (unknown.buffer_packets(), unknown.longest_ns(1)),
        (None, None)
    );
}

#[derive(Default)]
pub(super) struct AtEnd(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl AtEnd {
    pub(super) fn act(&self) {
        if let Some(act) = lock(&self.0).take() {
            act();
        }
    }
}

impl std::fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtEnd")
    }
}

impl QueueCounters {
    /// Runs the action once, as soon as other threads can see that the queue has ended.
    pub(crate) fn when_ended(&self, act: impl FnOnce() + Send + 'static) {
        *lock(&self.at_end.0) = Some(Box::new(act));
    }
}
