//! The time from the store of a packet until a consumer has the packet. Our ring, QQ of 2016 and
//! the third-party queues run at the same rates, with one producer and one consumer.
//!
//! The producer reads the monotonic clock, and stores all packets that are due with this time as
//! their stamp. Except to QQ of 2016, it hands these packets over at once, as an inserter publishes
//! when its source runs dry. The consumer reads the clock once for each batch, storage, buffer or
//! single packet.
//!
//! - The reader of our ring sleeps whenever there are no new packets ([`Reader::wait`]), as an idle
//!   recorder does. In the rows `ring-spinning` it polls instead.
//! - The consumer of QQ of 2016 sleeps at a condition variable. The consumer gets a storage after
//!   the producer has filled the storage or stores a packet after the hold time, or at the end.
//! - The consumer of a third-party queue polls without pauses. A queue operation carries one packet
//!   or, in the rows `latency/QUEUE/64/…`, a buffer of at most 64 packets. The producer sends a
//!   buffer when it is full, and when no further packet is due.

use std::{
    io,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, Reader, Record, RingConfig};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    contest::{Course, Frames, Work, together},
    measure::{Failure, Spread, check_count, check_lapped},
    peers::{self, PeerContest, Way},
    qq2016::{HOLD, Qq2016},
    queues::two_cores,
    ring::{made, store_burst},
    session::{PartsRun, Session},
};

/// Maximum sleep of a reader. The recorder's analyzer has the same limit while a dump is open.
const NAP: Duration = Duration::from_millis(10);
/// If the next packet is due in more than this time, the producer sleeps until then. Otherwise the
/// producer polls the clock.
const SLEEP_MIN_NS: u64 = 200_000;
/// Bytes of the packets, except in [`links`].
const PACKET_BYTES: usize = 64;
/// More than a run up to 1 Mpps can store. At 10 Mpps a run can store more, and fails if its reader
/// is lapped.
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
/// The parts of a row's name for the two quantiles.
const QUANTILES: [&str; 2] = ["p50", "p99"];
/// Links in table 7.4, Gbit/s, and sizes of inner queues.
const LINKS: [u32; 2] = [10, 40];
const INNER_MIB: [usize; 3] = [2, 4, 32];
/// Bytes of the packets on the links of [`LINKS`].
const LINK_PACKET_BYTES: usize = 1514;

/// The figures of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LatencyFigures {
    /// 50 and 99 of 100 packets were seen within these times, µs.
    quantiles_us: [f64; 2],
    /// Processor time of the consumer's thread, in percent of the time of the run.
    cpu_percent: f64,
}

/// The judged rows of latency, and the idle reader.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    for (row, rate) in [("idle", 1000), ("1mpps", 1_000_000)] {
        // Long enough that a processor lost for some milliseconds affects less than one packet in a
        // hundred.
        let time = session.scale.time(0.5);
        session.row(&format!("ring/latency/{row}-p99-us"), None, || {
            session.alone("latency, us", || {
                Ok(ring(&Pace::new(PACKET_BYTES, rate, time), None, true)?.quantiles_us[1])
            })
        })?;
    }
    session.row("ring/latency/idle-cpu", None, || {
        Ok(Spread::once(silent(session.scale.time(SILENCE_SECONDS))?))
    })
}

/// From an idle link to ten million packets a second, and links at their full rate.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let mut qq = Qq2016::default();
    let mut peers: Vec<(String, Box<dyn PeerContest>)> = Vec::new();
    for (way, word) in [(Way::OneByOne, ""), (Way::Well, "/64")] {
        let all = peers::all(way).into_iter();
        peers.extend(all.map(|(name, peer)| (format!("{name}{word}"), peer)));
    }
    for (rate, per_second) in RATES {
        let scale = &session.scale;
        let ours = scale.time(if per_second <= 1_000_000 { 1.0 } else { 0.5 });
        let theirs = scale.time(if per_second <= 1000 { 0.25 } else { 0.1 });
        let pace = move |time| Pace::new(PACKET_BYTES, per_second, time);
        let mut cases: Vec<(String, PartsRun<'_, 2>)> = vec![
            (
                format!("latency/{rate}/"),
                Box::new(move || Ok(ring(&pace(ours), None, true)?.quantiles_us)),
            ),
            (
                format!("latency/ring-spinning/{rate}/"),
                Box::new(move || Ok(ring(&pace(theirs), None, false)?.quantiles_us)),
            ),
            (
                format!("latency/qq2016/{rate}/"),
                Box::new(|| {
                    let memory = &mut session.memory.borrow_mut();
                    Ok(qq.carry_due(&pace(theirs), memory)?.quantiles_us)
                }),
            ),
        ];
        for (name, peer) in &mut peers {
            let run = move || {
                let memory = &mut session.memory.borrow_mut();
                Ok(peer.carry_due(&pace(theirs), memory)?.quantiles_us)
            };
            cases.push((format!("latency/{name}/{rate}/"), Box::new(run)));
        }
        session.measure_parts(&format!("latency, {rate}"), QUANTILES, cases)?;
    }
    links(session)
}

