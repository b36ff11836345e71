//! The outer queue: storages in a circle, two positions, one mutex (thesis, sections 5.2 and 6.4).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{STORAGE_BYTES, storage::Storage};

/// How a queue is cut and guarded.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes of a storage: a multiple of 2 MiB (thesis, 6.4; the paper's default, V-C, is 2 MiB).
    pub storage_bytes: usize,
    /// Storages between head and tail that readers leave alone: the number of inserters or more (thesis, equation 7.1).
    pub guard: usize,
}

impl Config {
    /// Of usual storages.
    #[must_use]
    pub fn new(guard: usize) -> Self {
        Self {
            storage_bytes: STORAGE_BYTES,
            guard,
        }
    }
}

/// The queue of queues. Any thread may call any method.
///
/// `S` is the inner queue: [`Storage`], or one that differs in one thing (the ablation).
#[derive(Debug)]
pub struct Queue<S> {
    storages: Vec<Mutex<S>>,
    /// The queue-wide mutex. Also held while the mutex of a storage is awaited (listing 6.3, line 5): that is what the guard
    /// interval is for.
    positions: Mutex<Positions>,
    not_full: Condvar,
    non_empty: Condvar,
    guard: u64,
}

/// Positions count storages from the start; modulo the number of storages they are places.
#[derive(Debug, Default)]
struct Positions {
    /// The next storage for an inserter.
    head: u64,
    /// The next storage to be dequeued: `head - storages <= tail <= head`.
    tail: u64,
    closed: bool,
}

/// What the outer queue does with an inner one.
pub trait Inner {
    /// Makes it empty, in constant time (section 5.2), and notes when it was given out.
    fn give_out(&mut self);
}

impl<'m> Queue<Storage<'m>> {
    /// Over memory that begins on a multiple of 8, cut into storages; what is left over is not used. `offsets` may hold the vectors
    /// of an earlier queue ([`Self::into_offsets`]), so that their pages are there already.
    #[must_use]
    pub fn new(memory: &'m mut [u8], config: Config, offsets: Vec<Vec<usize>>) -> Self {
        let mut offsets = offsets.into_iter();
        let parts = memory.chunks_exact_mut(config.storage_bytes);
        let storages = parts.map(|part| Storage::new(part, offsets.next().unwrap_or_default()));
        Self::of(storages, config)
    }

    /// The vectors of references, for a later queue over memory of the same size.
    #[must_use]
    pub fn into_offsets(self) -> Vec<Vec<usize>> {
        let storages = self.storages.into_iter().map(Mutex::into_inner);
        let storages = storages.map(|storage| storage.unwrap_or_else(PoisonError::into_inner));
        storages.map(Storage::into_offsets).collect()
    }
}

impl<S: Inner> Queue<S> {
    /// Of these inner queues.
    ///
    /// # Panics
    /// Unless there are more of them than the guard interval has.
    #[must_use]
    pub fn of(storages: impl Iterator<Item = S>, config: Config) -> Self {
        let storages: Vec<_> = storages.map(Mutex::new).collect();
        assert!(storages.len() > config.guard, "readers would wait for ever");
        Self {
            storages,
            positions: Mutex::default(),
            not_full: Condvar::new(),
            non_empty: Condvar::new(),
            guard: config.guard as u64,
        }
    }

    /// An empty storage to be filled; waits while the queue is full. Dropping it gives it back. `None`: the queue was closed.
    pub fn enqueue(&self) -> Option<MutexGuard<'_, S>> {
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

    /// The oldest storage, which leaves the queue (listing 6.3). Waits for one outside the guard interval (6.4.3). `None`: the queue was
    /// closed, and is empty.
    pub fn dequeue(&self) -> Option<MutexGuard<'_, S>> {
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

    /// Says that nothing will be stored any more, which lifts the guard: the thesis has no end, a benchmark that counts needs one.
    pub fn close(&self) {
        lock(&self.positions).closed = true;
        self.not_full.notify_all();
        self.non_empty.notify_all();
    }

    fn place(&self, position: u64) -> &Mutex<S> {
        let count = self.storages.len() as u64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "below the number of storages"
        )]
        let place = (position % count) as usize;
        &self.storages[place]
    }
}

/// A panic elsewhere is told elsewhere; positions and storages are whole after each statement.
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

    fn queue(memory: &mut [u8], guard: usize) -> Queue<Storage<'_>> {
        let storage_bytes = memory.len() / 4;
        Queue::new(
            memory,
            Config {
                storage_bytes,
                guard,
            },
            Vec::new(),
        )
    }

    fn put(queue: &Queue<Storage<'_>>, number: u64) {
        assert!(queue.enqueue().unwrap().store(number, &[0; 64]));
    }

    fn number(storage: Option<MutexGuard<'_, Storage<'_>>>) -> Option<u64> {
        Some(storage?.iter().next()?.0)
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

    /// A reader is not let near a storage that may still be written; else it would wait for the writer with the queue locked.
    #[test]
    fn the_guard_keeps_readers_away_from_writers() {
        let mut memory = vec![0; 4096];
        let queue = queue(&mut memory, 1);
        put(&queue, 0);
        let mut writing = queue.enqueue().unwrap();
        assert!(writing.store(1, &[0; 64]));
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
