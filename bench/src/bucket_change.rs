//! How long the change from a full bucket to the next bucket delays a producer. While a producer
//! stores packets, it takes the mutex of the outer queue only for this change.
//!
//! At full scale the ring has all but one of the maximum number of buckets. It is full, and has
//! many more open dumps ([`RESERVATIONS`]) than a recorder usually has. Its memory is not
//! pre-faulted. In one pass the windows of the dumps cover the newest quarter of the ring and all
//! later packets, so that each dump wants every bucket that closes. In the other pass they cover
//! the oldest eighth, so that each dump protects the buckets that would be overwritten next. The
//! slower pass counts.
//!
//! A bucket has the minimum size, and must be full before the producer needs the next bucket. A
//! record that nearly fills a bucket therefore alternates with a short record: neither fits after
//! the other. The time is that of the call that stores the short record, including a copy of one
//! page. The slowest hundredth of the calls is omitted, because interrupts delay most of these
//! calls. The number of buckets is even, so that a bucket that contained a short record gets a
//! short record again, and no timed run touches memory for the first time. A first touch makes the
//! kernel provide memory. In a virtual machine, first touches also slow the calls between them (up
//! to a third of these calls, by 10 to 80 µs each).

use std::{fs, io, time::Instant};

use retroscope_ring::{Producer, Reservation, Ring, RingConfig};
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

use crate::{
    measure::{Failure, Spread, check_count},
    ring::{made, store_one},
    session::Session,
};

/// The minimum bucket size: a record of [`LONG_BYTES`] with its descriptor, in whole pages.
const BUCKET_BYTES: usize = 260 << 10;
/// The maximum record length.
const LONG_BYTES: usize = 256 << 10;
/// A short record does not fit after a long record, nor a long record after a short record.
const SHORT_BYTES: usize = 4096;
const _: () = assert!(LONG_BYTES + SHORT_BYTES + 2 * 16 > BUCKET_BYTES);
/// One bucket less than the maximum of a ring.
const BUCKETS_MAX: u64 = 65_534;
/// The ring has one bucket for this many bytes of [`ring_bytes`](crate::measure::Scale), so at 1
/// GiB it has [`BUCKETS_MAX`] buckets.
const SCALE_BYTES_PER_BUCKET: u64 = 16 << 10;
/// Number of open dumps.
const RESERVATIONS: usize = 1000;
/// The number of timed calls in a run is the number of the ring's buckets divided by this number.
const TIMED_SHARE: u64 = 64;
/// One call of this many is omitted: the slowest hundredth.
const LEFT_OUT_SHARE: usize = 100;

/// `ring/bucket-change-us`.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    session.row("ring/bucket-change-us", None, || microseconds(session))
}

/// Microseconds of a change, over some runs.
fn microseconds(session: &Session) -> Result<Spread, Failure> {
    let buckets = (session.scale.ring_bytes / SCALE_BYTES_PER_BUCKET).clamp(64, BUCKETS_MAX) & !1;
    // On average half of each bucket is touched; another quarter is a margin.
    let needed = buckets * BUCKET_BYTES as u64 / 4 * 3;
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    if kib.is_some_and(|kib| kib << 10 < needed) {
        let gib = needed.div_ceil(1 << 30);
        let why = format!("{gib} GiB of memory are not there");
        return Err(Failure::CannotRun(why));
    }
    // Huge pages would also back the memory that no record touches.
    let failed = |error| Failure::system("prctl(PR_SET_THP_DISABLE)", error);
    let before = transparent_huge_pages_are_disabled().map_err(failed)?;
    disable_transparent_huge_pages(true).map_err(failed)?;
    let slowest = slowest(session, buckets);
    disable_transparent_huge_pages(before).map_err(failed)?;
    slowest
}

