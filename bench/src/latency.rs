//! From store to peek: how long until a reader has a packet in its hands.
//!
//! The producer stamps each packet with the monotonic clock just before it stores it, and publishes when nothing more is due,
//! as an inserter does when its source runs dry. The reader sleeps whenever there is nothing new ([`Reader::wait`]), at every
//! rate, as an idle recorder does, and reads the clock once for each run of packets that it is handed.

use std::{
    fs, io, thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, Mode, Producer, Reader, Record, RingConfig};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    contest::{Course, Frames, Load, Work, together},
    limits::DESCRIPTOR_BYTES,
    measure::{Entrant, Failure, Spread, check_count, check_lapped},
    ring::{made, store_burst},
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

/// What a run found, in the order of [`FOUND`].
type Latency = [f64; 6];
/// Half of the packets were seen after this, 99 of 100, and all, in microseconds; what a hypervisor took of all CPUs during the run, in
/// milliseconds, 10 at a time, 0 where it does not tell; processor time of the reader's thread, in percent of the time that the run took;
/// and how long it took to fill two buckets at its rate, in microseconds: what latency may be at saturation.
const FOUND: [&str; 6] = ["p50", "p99", "max", "stolen", "cpu", "two-buckets"];
/// Those of them that are rows.
const ROWS: usize = 4;
const P99: usize = 1;
const CPU: usize = 4;
const TWO_BUCKETS: usize = 5;

/// The judged rows of latency, and the idle reader.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    for (row, rate) in [("idle", 1000), ("1mpps", 1_000_000)] {
        // Long enough that a processor lost for some milliseconds is less than one packet in a hundred.
        let time = session.scale.time(0.5);
        session.row(&format!("ring/latency/{row}-p99-us"), None, || {
            let entrant = Entrant::new("us", || Ok(paced(rate, time)?[P99]));
            session.heat("latency", vec![entrant]).0[0].spread()
        })?;
    }
    session.row("ring/latency/idle-cpu", None, || {
        Ok(Spread::once(silent(session.scale.time(SILENCE_SECONDS))?))
    })
}

/// From an idle link to saturation.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let repeated = |run: &dyn Fn() -> Result<Latency, Failure>| {
        (0..session.scale.repetitions.min(3))
            .map(|_| run())
            .collect::<Result<Vec<_>, _>>()
    };
    for (name, rate) in RATES {
        let seconds = if rate <= 1_000_000 { 1.0 } else { 0.5 };
        let time = session.scale.time(seconds);
        write(session, name, &repeated(&|| paced(rate, time)))?;
    }
    let found = repeated(&|| saturated(session.scale.ring_bytes));
    write(session, "saturated", &found)?;
    session.row("latency/two-buckets", None, || {
        let (two, p99) = (spread(&found, TWO_BUCKETS)?, spread(&found, P99)?.median);
        if p99 <= two.median {
            return Ok(two);
        }
        let why = format!("p99 is {p99} us, which must be {} us or less", two.median);
        Err(Failure::Wrong(why))
    })
}

/// What some runs found.
type Runs = Result<Vec<Latency>, Failure>;

fn write(session: &Session, rate: &str, found: &Runs) -> io::Result<()> {
    for (at, name) in FOUND.iter().enumerate().take(ROWS) {
        let row = format!("latency/{rate}/{name}");
        session.row(&row, None, || spread(found, at))?;
    }
    Ok(())
}