/// Table 7.4: inner queues of QQ of 2016, or buckets of our ring, on a link at its full rate. There
/// is one producer, so the guard interval is 1.
fn links(session: &Session) -> io::Result<()> {
    for (gigabits, mib) in LINKS
        .iter()
        .flat_map(|link| INNER_MIB.map(|mib| (*link, mib)))
    {
        let bits_per_second = f64::from(gigabits) * 1e9;
        // Equation 7.2 of the thesis.
        let filling_seconds = (mib << 20) as f64 * 8.0 / bits_per_second;
        let least_us = filling_seconds.min(HOLD.as_secs_f64()) * 1e6;
        let row = format!("latency/{gigabits}gbit/computed/{mib}MiB");
        session.row(&row, None, || Ok(Spread::once(least_us)))?;
        let packet_bits = LINK_PACKET_BYTES as f64 * 8.0;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and small"
        )]
        let per_second = (bits_per_second / packet_bits) as u32;
        let time = session.scale.time(0.25);
        let pace = move || Pace::new(LINK_PACKET_BYTES, per_second, time);
        let mut qq = Qq2016 {
            storage_bytes: mib << 20,
            ..Qq2016::default()
        };
        let config = RingConfig {
            bucket_bytes: Some(mib << 20),
            ..RingConfig::new(session.scale.ring_bytes, 1, 1)
        };
        let cases: Vec<(_, PartsRun<'_, 2>)> = vec![
            (
                format!("latency/{gigabits}gbit/ring/{mib}MiB/"),
                Box::new(move || Ok(ring(&pace(), Some(config.clone()), true)?.quantiles_us)),
            ),
            (
                format!("latency/{gigabits}gbit/qq2016/{mib}MiB/"),
                Box::new(move || {
                    let memory = &mut session.memory.borrow_mut();
                    Ok(qq.carry_due(&pace(), memory)?.quantiles_us)
                }),
            ),
        ];
        let what = format!("latency, {gigabits} Gbit/s, {mib} MiB");
        session.measure_parts(&what, QUANTILES, cases)?;
    }
    Ok(())
}

/// Percent of a core that a reader uses while nothing is stored.
fn silent(time: Duration) -> Result<f64, Failure> {
    // The only packet arrives at the end, and ends the run.
    let pace = Pace {
        packets: 1,
        interval_ns: ns(time).max(1),
        ..Pace::new(PACKET_BYTES, 1, time)
    };
    Ok(ring(&pace, None, true)?.cpu_percent)
}

/// Packets that become due at a rate. The first packet is due after one interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) packet_bytes: usize,
    packets: u64,
    interval_ns: u64,
    /// Stamps count from here.
    start: Instant,
}

impl Pace {
    fn new(packet_bytes: usize, packets_per_second: u32, time: Duration) -> Self {
        let interval_ns = 1_000_000_000 / u64::from(packets_per_second);
        Self {
            packet_bytes,
            packets: (ns(time) / interval_ns).max(1),
            interval_ns,
            start: Instant::now(),
        }
    }

    /// The producer's part: calls `give` with the numbers of all packets that are due, and with
    /// their stamp.
    pub(crate) fn send(
        &self,
        mut give: impl FnMut(Range<u64>, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let begin_ns = ns(self.start.elapsed());
        let mut given = 0;
        while given < self.packets {
            let due_ns = begin_ns + self.interval_ns * (given + 1);
            let mut now_ns = ns(self.start.elapsed());
            while now_ns < due_ns {
                if due_ns - now_ns > SLEEP_MIN_NS {
                    thread::park_timeout(Duration::from_nanos(due_ns - now_ns));
                } else {
                    std::hint::spin_loop();
                }
                now_ns = ns(self.start.elapsed());
            }
            let end = ((now_ns - begin_ns) / self.interval_ns).min(self.packets);
            give(given..end, now_ns)?;
            given = end;
        }
        Ok(())
    }

    /// Runs a producer, which calls [`Self::send`], and a consumer. `take` shows the consumer the
    /// packets that are there, and returns whether there were packets; otherwise it may wait.
    /// `stop` must wake a thread that waits without a time limit.
    pub(crate) fn run(
        &self,
        stop: &dyn Fn(),
        send: impl FnOnce(&Course) -> Result<(), Failure> + Send,
        mut take: impl FnMut(&mut Consumer) -> Result<bool, Failure> + Send,
    ) -> Result<LatencyFigures, Failure> {
        two_cores()?;
        let packets = self.packets;
        // Touched memory, and not zeros, for which the system may provide no pages: a first touch
        // costs microseconds a page.
        let mut latencies = vec![u32::MAX; usize::try_from(packets).unwrap_or(usize::MAX)];
        latencies.clear();
        let mut consumer = Consumer {
            start: self.start,
            now_ns: 0,
            latencies,
        };
        let sending: Work<'_, LatencyFigures> =
            Box::new(|course| send(course).map(|()| LatencyFigures::default()));
        let receiving: Work<'_, LatencyFigures> = Box::new(move |course| {
            // This clock is read outside of the processor time, so that the consumer's share never
            // exceeds the whole, even in a very short run.
            let begin = Instant::now();
            let cpu = cpu_time();
            while (consumer.latencies.len() as u64) < packets {
                if !take(&mut consumer)? {
                    course.check()?;
                }
            }
            let cpu_seconds = cpu_time().saturating_sub(cpu).as_secs_f64();
            let seconds = begin.elapsed().as_secs_f64();
            let mut latencies = consumer.latencies;
            check_count(packets, latencies.len() as u64)?;
            latencies.sort_unstable();
            Ok(LatencyFigures {
                quantiles_us: [50, 99].map(|part| f64::from(quantile(&latencies, part)) / 1e3),
                cpu_percent: cpu_seconds / seconds * 100.0,
            })
        });
        let legs = together(stop, vec![receiving, sending])?;
        Ok(legs[0].value)
    }
}

