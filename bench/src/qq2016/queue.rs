//! The outer queue: storages in a circle, two positions, one mutex (thesis, sections 5.2 and 6.4).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::storage::Storage;

/// The queue of queues. Any thread may call any method.
#[derive(Debug)]
pub(super) struct Queue<'m> {
    storages: Vec<Mutex<Storage<'m>>>,
    /// The queue-wide mutex. A reader also holds this mutex while the reader waits for the mutex of
    /// a storage (listing 6.3, line 5): the guard interval exists for this reason.
    positions: Mutex<Positions>,
    not_full: Condvar,
    non_empty: Condvar,
    guard: u64,
}

/// Positions count storages from the start. Modulo the number of storages they are indexes.
#[derive(Debug, Default)]
struct Positions {
    /// The next storage for an inserter.
    head: u64,
    /// The next storage to dequeue: `head - storages <= tail <= head`.
    tail: u64,
    closed: bool,
}

impl<'m> Queue<'m> {
    /// A queue of these inner queues. Until the close, readers stay `guard` storages behind. The
    /// thesis recommends at least the number of inserters (equation 7.1).
    ///
    /// # Panics
    /// Unless there are more storages than `guard`.
    pub(super) fn new(storages: impl Iterator<Item = Storage<'m>>, guard: usize) -> Self {
        let storages: Vec<_> = storages.map(Mutex::new).collect();
        assert!(storages.len() > guard, "readers would wait for ever");
        Self {
            storages,
            positions: Mutex::default(),
            not_full: Condvar::new(),
            non_empty: Condvar::new(),
            guard: guard as u64,
        }
    }

    /// An empty storage to fill. Waits while the queue is full. Dropping the `MutexGuard` returns
    /// the storage. `None`: the queue was closed.
    pub(super) fn enqueue(&self) -> Option<MutexGuard<'_, Storage<'m>>> {
        let mut positions = lock(&self.positions);
        while positions.head - positions.tail >= self.storages.len() as u64 && !positions.closed {
            positions = wait(&self.not_full, positions);
        }
        if positions.closed {
            return None;
        }
        let mut storage = lock(self.place(positions.head));
        storage.give_out();
        positions.head += 1;
        drop(positions);
        self.non_empty.notify_one();
        Some(storage)
    }

    /// The oldest storage, which leaves the queue (listing 6.3). Waits for a storage outside the
    /// guard interval (6.4.3), or for the close. `None`: the queue was closed, and is empty.
    pub(super) fn dequeue(&self) -> Option<MutexGuard<'_, Storage<'m>>> {
        let mut positions = lock(&self.positions);
        while positions.head - positions.tail <= self.guard && !positions.closed {
            positions = wait(&self.non_empty, positions);
        }
        if positions.head == positions.tail {
            return None;
        }
        let storage = lock(self.place(positions.tail));
        positions.tail += 1;
        drop(positions);
        self.not_full.notify_one();
        Some(storage)
    }

    /// Ends storing, which lifts the guard: the thesis has no end, but a benchmark that counts
    /// needs an end.
    pub(super) fn close(&self) {
        lock(&self.positions).closed = true;
        self.not_full.notify_all();
        self.non_empty.notify_all();
    }

    fn place(&self, position: u64) -> &Mutex<Storage<'m>> {
        let count = self.storages.len() as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "below the number of storages"
        )]
        let place = (position % count) as usize;
        &self.storages[place]
    }
}

/// Locks even after a panic, which is reported elsewhere: positions and storages are valid after
/// each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'q, T>(condition: &Condvar, guard: MutexGuard<'q, T>) -> MutexGuard<'q, T> {
    condition
        .wait(guard)
        .unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::contest::Tally;

    fn queue(memory: &mut [u8], guard: usize) -> Queue<'_> {
        let parts = memory.chunks_exact_mut(1024);
        Queue::new(
            parts.map(|part| Storage::new(part, Box::leak(Box::default()))),
            guard,
        )
    }

    fn put(queue: &Queue<'_>, number: u64) {
        assert!(queue.enqueue().unwrap().append(number, &[0; 64]));
    }

    /// The stamp of the only packet in a storage. The packet has 64 bytes.
    fn number(storage: Option<MutexGuard<'_, Storage<'_>>>) -> Option<u64> {
        let mut seen = Tally::default();
        storage?.tally(&mut seen);
        assert_eq!(seen.packets, 1);
        Some(seen.checksum - 64)
    }

    #[test]
    fn a_full_queue_waits_for_its_reader_and_loses_nothing() {
        let mut memory = vec![0; 4096];
        let queue = queue(&mut memory, 0);
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..100).for_each(|storage| put(&queue, storage));
                queue.close();
            });
            let seen: Vec<_> = std::iter::from_fn(|| number(queue.dequeue())).collect();
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
        });
    }

    /// A reader does not get a storage that may still be written. Otherwise the reader would wait
    /// for the writer with the queue locked.
    #[test]
    fn the_guard_keeps_readers_away_from_writers() {
        let mut memory = vec![0; 4096];
        let queue = queue(&mut memory, 1);
        put(&queue, 0);
        let mut writing = queue.enqueue().unwrap();
        assert!(writing.append(1, &[0; 64]));
        assert_eq!(
            number(queue.dequeue()),
            Some(0),
            "does not wait for the writer"
        );
        thread::scope(|scope| {
            let reader = scope.spawn(|| number(queue.dequeue()));
            put(&queue, 2);
            drop(writing);
            assert_eq!(reader.join().unwrap(), Some(1));
        });
        queue.close();
        assert_eq!(number(queue.dequeue()), Some(2), "closing lifts the guard");
        assert!(queue.dequeue().is_none() && queue.enqueue().is_none());
    }
}
