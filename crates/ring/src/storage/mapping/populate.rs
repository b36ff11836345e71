//! Fills a mapping with pages, with all cores: the kernel zeroes each page, which one core does slower than memory can.
//!
//! Work goes in pieces of 64 MiB. Progress is reported by the calling thread only, and only upwards, also when a first
//! attempt (explicit huge pages) is given up half way.

use std::{
    ops::Range,
    panic::resume_unwind,
    sync::mpsc,
    thread::{Builder, available_parallelism, scope},
};

use rustix::io::Errno;

use crate::sync::{AtomicUsize, Ordering};

/// The most that is filled between two reports of progress, in bytes.
pub(super) const PIECE_BYTES: usize = 64 << 20;
/// More threads than this do not fill faster: a memory controller is busy with fewer.
const THREADS_MAX: usize = 16;

/// Tells how much is filled, and never less than before.
pub(super) struct Progress<'a> {
    report: Option<&'a mut dyn FnMut(u64, u64)>,
    told: usize,
    bytes: usize,
}

impl<'a> Progress<'a> {
    /// `report` gets (bytes filled, bytes in all).
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

/// How many threads fill so many bytes on this machine.
pub(super) fn threads(bytes: usize) -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    cores.min(THREADS_MAX).min(bytes.div_ceil(PIECE_BYTES))
}

/// Calls `fill` for each piece of `0..bytes` once, on `threads` threads, until one fails.
pub(super) fn in_parallel(
    bytes: usize,
    threads: usize,
    progress: &mut Progress<'_>,
    fill: impl Fn(Range<usize>) -> Result<(), Errno> + Sync,
) -> Result<(), Errno> {
    let next = AtomicUsize::new(0);
    let take = || {
        let start = next.fetch_add(PIECE_BYTES, Ordering::Relaxed); // only a ticket
        (start < bytes).then(|| start..bytes.min(start + PIECE_BYTES))
    };
    let (sender, filled) = mpsc::channel();
    let work = |sender: mpsc::Sender<Result<usize, Errno>>| {
        while let Some(piece) = take() {
            let length = piece.len();
            let result = fill(piece).map(|()| length);
            // The receiver leaves at the first error.
            if sender.send(result).is_err() {
                break;
            }
        }
    };
    scope(|scope| {
        let mut fillers = Vec::with_capacity(threads);
        for _ in 0..threads {
            let (work, sender) = (&work, sender.clone());
            // Without a thread the others do its share.
            let filler = Builder::new()
                .name("ring-fill".to_owned())
                .spawn_scoped(scope, move || work(sender));
            fillers.extend(filler);
        }
        drop(sender);
        let collect = || {
            let mut done = 0;
            for length in filled {
                done += length?;
                progress.at(done);
            }
            // No thread could be started at all.
            while let Some(piece) = take() {
                done += piece.len();
                fill(piece)?;
                progress.at(done);
            }
            Ok(())
        };
        let result = collect();
        // The scope would wait as well, but ThreadSanitizer sees joins only.
        for filler in fillers {
            if let Err(panic) = filler.join() {
                resume_unwind(panic);
            }
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const BYTES: usize = 5 * PIECE_BYTES + 4096;

    #[test]
    fn each_piece_is_filled_once_and_told_upwards() {
        for threads in [0, 1, 3] {
            let pieces = Mutex::new(Vec::new());
            let mut told = Vec::new();
            let mut report = |done, all| told.push((done, all));
            let mut progress = Progress::new(BYTES, Some(&mut report));
            in_parallel(BYTES, threads, &mut progress, |piece| {
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
        for threads in [0, 1, 3] {
            let mut progress = Progress::new(BYTES, None);
            let error = in_parallel(BYTES, threads, &mut progress, fill).unwrap_err();
            assert_eq!(error, Errno::NOMEM);
        }
    }

    #[test]
    fn a_second_attempt_is_told_where_it_is_new() {
        let mut told = Vec::new();
        let mut report = |done, _| told.push(done);
        let mut progress = Progress::new(9, Some(&mut report));
        for filled in [3, 6, 3, 6, 9] {
            progress.at(filled);
        }
        assert_eq!(told, [3, 6, 9]);
    }
}
