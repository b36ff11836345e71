//! From store to peek: the time until a reader has a packet.
//!
//! The producer reads the monotonic clock, and stores all packets that are due with this time as
//! their stamp. It publishes after these packets, as an inserter does when its source runs dry. At
//! every rate the reader sleeps whenever there are no new packets ([`Reader::wait`]), as an idle
//! recorder does. The reader reads the clock once for each batch.

use std::{
    io, thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, Producer, Reader, Record, RingConfig};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    contest::{Course, Frames, Work, together},
    measure::{Entrant, Failure, Spread, check_count, check_lapped},
    ring::{made, store_burst},
    session::Session,
};

/// Maximum sleep of a reader. The recorder's analyzer has the same limit while a dump is open.
const NAP: Duration = Duration::from_millis(10);
/// If the next packet is due in more than this time, the producer sleeps until then. Otherwise the
/// producer polls the clock.
const SLEEP_MIN_NS: u64 = 200_000;
/// Bytes of the packets.
const PACKET_BYTES: usize = 64;
/// More than a run up to 1 Mpps can store. At 10 Mpps a run stores more, and fails if its reader is
/// lapped.
const RING_BYTES: u64 = 256 << 20;
/// How long a reader is observed without packets.
const SILENCE_SECONDS: f64 = 2.0;
/// The rates: a name, and the number of packets a second.
const RATES: [(&str, u32); 6] = [
    ("idle", 100),
    ("1kpps", 1000),
    ("10kpps", 10_000),
    ("100kpps", 100_000),
    ("1mpps", 1_000_000),
    ("10mpps", 10_000_000),
];

/// The figures of a run.
#[derive(Debug, Clone, Copy, Default)]
struct LatencyFigures {
    /// 99 of 100 packets were seen within this time, µs.
    p99_us: f64,
    /// Processor time of the reader's thread, in percent of the time of the run.
    cpu_percent: f64,
}

/// The judged rows of latency, and the idle reader.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    for (row, rate) in [("idle", 1000), ("1mpps", 1_000_000)] {
        // Long enough that a processor lost for some milliseconds affects less than one packet in a
        // hundred.
        let time = session.scale.time(0.5);
        session.row(&format!("ring/latency/{row}-p99-us"), None, || {
            session.alone("latency, us", || Ok(paced(rate, time)?.p99_us))
        })?;
    }
    session.row("ring/latency/idle-cpu", None, || {
        Ok(Spread::once(silent(session.scale.time(SILENCE_SECONDS))?))
    })
}

/// From an idle link to ten million packets a second.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let entrant = |(name, rate)| {
        let seconds = if rate <= 1_000_000 { 1.0 } else { 0.5 };
        let time = session.scale.time(seconds);
        let run = move || Ok(paced(rate, time)?.p99_us);
        Entrant::new(format!("latency/{name}/p99"), run)
    };
    session.measure("latency", RATES.into_iter().map(entrant).collect())
}

/// Stores and reads packets at a rate for a while.
fn paced(packets_per_second: u32, time: Duration) -> Result<LatencyFigures, Failure> {
    let interval = Duration::from_secs(1) / packets_per_second;
    let packets = time.as_nanos() * u128::from(packets_per_second) / 1_000_000_000;
    run(u64::try_from(packets).unwrap_or(u64::MAX), interval)
}

/// Percent of a core that a reader uses while nothing is stored.
fn silent(time: Duration) -> Result<f64, Failure> {
    // The only packet arrives at the end, and ends the run.
    Ok(run(1, time)?.cpu_percent)
}

/// Runs one producer and one reader. The first packet is due after one interval. The ring has its
/// default configuration.
fn run(packets: u64, interval: Duration) -> Result<LatencyFigures, Failure> {
    let (ring, mut producers) = made(&RingConfig::new(RING_BYTES, 1, 1))?;
    let reader = ring.group(GroupKind::Lapped);
    let mut reader = reader.map_err(|error| Failure::system("making a reader", error))?;
    // Touched memory, and not zeros, for which the system may provide no pages: a first touch costs
    // microseconds a page.
    let mut latencies = vec![u32::MAX; usize::try_from(packets).unwrap_or(usize::MAX)];
    latencies.clear();
    let start = Instant::now();
    let storing: Work<'_, LatencyFigures> = Box::new(|_| {
        store(&mut producers[0], packets, start, interval).map(|()| LatencyFigures::default())
    });
    let reading: Work<'_, LatencyFigures> =
        Box::new(|course| read(&mut reader, packets, latencies, start, course));
    let legs = together(&|| {}, vec![reading, storing])?;
    Ok(legs[0].value)
}

/// Stores packets as they are due, and publishes after each burst of due packets.
fn store(
    producer: &mut Producer,
    packets: u64,
    start: Instant,
    interval: Duration,
) -> Result<(), Failure> {
    let frames = Frames::new(PACKET_BYTES);
    let (interval_ns, begin_ns) = (ns(interval).max(1), ns(start.elapsed()));
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
        let end = ((now_ns - begin_ns) / interval_ns).min(packets);
        let time_ns = now_ns.cast_signed();
        let burst = (stored..end).map(|number| Record::whole(time_ns, 0, frames.get(number)));
        store_burst(producer, burst)?;
        producer.publish();
        stored = end;
    }
    Ok(())
}

/// Reads all packets and takes the latency of each packet. `latencies` is empty.
fn read(
    reader: &mut Reader,
    packets: u64,
    mut latencies: Vec<u32>,
    start: Instant,
    course: &Course,
) -> Result<LatencyFigures, Failure> {
    let mut seen = 0;
    // This clock is read outside of the processor time, so that the reader's share never exceeds
    // the whole, even in a very short run.
    let begin = Instant::now();
    let cpu = cpu_time();
    while seen < packets {
        let Some(batch) = reader.next() else {
            course.check()?;
            reader.wait(NAP);
            continue;
        };
        let now_ns = ns(start.elapsed());
        for packet in batch {
            seen += 1;
            let latency_ns = now_ns - packet.time_ns.cast_unsigned();
            latencies.push(u32::try_from(latency_ns).unwrap_or(u32::MAX));
        }
    }
    let cpu_seconds = cpu_time().saturating_sub(cpu).as_secs_f64();
    let seconds = begin.elapsed().as_secs_f64();
    reader.finish();
    check_lapped(reader.lapped().packets)?;
    check_count(packets, seen)?;
    latencies.sort_unstable();
    Ok(LatencyFigures {
        p99_us: f64::from(p99(&latencies)) / 1e3,
        cpu_percent: cpu_seconds / seconds * 100.0,
    })
}

/// The smallest figure that 99 of 100 do not exceed; 0 for an empty list.
fn p99(sorted: &[u32]) -> u32 {
    let rank = (sorted.len() * 99).div_ceil(100);
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

/// Processor time of the calling thread.
pub(crate) fn cpu_time() -> Duration {
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
    fn a_quantile_is_of_the_list() {
        let hundred: Vec<u32> = (1..=100).collect();
        assert_eq!(p99(&hundred), 99);
        assert_eq!((p99(&[7]), p99(&[])), (7, 0));
    }

    #[test]
    fn a_latency_is_positive() {
        let found = paced(10_000, Duration::from_millis(50)).unwrap();
        assert!(found.p99_us > 0.0 && found.cpu_percent > 0.0);
        // The share can be 100 % if the packet was stored before the reader started.
        assert!(silent(Duration::from_millis(20)).unwrap() <= 100.0);
    }
}