/// The latencies of the packets that a consumer has seen.
#[derive(Debug)]
pub(crate) struct Consumer {
    start: Instant,
    now_ns: u64,
    latencies: Vec<u32>,
}

impl Consumer {
    /// Notes the time at which the consumer got some packets.
    #[inline]
    pub(crate) fn look(&mut self) {
        self.now_ns = ns(self.start.elapsed());
    }

    /// Records the latency of a packet with this stamp, seen at the time that [`Self::look`] noted.
    #[inline]
    pub(crate) fn see(&mut self, time_ns: u64) {
        let latency_ns = self.now_ns.saturating_sub(time_ns);
        self.latencies
            .push(u32::try_from(latency_ns).unwrap_or(u32::MAX));
    }
}

/// Our ring, by default of [`RING_BYTES`] with its default configuration. The reader sleeps while
/// there are no packets, or polls.
fn ring(
    pace: &Pace,
    config: Option<RingConfig>,
    is_sleepy: bool,
) -> Result<LatencyFigures, Failure> {
    let config = config.unwrap_or_else(|| RingConfig::new(RING_BYTES, 1, 1));
    let (ring, mut producers) = made(&config)?;
    let reader = ring.group(GroupKind::Lapped);
    let mut reader = reader.map_err(|error| Failure::system("making a reader", error))?;
    let frames = Frames::new(pace.packet_bytes);
    let producer = &mut producers[0];
    let send = |_: &Course| {
        pace.send(|numbers, time_ns| {
            let time_ns = time_ns.cast_signed();
            store_burst(
                producer,
                numbers.map(|number| Record::whole(time_ns, 0, frames.get(number))),
            )?;
            producer.publish();
            Ok(())
        })
    };
    let take = |consumer: &mut Consumer| {
        let Some(batch) = reader.next() else {
            return wait(&mut reader, is_sleepy);
        };
        consumer.look();
        batch
            .into_iter()
            .for_each(|packet| consumer.see(packet.time_ns.cast_unsigned()));
        Ok(true)
    };
    let figures = pace.run(&|| {}, send, take)?;
    reader.finish();
    check_lapped(reader.lapped().packets)?;
    Ok(figures)
}

/// There are no packets: sleeps, or polls again.
///
/// # Errors
/// The reader was lapped.
fn wait(reader: &mut Reader, is_sleepy: bool) -> Result<bool, Failure> {
    check_lapped(reader.lapped().packets)?;
    if is_sleepy {
        reader.wait(NAP);
    } else {
        std::hint::spin_loop();
    }
    Ok(false)
}

/// The smallest figure that `percent` of 100 do not exceed; 0 for an empty list.
fn quantile(sorted: &[u32], percent: usize) -> u32 {
    let rank = (sorted.len() * percent).div_ceil(100);
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
        assert_eq!([50, 99].map(|part| quantile(&hundred, part)), [50, 99]);
        assert_eq!((quantile(&[7], 99), quantile(&[], 50)), (7, 0));
    }

    #[test]
    fn a_latency_is_positive() {
        let pace = || Pace::new(64, 10_000, Duration::from_millis(50));
        let of_queues = |is_sleepy| ring(&pace(), None, is_sleepy).unwrap();
        let mut memory = crate::memory::Memory::new(32 << 20).unwrap();
        let mut all = vec![of_queues(true), of_queues(false)];
        all.push(Qq2016::default().carry_due(&pace(), &mut memory).unwrap());
        for way in [Way::OneByOne, Way::Well] {
            for (_, mut peer) in peers::all(way) {
                all.push(peer.carry_due(&pace(), &mut memory).unwrap());
            }
        }
        for found in all {
            let [p50, p99] = found.quantiles_us;
            assert!(
                0.0 < p50 && p50 <= p99 && found.cpu_percent > 0.0,
                "{found:?}"
            );
        }
        // The share can be 100 % if the packet was stored before the reader started.
        assert!(silent(Duration::from_millis(20)).unwrap() <= 100.0);
    }
}
