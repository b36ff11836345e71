//! How long a producer is held up by the change from a full bucket to the next one: the only time that it takes the mutex of the
//! outer queue.
//!
//! The ring is as finely cut as it may be, full, and has as many dumps open as anybody will. Its memory is not filled before. The windows
//! of the dumps are once the newest quarter of what the ring holds and all that comes, so that each of them wants every bucket
//! that is closed, and once the oldest eighth, so that each keeps the buckets that would be overwritten next. The slower of both counts.
//!
//! A bucket is the smallest that the ring takes, and must be full before the next one is asked for. So a record that nearly
//! fills one and a short one take turns: neither fits behind the other. The time is that of the call that stores the short one, with
//! its copy of a page; a call in a hundred, the slowest, is left out, which is an interrupt more often than not. The number of buckets
//! is even, so that a bucket that held a short record gets one again and no timed run touches memory for the first time: that memory
//! comes from the machine, and in a virtual one costs the calls between as well (up to a third of them, 10 to 80 µs each).

use std::{fs, io, time::Instant};

use retroscope_ring::{Producer, Reservation, Ring, RingConfig};
use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

use crate::{
    measure::{Failure, Spread, check_count},
    ring::{made, store_one},
    session::Session,
};

/// The smallest bucket there is: a record of [`LONG_BYTES`] with its description, in whole pages.
const BUCKET_BYTES: usize = 260 << 10;
/// The longest record there is.
const LONG_BYTES: usize = 256 << 10;
/// Does not fit behind a long one, nor a long one behind it.
const SHORT_BYTES: usize = 4096;
const _: () = assert!(LONG_BYTES + SHORT_BYTES + 2 * 16 > BUCKET_BYTES);
/// As many buckets as a ring may have, but one.
const BUCKETS_MAX: u64 = 65_534;
/// Bytes of a run's scale for each bucket: 1 GiB for all of them.
const SCALE_BYTES_PER_BUCKET: u64 = 16 << 10;
/// Dumps that are open.
const RESERVATIONS: usize = 1000;
/// Of each run's calls that change buckets, as many are timed as are one in so many of the ring's buckets.
const TIMED_SHARE: u64 = 64;
/// One in so many calls is left out.
const LEFT_OUT_SHARE: usize = 100;

/// `ring/bucket-change-us`.
pub(crate) fn judged(session: &Session) -> io::Result<()> {
    session.row("ring/bucket-change-us", None, || microseconds(session))
}

/// Microseconds of a change, over some runs.
fn microseconds(session: &Session) -> Result<Spread, Failure> {
    let buckets = (session.scale.ring_bytes / SCALE_BYTES_PER_BUCKET).clamp(64, BUCKETS_MAX) & !1;
    // On average half of each bucket is touched.
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
    // Huge pages would back the untouched half of each bucket too.
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
    // The dumps want the oldest eighth of what the ring holds; or the newest quarter, and all that comes.
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
    /// Records stored, each in a bucket of its own; their stamps are their numbers, from 1.
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

    /// For records from one place to another in what the ring holds, which is from 0 to 1; `None`: all that comes.
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

    /// Stores so many pairs of records and returns the microseconds of the calls for the short ones, on average.
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
