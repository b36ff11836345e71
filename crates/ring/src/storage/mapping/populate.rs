//! Fills a mapping with pages, on up to 16 threads: the kernel zeroes each page, and one core
//! seldom uses the full bandwidth of memory.
//!
//! Progress never decreases, even if a first attempt (explicit huge pages) is abandoned halfway.

use std::{
    ops::Range,
    panic::resume_unwind,
    thread::{Builder, available_parallelism, scope},
};

use rustix::io::Errno;

use crate::sync::{AtomicUsize, Ordering};

/// Maximum bytes that a thread fills in one call.
pub(super) const PIECE_BYTES: usize = 64 << 20;
/// Maximum number of threads, the calling thread included.
const THREADS_MAX: usize = 16;

/// Reports how many bytes are filled, and never reports a smaller number.
pub(super) struct PopulateProgress<'a> {
    report: Option<&'a mut dyn FnMut(u64, u64)>,
    told: usize,
    bytes: usize,
}

impl<'a> PopulateProgress<'a> {
    /// `report` gets (bytes filled, total bytes).
    pub(super) fn new(bytes: usize, report: Option<&'a mut dyn FnMut(u64, u64)>) -> Self {
        Self {
            report,
            told: 0,
            bytes,
        }
    }

    fn at(&mut self, filled: usize) {
        if filled > self.told
            && let Some(report) = &mut self.report
        {
            self.told = filled;
            report(filled as u64, self.bytes as u64);
        }
    }
}

/// Number of threads that help the calling thread to fill `bytes` bytes.
pub(super) fn helpers(bytes: usize) -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    cores.min(THREADS_MAX).min(bytes.div_ceil(PIECE_BYTES)) - 1
}

/// Calls `fill` for the pieces of `0..bytes`, on up to `helpers` + 1 threads. A failed call ends
/// the work early.
pub(super) fn in_parallel(
    bytes: usize,
    helpers: usize,
    progress: &mut PopulateProgress<'_>,
    fill: impl Fn(Range<usize>) -> Result<(), Errno> + Sync,
) -> Result<(), Errno> {
    // Relaxed, both: `next` only distributes the pieces, and `filled` is only reported.
    let (next, filled) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = |mut report: Option<&mut PopulateProgress<'_>>| {
        loop {
            let start = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
            if start >= bytes {
                return Ok(());
            }
            let end = bytes.min(start + PIECE_BYTES);
            if let Err(error) = fill(start..end) {
                next.store(bytes, Ordering::Relaxed);
                return Err(error);
            }
            let before = filled.fetch_add(end - start, Ordering::Relaxed);
            if let Some(progress) = &mut report {
                progress.at(before + end - start);
            }
        }
    };
    scope(|scope| {
        // If a thread cannot start, the other threads do its share.
        let spawn = |_| {
            let helper = Builder::new().name("ring-fill".to_owned());
            helper.spawn_scoped(scope, || work(None)).ok()
        };
        let spawned: Vec<_> = (0..helpers).filter_map(spawn).collect();
        let mut result = work(Some(progress));
        // The scope would wait for the helpers too, but ThreadSanitizer sees only joins.
        for helper in spawned {
            result = result.and(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        result
    })?;
    progress.at(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const BYTES: usize = 5 * PIECE_BYTES + 4096;

    #[test]
    fn each_piece_is_filled_once_and_told_upwards() {
        for helpers in [0, 1, 3] {
            let pieces = Mutex::new(Vec::new());
            let mut told = Vec::new();
            let mut report = |done, all| told.push((done, all));
            let mut progress = PopulateProgress::new(BYTES, Some(&mut report));
            in_parallel(BYTES, helpers, &mut progress, |piece| {
                pieces.lock().unwrap().push(piece);
                Ok(())
            })
            .unwrap();
            let mut pieces = pieces.into_inner().unwrap();
            pieces.sort_unstable_by_key(|piece| piece.start);
            let mut end = 0;
            for piece in &pieces {
                assert_eq!(piece.start, end);
                end = piece.end;
            }
            assert_eq!((pieces.len(), end), (6, BYTES));
            assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0));
            assert_eq!(told.last(), Some(&(BYTES as u64, BYTES as u64)));
        }
    }

    #[test]
    fn the_first_error_ends_it() {
        let fill = |piece: Range<usize>| match piece.start {
            PIECE_BYTES => Err(Errno::NOMEM),
            _ => Ok(()),
        };
        for helpers in [0, 1, 3] {
            let mut progress = PopulateProgress::new(BYTES, None);
            let error = in_parallel(BYTES, helpers, &mut progress, fill).unwrap_err();
            assert_eq!(error, Errno::NOMEM);
        }
    }

    #[test]
    fn a_second_attempt_is_told_where_it_is_new() {
        let mut told = Vec::new();
        let mut report = |done, _| told.push(done);
        let mut progress = PopulateProgress::new(9, Some(&mut report));
        for filled in [3, 6, 3, 6, 9] {
            progress.at(filled);
        }
        assert_eq!(told, [3, 6, 9]);
    }
}
