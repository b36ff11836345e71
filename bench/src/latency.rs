//! From store to peek: how long until a reader has a packet in its hands.
//!
//! The producer stamps each packet with the monotonic clock just before it stores it, and publishes when nothing more is due,
//! as an inserter does when its source runs dry. The reader sleeps whenever there is nothing new ([`Reader::wait`]), at every
//! rate, as an idle recorder does, and reads the clock once for each run of packets that it is handed.

use std::{
    fs, io,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, Mode, Producer, Reader, Record, Ring, RingConfig};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    contest::{Frames, Load},
    limits::DESCRIPTOR_BYTES,
    measure::{Failure, Spread, check_count, check_lapped},
    pin,
    ring::store_burst,
    session::Session,
};

/// A reader looks around after this at the latest, as the recorder's analyzer does.
const NAP: Duration = Duration::from_millis(10);
/// A producer sleeps until a packet is due if that is further away than this, else it watches the clock.
const SLEEP_MIN_NS: u64 = 200_000;
/// Bytes of the packets.
const PACKET_BYTES: usize = 64;
/// Bytes that a packet takes in the ring.
const RECORD_BYTES: u64 = (DESCRIPTOR_BYTES + PACKET_BYTES) as u64;
/// Latencies that memory is prepared for where not every packet's is taken.
const ROOM_MAX: u64 = 1 << 20;
/// More than any of the runs can store, so that nobody is lapped.
const RING_BYTES: u64 = 256 << 20;
/// How long a reader is watched while nothing comes.
const SILENCE_SECONDS: f64 = 2.0;
/// Names of rates and packets a second.
const RATES: [(&str, u32); 6] = [
    ("idle", 100),
    ("1kpps", 1000),
    ("10kpps", 10_000),
    ("100kpps", 100_000),
    ("1mpps", 1_000_000),
    ("10mpps", 10_000_000),
];

/// What a run found.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Latency {
    /// Half of the packets were seen after this, 99 of 100, and all, in microseconds.
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
    /// Processor time of the reader's thread, in percent of the time that the run took.
    reader_cpu_percent: f64,
    /// How long it took to fill two buckets at the rate of the run: what latency may be at saturation.
    two_buckets_us: f64,
    /// What a hypervisor took of all CPUs during the run, in milliseconds, 10 at a time. 0 where it does not tell.
    stolen_ms: f64,
}

/// The judged rows of latency, and the idle reader.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    for (row, rate) in [("idle", 1000), ("1mpps", 1_000_000)] {
        // Long enough that a processor lost for some milliseconds is less than one packet in a hundred.
        let time = session.scale.time(0.5);
        let row = format!("ring/latency/{row}-p99-us");
        session.figure(&row, || Ok(paced(rate, time)?.p99_us))?;
    }
    let row = "ring/latency/idle-cpu";
    if session.wants(row) {
        let silent = silent(session.scale.time(SILENCE_SECONDS));
        session.absolute(row, silent.map(Spread::once))?;
    }
    Ok(())
}

/// From an idle link to saturation.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let repeated = |run: &dyn Fn() -> Result<Latency, Failure>| {
        (0..session.scale.repetitions.min(3))
            .map(|_| run())
            .collect::<Result<Vec<_>, _>>()
    };
    for (name, rate) in RATES {
        let time = session
            .scale
            .time(if rate <= 1_000_000 { 1.0 } else { 0.5 });
        write(session, name, &repeated(&|| paced(rate, time)))?;
    }
    let found = repeated(&|| saturated(session.scale.ring_bytes));
    write(session, "saturated", &found)?;
    let two = found.and_then(|found| {
        let two = spread(&found, |found| found.two_buckets_us)?;
        let p99 = spread(&found, |found| found.p99_us)?.median;
        if p99 <= two.median {
            return Ok(two);
        }
        let why = format!("p99 is {p99} us, which must be {} us or less", two.median);
        Err(Failure::Wrong(why))
    });
    session.absolute("latency/two-buckets", two)
}

/// What is told of a run.
type Figure = fn(&Latency) -> f64;