fn spread(found: &Runs, at: usize) -> Result<Spread, Failure> {
    let found = found.as_ref().map_err(Clone::clone)?;
    Spread::of(&found.iter().map(|figures| figures[at]).collect::<Vec<_>>())
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
    Ok(run(&live(), GroupKind::Lapped, 1, time)?[CPU])
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
    let (ring, mut producers) = made(config)?;
    let reader = ring.group(kind);
    let mut reader = reader.map_err(|error| Failure::system("making a reader", error))?;
    let bucket_bytes = ring.bucket_bytes();
    let each = if interval.is_zero() { 0 } else { packets };
    // Touched memory, and not zeros, which the system may give without pages: a first touch costs microseconds a page.
    let room = packets.clamp(1, ROOM_MAX.max(each));
    let mut latencies = vec![u32::MAX; usize::try_from(room).unwrap_or(usize::MAX)];
    latencies.clear();
    let frames = Frames::new(PACKET_BYTES);
    let (start, stolen_before_ms) = (Instant::now(), stolen_ms());
    let writing: Work<'_, Option<[f64; 5]>> =
        Box::new(|_| store(&mut producers[0], &frames, packets, start, interval).map(|()| None));
    let reading: Work<'_, Option<[f64; 5]>> = Box::new(|course| {
        read(
            &mut reader,
            (packets, each),
            latencies,
            start,
            bucket_bytes,
            course,
        )
        .map(Some)
    });
    let legs = together(&|| {}, vec![writing, reading])?;
    let found = legs.into_iter().find_map(|leg| leg.value);
    let [p50, p99, max, cpu, two_buckets] = found.ok_or_else(|| Failure::panicked(()))?;
    let stolen = stolen_ms() - stolen_before_ms;
    Ok([p50, p99, max, stolen, cpu, two_buckets])
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
    producer: &mut Producer,
    frames: &Frames,
    packets: u64,
    start: Instant,
    interval: Duration,
) -> Result<(), Failure> {
    let (interval_ns, begin_ns) = (ns(interval), ns(start.elapsed()));
    let mut stored = 0;
    while stored < packets {
        let due_ns = begin_ns + interval_ns * (stored + 1);
        let mut now_ns = ns(start.elapsed());
        while now_ns < due_ns {
            if due_ns - now_ns > SLEEP_MIN_NS {
                thread::park_timeout(Duration::from_nanos(due_ns - now_ns));
            } else {
                std::hint::spin_loop();
            }
            now_ns = ns(start.elapsed());
        }
        let all_due = (now_ns - begin_ns).checked_div(interval_ns);
        let end = all_due.unwrap_or(stored + Load::BURST).min(packets);
        let time_ns = now_ns.cast_signed();
        let burst = (stored..end).map(|number| Record::whole(time_ns, 0, frames.get(number)));
        store_burst(producer, burst)?;
        stored = end;
        if !interval.is_zero() {
            producer.publish();
        }
    }
    producer.publish();
    Ok(())
}

/// Reads all packets. Takes the latency of so many of them as `each` says, and of the first of each run of packets behind
/// those; `latencies` is empty. Gives what [`FOUND`] says, without what was stolen.
fn read(
    reader: &mut Reader,
    (packets, each): (u64, u64),
    mut latencies: Vec<u32>,
    start: Instant,
    bucket_bytes: usize,
    course: &Course,
) -> Result<[f64; 5], Failure> {
    let mut seen = 0;
    // This clock is read outside the other: of a run that is over at once, too, no more than all is the reader's.
    let begin = Instant::now();
    let cpu = cpu_time();
    while seen < packets {
        let Some(batch) = reader.next() else {
            course.check()?;
            reader.wait(NAP);
            continue;
        };
        let now_ns = ns(start.elapsed());
        for (index, packet) in batch.into_iter().enumerate() {
            seen += 1;
            if seen <= each || index == 0 {
                let latency_ns = now_ns - packet.time_ns.cast_unsigned();
                latencies.push(u32::try_from(latency_ns).unwrap_or(u32::MAX));
            }
        }
    }
    let cpu_seconds = cpu_time().saturating_sub(cpu).as_secs_f64();
    let seconds = begin.elapsed().as_secs_f64();
    reader.finish();
    check_lapped(reader.lapped().packets)?;
    check_count(packets, seen)?;
    latencies.sort_unstable();
    let bytes_per_us = packets as f64 * RECORD_BYTES as f64 / seconds / 1e6;
    let us = |percent| f64::from(quantile(&latencies, percent)) / 1e3;
    let cpu_percent = cpu_seconds / seconds * 100.0;
    let two_buckets = 2.0 * bucket_bytes as f64 / bytes_per_us;
    Ok([us(50), us(99), us(100), cpu_percent, two_buckets])
}

/// The least figure that so large a part of `sorted` does not exceed; 0 of none.
fn quantile(sorted: &[u32], percent: usize) -> u32 {
    let rank = (sorted.len() * percent).div_ceil(100);
    let at = rank.saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// Processor time of the calling thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime)
        .try_into()
        .unwrap_or_default()
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_list() {
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!(quantile(&hundred, 50), 50);
        assert_eq!(quantile(&hundred, 99), 99);
        assert_eq!(quantile(&hundred, 100), 100);
        assert_eq!(quantile(&[7], 50), 7);
    }

    #[test]
    fn a_latency_is_positive_and_ordered() {
        let [p50, p99, max, _, cpu, _] = paced(10_000, Duration::from_millis(50)).unwrap();
        assert!(p50 > 0.0 && p50 <= p99 && p99 <= max && cpu > 0.0);
        let [p50, .., two_buckets] = saturated(32 << 20).unwrap();
        assert!(p50 > 0.0 && two_buckets > 0.0);
        // All of it where the reader came when the packet was there already.
        assert!(silent(Duration::from_millis(20)).unwrap() <= 100.0);
    }
}