fn slowest(session: &Session, buckets: u64) -> Result<Spread, Failure> {
    let mut full = FullRing::new(buckets)?;
    let changes = (buckets / TIMED_SHARE).max(1);
    let mut worst = Spread::once(0.0);
    // The dumps want the oldest eighth of the ring, or the newest quarter and all later packets.
    for (from, to) in [(0.0, Some(0.125)), (0.75, None)] {
        let _reservations = full.reserve(from, to);
        let spread = session.alone("change of buckets, us", || full.changes(changes))?;
        if worst.median < spread.median {
            worst = spread;
        }
    }
    match full.ring.statistics().reservations_fallen {
        0 => Ok(worst),
        fallen => Err(Failure::Unsound(format!("{fallen} reservations fell"))),
    }
}

/// A ring in which no bucket is free.
struct FullRing {
    ring: Ring,
    producer: Producer,
    /// Records stored, each in a separate bucket. Stamps are record numbers, from 1.
    stored: u64,
    frame: Vec<u8>,
}

impl FullRing {
    fn new(buckets: u64) -> Result<Self, Failure> {
        let config = RingConfig {
            bucket_bytes: Some(BUCKET_BYTES),
            prefault: false,
            ..RingConfig::new(buckets * BUCKET_BYTES as u64, 1, 0)
        };
        let (ring, mut producers) = made(&config)?;
        let producer = producers.remove(0);
        let mut full = Self {
            ring,
            producer,
            stored: 0,
            frame: vec![0x5a; LONG_BYTES],
        };
        for number in 0..buckets {
            full.store(if number % 2 == 0 {
                SHORT_BYTES
            } else {
                LONG_BYTES
            })?;
        }
        let statistics = full.ring.statistics();
        let closed = u64::try_from(statistics.closed_buckets).unwrap_or(u64::MAX);
        if statistics.free_buckets > 0 || closed != buckets - 1 {
            return Err(Failure::Unsound(format!("not full: {statistics:?}")));
        }
        Ok(full)
    }

    fn store(&mut self, bytes: usize) -> Result<(), Failure> {
        self.stored += 1;
        store_one(&mut self.producer, self.stored, &self.frame[..bytes])
    }

    /// Makes [`RESERVATIONS`] reservations of the same records: those from one position to another
    /// in the ring's contents, on a scale from 0 to 1. If `to` is `None`, also reserves all later
    /// packets.
    fn reserve(&self, from: f64, to: Option<f64>) -> Vec<Reservation> {
        let statistics = self.ring.statistics();
        let oldest_ns = statistics.oldest_ns.unwrap_or_default();
        let newest_ns = statistics.newest_ns.unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, reason = "stamps are small numbers")]
        let at = |place: f64| oldest_ns + (place * (newest_ns - oldest_ns) as f64) as i64;
        let to_ns = to.map_or(i64::MAX, at);
        let reserve = |_| self.ring.reserve(at(from), to_ns);
        (0..RESERVATIONS).map(reserve).collect()
    }

    /// Stores `changes` pairs of records and returns the mean microseconds of the calls for the
    /// short records, without the slowest hundredth.
    fn changes(&mut self, changes: u64) -> Result<f64, Failure> {
        let before = self.ring.statistics();
        let mut times_ns = Vec::new();
        for _ in 0..changes {
            let start = Instant::now();
            self.store(SHORT_BYTES)?;
            times_ns.push(start.elapsed().as_nanos());
            self.store(LONG_BYTES)?;
        }
        let evicted = self.ring.statistics().evicted_packets - before.evicted_packets;
        check_count(2 * changes, evicted)?;
        times_ns.sort_unstable();
        times_ns.truncate(times_ns.len() - times_ns.len() / LEFT_OUT_SHARE);
        Ok(times_ns.iter().sum::<u128>() as f64 / times_ns.len() as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{measure::Scale, session::Selection};

    #[test]
    fn each_timed_call_changes_buckets_and_no_reservation_falls() {
        let folder = tempfile::tempdir().unwrap();
        let scale = Scale {
            ring_bytes: 2 << 20,
            seconds: 0.001,
            repetitions: 1,
        };
        let session = Session::start(folder.path(), scale, Selection::parse("")).unwrap();
        let spread = microseconds(&session).unwrap();
        assert!(spread.median > 0.0);
        assert!(!transparent_huge_pages_are_disabled().unwrap());
    }
}