fn write(session: &Session, rate: &str, found: &Result<Vec<Latency>, Failure>) -> io::Result<()> {
    let figures: [(&str, Figure); 4] = [
        ("p50", |found| found.p50_us),
        ("p99", |found| found.p99_us),
        ("max", |found| found.max_us),
        ("stolen", |found| found.stolen_ms),
    ];
    for (name, figure) in figures {
        let row = format!("latency/{rate}/{name}");
        if session.wants(&row) {
            let found = found.as_ref().map_err(Clone::clone);
            session.absolute(&row, found.and_then(|found| spread(found, figure)))?;
        }
    }
    Ok(())
}

fn spread(found: &[Latency], figure: Figure) -> Result<Spread, Failure> {
    Spread::of(&found.iter().map(figure).collect::<Vec<_>>())
}

/// Stores packets at a rate for a while and reads them.
fn paced(packets_per_second: u32, time: Duration) -> Result<Latency, Failure> {
    let interval = Duration::from_secs(1) / packets_per_second;
    let packets = time.as_nanos() * u128::from(packets_per_second) / 1_000_000_000;
    let packets = u64::try_from(packets).unwrap_or(u64::MAX);
    run(&live(), GroupKind::Lapped, packets, interval)
}

/// Stores packets as fast as they can be, for two laps of a ring, which waits for the reader; the clock is read once a burst. Of each run of
/// packets that the reader is handed, the first is taken: the one that waited longest.
fn saturated(ring_bytes: u64) -> Result<Latency, Failure> {
    let config = RingConfig {
        mode: Mode::Wait,
        ..RingConfig::new(ring_bytes, 1, 1)
    };
    let packets = ring_bytes * 2 / RECORD_BYTES;
    run(&config, GroupKind::Gating, packets, Duration::ZERO)
}

/// Percent of a core that a reader takes while nothing is stored.
fn silent(time: Duration) -> Result<f64, Failure> {
    // The only packet comes at the end, and ends the run.
    Ok(run(&live(), GroupKind::Lapped, 1, time)?.reader_cpu_percent)
}

/// A ring as a live recorder has it.
fn live() -> RingConfig {
    RingConfig::new(RING_BYTES, 1, 1)
}

/// The first packet is due after one interval; an interval of 0: all of them at once, in bursts.
fn run(
    config: &RingConfig,
    kind: GroupKind,
    packets: u64,
    interval: Duration,
) -> Result<Latency, Failure> {
    let failure = |error| Failure::system("making a ring", error);
    let ring = Ring::new(config, None).map_err(failure)?;
    let mut reader = ring.group(kind).map_err(failure)?;
    let producer = ring.producer().map_err(failure)?;
    let bucket_bytes = ring.bucket_bytes();
    let each = if interval.is_zero() { 0 } else { packets };
    let (start, both_ready) = (Instant::now(), Barrier::new(2));
    let both_ready = &both_ready;
    let stolen_before_ms = stolen_ms();
    let found = thread::scope(|scope| {
        let writer = scope.spawn(move || {
            pin::pin(0);
            let frames = Frames::new(PACKET_BYTES);
            both_ready.wait();
            store(producer, &frames, packets, start, interval)
        });
        let reader = scope.spawn(move || {
            pin::pin(1);
            // Touched memory, and not zeros, which the system may give without pages: a first touch costs microseconds a page.
            let room = packets.clamp(1, ROOM_MAX.max(each));
            let mut latencies = vec![u32::MAX; usize::try_from(room).unwrap_or(usize::MAX)];
            latencies.clear();
            both_ready.wait();
            read(&mut reader, packets, each, latencies, start, bucket_bytes)
        });
        let stored = writer.join().map_err(Failure::panicked)?;
        let read = reader.join().map_err(Failure::panicked)?;
        stored.and(read)
    })?;
    Ok(Latency {
        stolen_ms: stolen_ms() - stolen_before_ms,
        ..found
    })
}

/// Time that this machine's CPUs were ready to run and a hypervisor ran something else, since it was started: `steal` of
/// /proc/stat (proc_stat(5)), in hundredths of a second.
fn stolen_ms() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next();
    let ticks = line.and_then(|line| line.split_whitespace().nth(8)?.parse::<u32>().ok());
    f64::from(ticks.unwrap_or_default()) * 10.0
}

