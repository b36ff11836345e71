//! From store to peek: how long until a reader has a packet in its hands.
//!
//! The producer stamps each packet with the monotonic clock just before it stores it, and publishes when nothing more is due,
//! as an inserter does when its source runs dry. The reader sleeps whenever there is nothing new ([`Reader::wait`]), at every
//! rate, as an idle recorder does, and reads the clock once for each run of packets that it is handed.

use std::{
    fs,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, Mode, Producer, Reader, Record, Ring, RingConfig};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    contest::{Failure, Frames},
    limits::DESCRIPTOR_BYTES,
    pin,
    ring::store_burst,
};

/// A reader looks around after this at the latest, as the recorder's analyzer does.
const NAP: Duration = Duration::from_millis(10);
/// A producer sleeps until a packet is due if that is further away than this, else it watches the clock.
const SLEEP_MIN: Duration = Duration::from_micros(200);
/// Bytes of the packets.
const PACKET_BYTES: usize = 64;
/// Bytes that a packet takes in the ring.
const RECORD_BYTES: u64 = (DESCRIPTOR_BYTES + PACKET_BYTES) as u64;
/// Packets between two looks at the clock at saturation.
const BURST: u64 = 64;
/// Latencies that memory is prepared for where not every packet's is taken.
const ROOM_MAX: u64 = 1 << 20;
/// More than any of the runs can store, so that nobody is lapped.
const RING_BYTES: u64 = 256 << 20;

/// What a run found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// Half of the packets were seen after this, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 packets were.
    pub p99_us: f64,
    /// All were.
    pub max_us: f64,
    /// Processor time of the reader's thread, in percent of the time that the run took.
    pub reader_cpu_percent: f64,
    /// How long it took to fill two buckets at the rate of the run: what latency may be at saturation.
    pub two_buckets_us: f64,
    /// What a hypervisor took of all CPUs during the run, in milliseconds, 10 at a time. 0 where it does not tell.
    pub stolen_ms: f64,
}

/// Stores packets at a rate for a while and reads them.
///
/// # Errors
/// [`Failure`]: what was seen is not what was stored, or a call failed.
pub fn paced(packets_per_second: u32, time: Duration) -> Result<Latency, Failure> {
    let interval = Duration::from_secs(1) / packets_per_second;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "seconds and rates of this module are small"
    )]
    let packets = (time.as_secs_f64() * f64::from(packets_per_second)) as u64;
    run(&live(), GroupKind::Lapped, packets, interval)
}

/// Stores packets as fast as they can be, for two laps of a ring, which waits for the reader; the clock is read once a burst. Of each run of
/// packets that the reader is handed, the first is taken: the one that waited longest.
///
/// # Errors
/// [`Failure`]: what was seen is not what was stored, or a call failed.
pub fn saturated(ring_bytes: u64) -> Result<Latency, Failure> {
    let config = RingConfig {
        mode: Mode::Wait,
        ..RingConfig::new(ring_bytes, 1, 1)
    };
    let packets = ring_bytes * 2 / RECORD_BYTES;
    run(&config, GroupKind::Gating, packets, Duration::ZERO)
}

/// Percent of a core that a reader takes while nothing is stored.
///
/// # Errors
/// [`Failure`]: a call failed.
pub fn silent(time: Duration) -> Result<f64, Failure> {
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
    let mut reader = ring.group("latency", kind).map_err(failure)?;
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
            if interval.is_zero() {
                flood(producer, &frames, packets, start)
            } else {
                store(producer, &frames, packets, start, interval)
            }
        });
        let reader = scope.spawn(move || {
            pin::pin(1);
            let latencies = room(packets.clamp(1, ROOM_MAX.max(each)));
            both_ready.wait();
            read(&mut reader, packets, each, latencies, start, bucket_bytes)
        });
        let stored = writer.join().map_err(|_| Failure::Panicked)?;
        let read = reader.join().map_err(|_| Failure::Panicked)?;
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
    let ticks = text
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().nth(8)?.parse::<u32>().ok());
    f64::from(ticks.unwrap_or_default()) * 10.0
}

/// An empty list with memory that was touched: a first touch costs microseconds a page, and with a place for each packet that adds up
/// to milliseconds.
fn room(latencies: u64) -> Vec<u32> {
    // Not zeros, which the system may give without pages.
    let mut list = vec![u32::MAX; usize::try_from(latencies).unwrap_or(usize::MAX)];
    list.clear();
    list
}

fn flood(
    mut producer: Producer,
    frames: &Frames,
    packets: u64,
    start: Instant,
) -> Result<(), Failure> {
    let mut stored = 0;
    while stored < packets {
        let time_ns = ns(start.elapsed());
        let end = packets.min(stored + BURST);
        let burst = (stored..end).map(|number| Record::whole(time_ns, 0, frames.get(number)));
        store_burst(&mut producer, burst).map_err(|error| Failure::system("store", error))?;
        stored = end;
    }
    producer.publish();
    Ok(())
}

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
            let left =
                Duration::from_nanos(u64::try_from(due - now.as_nanos()).unwrap_or(u64::MAX));
            if left > SLEEP_MIN {
                thread::park_timeout(left);
            } else {
                std::hint::spin_loop();
            }
            now = start.elapsed();
        }
        let all_due = u64::try_from((now.as_nanos() - begin_ns) / interval_ns)
            .unwrap_or(u64::MAX)
            .min(packets);
        let time_ns = ns(now);
        let burst = (stored..all_due).map(|number| Record::whole(time_ns, 0, frames.get(number)));
        store_burst(&mut producer, burst).map_err(|error| Failure::system("store", error))?;
        stored = all_due;
        producer.publish();
    }
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
    let missed = reader.lapped().packets;
    if missed > 0 {
        return Err(Failure::Lapped { packets: missed });
    }
    if seen != packets {
        return Err(Failure::Count {
            expected: packets,
            seen,
        });
    }
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
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
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
