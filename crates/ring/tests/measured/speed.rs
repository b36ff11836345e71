//! Limits of time that must hold on any machine and under any load. Times are processor time, or
//! exclude the time that the scheduler gave to other threads. The best of a few tries counts,
//! because neither excludes the time that a host takes from a virtual machine.

use std::{
    fs,
    sync::{Barrier, mpsc},
    thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, Mode, Producer, Record, Ring, RingConfig};
use rustix::time::{ClockId, clock_gettime};

const DEADLINE: Duration = Duration::from_secs(60);
/// One good try is enough.
const TRIES: usize = 5;

/// The directory of a thread in /proc.
struct Task(String);

impl Task {
    fn current() -> Self {
        let id = rustix::thread::gettid().as_raw_nonzero();
        Self(format!("/proc/self/task/{id}"))
    }

    /// How long the thread was runnable without running, ns: the second figure of schedstat (the
    /// kernel's Documentation/scheduler/sched-stats.rst).
    fn waited_ns(&self) -> u64 {
        let text = fs::read_to_string(format!("{}/schedstat", self.0)).expect("proc");
        let figure = text.split(' ').nth(1).and_then(|word| word.parse().ok());
        figure.expect("three figures")
    }

    fn sleeps(&self) -> bool {
        let text = fs::read_to_string(format!("{}/stat", self.0)).expect("proc");
        // The state follows the thread's name, which may contain any character.
        let rest = text.rsplit(')').next();
        rest.is_some_and(|rest| rest.starts_with(" S"))
    }
}

fn store(producer: &mut Producer, time_ns: i64) {
    producer
        .store(&Record::whole(time_ns, 0, &[0x5a; 64]))
        .expect("record mode lets it");
}

/// Thesis and paper, "low latency": 99 of 100 lone packets reach a sleeping reader within half a
/// millisecond.
#[test]
fn a_sleeping_reader_sees_a_packet_within_half_a_millisecond() {
    const PACKETS: usize = 200;
    const LIMIT_NS: u64 = 500_000;
    let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
    let mut reader = ring.group(GroupKind::Lapped).unwrap();
    let mut producer = ring.producer().unwrap();
    let start = Instant::now();
    let (seen, news) = mpsc::channel();
    let (told, follower) = mpsc::channel();
    let following = thread::spawn(move || {
        let me = Task::current();
        told.send(Task::current()).unwrap();
        let mut left = PACKETS * TRIES;
        while left > 0 {
            if let Some(batch) = reader.next() {
                left -= batch.len();
                let seen_at = start.elapsed();
                if seen.send((seen_at, me.waited_ns())).is_err() {
                    return; // an earlier try was good
                }
            } else {
                reader.wait(Duration::from_millis(10));
            }
        }
    });
    let follower = follower.recv().unwrap();
    let me = Task::current();
    let mut tries = Vec::new();
    for _ in 0..TRIES {
        let mut latencies = Vec::new();
        for number in 0..PACKETS {
            while !follower.sleeps() {
                assert!(start.elapsed() < DEADLINE, "the reader never sleeps");
                thread::yield_now();
            }
            let waited_before = me.waited_ns() + follower.waited_ns();
            let stored_at = start.elapsed();
            store(&mut producer, i64::try_from(number).unwrap());
            producer.publish();
            let (seen_at, waited) = news.recv_timeout(DEADLINE).expect("it was published");
            let others = (waited + me.waited_ns()).saturating_sub(waited_before);
            let latency = u64::try_from((seen_at - stored_at).as_nanos()).unwrap();
            latencies.push(latency.saturating_sub(others));
        }
        latencies.sort_unstable();
        let (p50, p99) = (latencies[PACKETS / 2], latencies[PACKETS * 99 / 100]);
        tries.push((p50, p99));
        if p99 <= LIMIT_NS {
            break;
        }
    }
    drop(news);
    let best = tries.iter().map(|(_, p99)| *p99).min().unwrap();
    assert!(
        best <= LIMIT_NS,
        "ns, half and 99 of 100, by try: {tries:?}"
    );
    // The follower ends at the next packets, because its channel is closed.
    for number in 0.. {
        if following.is_finished() {
            break;
        }
        store(&mut producer, number);
        producer.publish();
        assert!(start.elapsed() < DEADLINE, "the reader does not end");
        thread::yield_now();
    }
    following.join().unwrap();
}

/// Nanoseconds of processor time for each 64-byte packet of the slowest of `producers` producers,
/// which store at the same time.
fn ns_of_a_packet(producers: usize) -> f64 {
    const PACKETS: u64 = 1 << 21;
    const BURST: u64 = 64;
    let config = RingConfig {
        mode: Mode::Record,
        ..RingConfig::new(64 << 20, producers, 1)
    };
    let ring = Ring::new(&config, None).expect("some MiB");
    let mut reader = ring.group(GroupKind::Lapped).expect("the first");
    let start = Barrier::new(producers);
    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let slowest = thread::scope(|scope| {
        let storing: Vec<_> = (0..producers)
            .map(|_| {
                let (mut producer, start) = (ring.producer().expect("there is room"), &start);
                scope.spawn(move || {
                    let frame = [0x5a; 64];
                    start.wait();
                    let begin = cpu();
                    for burst in 0..PACKETS / BURST {
                        let numbers = burst * BURST..(burst + 1) * BURST;
                        let records =
                            numbers.map(|number| Record::whole(number.cast_signed(), 0, &frame));
                        producer.store_burst(records).expect("record mode");
                    }
                    producer.publish();
                    (cpu() - begin) / PACKETS as f64
                })
            })
            .collect();
        while storing.iter().any(|thread| !thread.is_finished()) {
            match reader.next() {
                Some(batch) => assert!(batch.iter().all(|packet| packet.data.len() == 64)),
                None => {
                    reader.wait(Duration::from_millis(1));
                }
            }
        }
        let times = storing
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        times.fold(0.0, f64::max)
    });
    assert_eq!(ring.statistics().stored_packets, producers as u64 * PACKETS);
    slowest
}

/// Thesis R1: one thread must store the smallest frames of a 10 Gbit/s link (60 bytes and the check
/// sequence, 20 bytes of preamble and gap). A packet may take 84 bytes × 8 / 10 Gbit/s = 67.2 ns of
/// processor time.
#[test]
fn a_thread_stores_what_a_10_gbit_link_brings_alone_and_beside_three_others() {
    const LIMIT_NS: f64 = 84.0 * 8.0 / 10.0;
    for producers in [1, 4] {
        let tries = (0..TRIES).map(|_| ns_of_a_packet(producers));
        let mut slow = tries.take_while(|ns| *ns > LIMIT_NS).collect::<Vec<_>>();
        slow.sort_by(f64::total_cmp);
        assert!(slow.len() < TRIES, "{producers} producers: {slow:?} ns");
    }
}
