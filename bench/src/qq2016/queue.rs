//! The outer queue: storages in a circle, three positions, one mutex (thesis, sections 5.2 and 6.4).

use std::{
    ops::{Deref, DerefMut},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{storage::Storage, ticks};

/// How a queue is cut and guarded.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Bytes of a storage: a multiple of 2 MiB (thesis, 6.4; the paper's default, V-C, is 2 MiB).
    pub storage_bytes: usize,
    /// After this a storage takes no more (thesis, 6.2.1).
    pub hold: Duration,
    /// Storages between head and tail that readers leave alone: the number of inserters or more (thesis, equation 7.1).
    pub guard: usize,
    /// `0` (highest) to `255` (lowest): the queue's priority (thesis, 6.4.2). It can be changed later.
    pub priority: u8,
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
    peekable: Condvar,
    priority_changed: Condvar,
    guard: u64,
}

/// Positions count storages from the start; modulo the number of storages they are places.
#[derive(Debug, Clone, Copy)]
struct Positions {
    /// The next storage for an inserter.
    head: u64,
    /// The next storage for a peek: `tail <= peek <= head`.
    peek: u64,
    /// The next storage to be dequeued: `head - storages <= tail <= head`.
    tail: u64,
    priority: u8,
    closed: bool,
    overwritten: u64,
}

/// What the outer queue does with an inner one.
pub trait Inner {
    /// Makes it empty, in constant time (section 5.2), and notes when it was given out.
    fn give_out(&mut self);
}

/// A storage with its mutex locked (thesis, 6.3). Dropping it unlocks.
#[derive(Debug)]
pub struct Pointer<'q, S>(MutexGuard<'q, S>);

impl<S> Pointer<'_, S> {
    /// Gives the storage back, as dropping does.
    pub fn release(self) {}
}

impl<S> Deref for Pointer<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S> DerefMut for Pointer<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0
    }
}

impl<'m> Queue<Storage<'m>> {
    /// Over memory that begins on a multiple of 8, cut into storages; what is left over is not used. `offsets` may hold the vectors
    /// of an earlier queue ([`Self::into_offsets`]), so that their pages are there already.
    #[must_use]
    pub fn new(memory: &'m mut [u8], config: &Config, offsets: Vec<Vec<usize>>) -> Self {
        let hold_ticks = ticks::of(config.hold);
        let mut offsets = offsets.into_iter();
        let parts = memory.chunks_exact_mut(config.storage_bytes);
        let storages = parts.map(|part| {
            let offsets = offsets.next().unwrap_or_default();
            Storage::new(part, offsets, hold_ticks)
        });
        Self::of(storages, config)
    }

    /// The vectors of references, for a later queue over memory of the same size.
    #[must_use]
    pub fn into_offsets(self) -> Vec<Vec<usize>> {
        let storages = self.storages.into_iter();
        storages
            .map(|storage| {
                storage
                    .into_inner()
                    .unwrap_or_else(PoisonError::into_inner)
                    .into_offsets()
            })
            .collect()
    }
}

impl<S: Inner> Queue<S> {
    /// Of these inner queues.
    ///
    /// # Panics
    /// Unless there are more of them than the guard interval has.
    #[must_use]
    pub fn of(storages: impl Iterator<Item = S>, config: &Config) -> Self {
        let storages: Vec<_> = storages.map(Mutex::new).collect();
        assert!(storages.len() > config.guard, "readers would wait for ever");
        Self {
            storages,
            positions: Mutex::new(Positions {
                head: 0,
                peek: 0,
                tail: 0,
                priority: config.priority,
                closed: false,
                overwritten: 0,
            }),
            not_full: Condvar::new(),
            non_empty: Condvar::new(),
            peekable: Condvar::new(),
            priority_changed: Condvar::new(),
            guard: config.guard as u64,
        }
    }