/// Stores packets as they are due and publishes when none is; with an interval of 0 bursts, and at the end.
fn store(
    mut producer: Producer,
    frames: &Frames,
    packets: u64,
    start: Instant,
    interval: Duration,
) -> Result<(), Failure> {
    let interval_ns = interval.as_nanos();
    let begin_ns = start.elapsed().as_nanos();
    let mut stored = 0;
    while stored < packets {
        let due = begin_ns + interval_ns * u128::from(stored + 1);
        let mut now = start.elapsed();
        while now.as_nanos() < due {
            let left = u64::try_from(due - now.as_nanos()).unwrap_or(u64::MAX);
            if left > SLEEP_MIN_NS {
                thread::park_timeout(Duration::from_nanos(left));
            } else {
                std::hint::spin_loop();
            }
            now = start.elapsed();
        }
        let all_due = (now.as_nanos() - begin_ns).checked_div(interval_ns);
        let all_due = all_due.map_or(stored + Load::BURST, |due| {
            u64::try_from(due).unwrap_or(u64::MAX)
        });
        let (time_ns, end) = (ns(now), all_due.min(packets));
        let burst = (stored..end).map(|number| Record::whole(time_ns, 0, frames.get(number)));
        store_burst(&mut producer, burst)?;
        stored = end;
        if !interval.is_zero() {
            producer.publish();
        }
    }
    producer.publish();
    Ok(())
}

/// Reads all packets. Takes the latency of so many of them as `each` says, and of the first of each run of packets behind
/// those; `latencies` is empty.
fn read(
    reader: &mut Reader,
    packets: u64,
    each: u64,
    mut latencies: Vec<u32>,
    start: Instant,
    bucket_bytes: usize,
) -> Result<Latency, Failure> {
    let mut seen = 0;
    // This clock is read outside the other: of a run that is over at once, too, no more than all is the reader's.
    let begin = Instant::now();
    let cpu = cpu_time();
    while seen < packets {
        let Some(batch) = reader.next() else {
            reader.wait(NAP);
            continue;
        };
        let now = ns(start.elapsed());
        for (index, packet) in batch.into_iter().enumerate() {
            seen += 1;
            if seen <= each || index == 0 {
                latencies.push(u32::try_from(now - packet.time_ns).unwrap_or(u32::MAX));
            }
        }
    }
    let cpu_seconds = cpu_time().saturating_sub(cpu).as_secs_f64();
    let seconds = begin.elapsed().as_secs_f64();
    reader.finish();
    check_lapped(reader.lapped().packets)?;
    check_count(packets, seen)?;
    latencies.sort_unstable();
    let us = |part: f64| f64::from(quantile(&latencies, part)) / 1e3;
    let bytes_per_us = packets as f64 * RECORD_BYTES as f64 / seconds / 1e6;
    Ok(Latency {
        p50_us: us(0.50),
        p99_us: us(0.99),
        max_us: us(1.0),
        reader_cpu_percent: cpu_seconds / seconds * 100.0,
        two_buckets_us: 2.0 * bucket_bytes as f64 / bytes_per_us,
        stolen_ms: 0.0,
    })
}

/// The least figure that so large a part of `sorted` does not exceed; 0 of none.
fn quantile(sorted: &[u32], part: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the length"
    )]
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    let at = rank.saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// Processor time of the calling thread.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

fn ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_list() {
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!(quantile(&hundred, 0.5), 50);
        assert_eq!(quantile(&hundred, 0.99), 99);
        assert_eq!(quantile(&hundred, 1.0), 100);
        assert_eq!(quantile(&[7], 0.5), 7);
    }

    #[test]
    fn a_latency_is_positive_and_ordered() {
        let latency = paced(10_000, Duration::from_millis(50)).unwrap();
        assert!(latency.p50_us > 0.0 && latency.p50_us <= latency.p99_us);
        assert!(latency.p99_us <= latency.max_us);
        assert!(latency.reader_cpu_percent > 0.0);
        let flooded = saturated(32 << 20).unwrap();
        assert!(flooded.p50_us > 0.0 && flooded.two_buckets_us > 0.0);
        // All of it where the reader came when the packet was there already.
        assert!(silent(Duration::from_millis(20)).unwrap() <= 100.0);
    }
}