    /// An empty storage to be filled. A call with a priority above the queue's (a smaller number) overwrites the oldest
    /// storage when the queue is full; others wait (table 6.1). `None`: the queue was closed.
    pub fn enqueue(&self, priority: u8) -> Option<Pointer<'_, S>> {
        let mut positions = lock(&self.positions);
        loop {
            if positions.closed {
                return None;
            }
            if positions.head - positions.tail < self.storages.len() as u64 {
                break;
            }
            if priority < positions.priority {
                positions.tail += 1;
                positions.peek = positions.peek.max(positions.tail);
                positions.overwritten += 1;
                break;
            }
            positions = wait(&self.not_full, positions);
        }
        let mut storage = lock(self.place(positions.head));
        storage.give_out();
        positions.head += 1;
        drop(positions);
        self.non_empty.notify_one();
        self.peekable.notify_one();
        Some(Pointer(storage))
    }

    /// The oldest storage, which leaves the queue (listing 6.3). Waits for one outside the guard interval, and, with a priority below
    /// the queue's, for a change of it. `None`: the queue was closed, and is empty.
    pub fn dequeue(&self, priority: u8) -> Option<Pointer<'_, S>> {
        let mut positions = lock(&self.positions);
        loop {
            if priority > positions.priority && !positions.closed {
                positions = wait(&self.priority_changed, positions);
            } else if self.reachable(&positions, positions.tail) {
                break;
            } else if positions.closed {
                return None;
            } else {
                positions = wait(&self.non_empty, positions);
            }
        }
        let storage = lock(self.place(positions.tail));
        positions.tail += 1;
        positions.peek = positions.peek.max(positions.tail);
        drop(positions);
        self.not_full.notify_one();
        Some(Pointer(storage))
    }

    /// The next storage that was not peeked at yet; it stays in the queue (thesis, 6.4). `None`: the queue was closed, and there
    /// is no other.
    pub fn peek(&self) -> Option<Pointer<'_, S>> {
        let mut positions = lock(&self.positions);
        loop {
            if self.reachable(&positions, positions.peek) {
                break;
            }
            if positions.closed {
                return None;
            }
            positions = wait(&self.peekable, positions);
        }
        let storage = lock(self.place(positions.peek));
        positions.peek += 1;
        Some(Pointer(storage))
    }

    /// Changes the queue's priority; those who wait look again.
    pub fn set_priority(&self, priority: u8) {
        lock(&self.positions).priority = priority;
        self.priority_changed.notify_all();
        self.not_full.notify_all();
    }

    /// Says that nothing will be stored any more, which lifts the guard: the thesis has no end, a benchmark that counts needs one.
    pub fn close(&self) {
        lock(&self.positions).closed = true;
        for waiting in [
            &self.not_full,
            &self.non_empty,
            &self.peekable,
            &self.priority_changed,
        ] {
            waiting.notify_all();
        }
    }

    /// Storages that were overwritten before they were dequeued.
    #[must_use]
    pub fn overwritten(&self) -> u64 {
        lock(&self.positions).overwritten
    }

    /// Whether a reader at this position is far enough behind the head (thesis, 6.4.3).
    fn reachable(&self, positions: &Positions, position: u64) -> bool {
        let guard = if positions.closed { 0 } else { self.guard };
        positions.head - position > guard
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
    use super::*;
    use std::thread;

    const STORAGE_BYTES: usize = 1024;

    fn config(guard: usize, priority: u8) -> Config {
        Config {
            storage_bytes: STORAGE_BYTES,
            hold: Duration::MAX,
            guard,
            priority,
        }
    }

    /// Fills one storage with a packet of this number.
    fn put(queue: &Queue<Storage<'_>>, number: u64) {
        let mut storage = queue.enqueue(1).unwrap();
        storage.store(number, 0, &[0; 64]).unwrap();
    }

    fn number(storage: Option<Pointer<'_, Storage<'_>>>) -> Option<u64> {
        Some(storage?.packet(0).time)
    }

    #[test]
    fn a_full_queue_overwrites_the_oldest_for_who_is_above_it() {
        let mut memory = vec![0; 4 * STORAGE_BYTES];
        let queue = Queue::new(&mut memory, &config(0, 255), Vec::new());
        (0..6).for_each(|storage| put(&queue, storage));
        assert_eq!(queue.overwritten(), 2);
        queue.close();
        let left: Vec<_> = std::iter::from_fn(|| number(queue.dequeue(1))).collect();
        assert_eq!(left, [2, 3, 4, 5]);
    }

    #[test]
    fn who_is_not_above_it_waits_for_a_place() {
        let mut memory = vec![0; 4 * STORAGE_BYTES];
        let queue = Queue::new(&mut memory, &config(0, 1), Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..100).for_each(|storage| put(&queue, storage));
                queue.close();
            });
            let seen: Vec<_> = std::iter::from_fn(|| number(queue.dequeue(1))).collect();
            assert_eq!(seen, (0..100).collect::<Vec<_>>(), "in order, none lost");
        });
        assert_eq!(queue.overwritten(), 0);
    }

    #[test]
    fn who_waits_for_a_place_goes_on_when_the_priority_falls() {
        let mut memory = vec![0; 2 * STORAGE_BYTES];
        let queue = Queue::new(&mut memory, &config(0, 1), Vec::new());
        (0..2).for_each(|storage| put(&queue, storage));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| put(&queue, 2));
            queue.set_priority(2);
            waiting.join().unwrap();
        });
        assert_eq!(queue.overwritten(), 1);
        assert_eq!(number(queue.dequeue(1)), Some(1));
    }

    #[test]
    fn peek_sees_each_storage_once_and_leaves_it() {
        let mut memory = vec![0; 4 * STORAGE_BYTES];
        let queue = Queue::new(&mut memory, &config(0, 255), Vec::new());
        (0..3).for_each(|storage| put(&queue, storage));
        assert_eq!(number(queue.peek()), Some(0));
        assert_eq!(number(queue.peek()), Some(1));
        assert_eq!(number(queue.dequeue(1)), Some(0));
        put(&queue, 3);
        put(&queue, 4);
        put(&queue, 5);
        assert_eq!(queue.overwritten(), 1, "1, at which was peeked");
        assert_eq!(number(queue.peek()), Some(2));
        queue.close();
        let peeked: Vec<_> = std::iter::from_fn(|| number(queue.peek())).collect();
        assert_eq!(peeked, [3, 4, 5]);
        assert_eq!(number(queue.dequeue(1)), Some(2));
    }

    /// A reader is not let near a storage that may still be written; else it would wait for the writer with the queue locked.
    #[test]
    fn the_guard_keeps_readers_away_from_writers() {
        let mut memory = vec![0; 4 * STORAGE_BYTES];
        let queue = Queue::new(&mut memory, &config(1, 255), Vec::new());
        put(&queue, 0);
        let mut writing = queue.enqueue(1).unwrap();
        writing.store(1, 0, &[0; 64]).unwrap();
        assert_eq!(
            number(queue.dequeue(1)),
            Some(0),
            "does not wait for the writer"
        );
        thread::scope(|scope| {
            let reader = scope.spawn(|| number(queue.dequeue(1)));
            put(&queue, 2);
            writing.release();
            assert_eq!(reader.join().unwrap(), Some(1));
        });
        queue.close();
        assert_eq!(number(queue.dequeue(1)), Some(2), "closing lifts the guard");
        assert!(queue.dequeue(1).is_none());
    }

    #[test]
    fn vectors_are_used_again() {
        let mut memory = vec![0; 4 * STORAGE_BYTES];
        let queue = Queue::new(&mut memory, &config(0, 255), Vec::new());
        put(&queue, 0);
        let offsets = queue.into_offsets();
        let first = offsets[0].as_ptr();
        let queue = Queue::new(&mut memory, &config(0, 255), offsets);
        assert_eq!(queue.into_offsets()[0].as_ptr(), first);
    }
}
