//! Buffers of packets in one region, filled in turn: how a recorder would use somebody else's queue.
//!
//! The region is cut into buffers of [`PACKETS`] packets, and each producer owns an equal run of them. It fills them in
//! order, round and round, so that the region always holds the latest packets, as our ring does. The queue carries
//! [`Full`] tokens only. **A buffer is filled again after a consumer passed it**: the consumer gives the token back with
//! [`Buffers::pass`], which sets the state of the buffer to free, and the producer looks at the next buffer in its order. No
//! second queue is needed for the way back, and a consumer that was preempted over a buffer keeps it.
//!
//! # States of a buffer
//!
//! | state | who may touch the bytes | next |
//! |---|---|---|
//! | free | nobody | `Turn::take` |
//! | taken | the holder of its `Empty` | `Empty::seal` |
//! | `1..=PACKETS`, packets in it | the holder of its `Full`, reading | `Buffers::pass` |
//!
//! One `Empty` or `Full` exists for a buffer that is not free, neither can be copied, and the queue orders sealing before
//! receiving. That is what makes the two slices right.
#![expect(
    unsafe_code,
    reason = "producers and consumers use parts of one region, one at a time, by token"
)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::contest::Failure;

/// Packets a buffer holds at most.
pub const PACKETS: usize = 64;

const FREE: u8 = 0;
const TAKEN: u8 = u8::MAX;
const _: () = assert!(PACKETS < TAKEN as usize);

/// The buffers of one run, in borrowed memory.
#[derive(Debug)]
pub struct Buffers<'m> {
    /// Tells the tokens of one run from those of another.
    id: u32,
    start: *mut u8,
    buffer_bytes: usize,
    states: Box<[AtomicU8]>,
    memory: PhantomData<&'m mut [u8]>,
}

// SAFETY: the bytes behind `start` are borrowed for `'m` by this value alone, and are touched only through tokens, each of
// which exists once and is held by one thread (module documentation).
unsafe impl Send for Buffers<'_> {}
// SAFETY: as above.
unsafe impl Sync for Buffers<'_> {}

/// The buffers of one producer, in the order in which it fills them.
#[derive(Debug)]
pub struct Turn<'b> {
    buffers: &'b Buffers<'b>,
    first: usize,
    /// `first < end`
    end: usize,
    /// `first <= next < end`
    next: usize,
}

/// The right to fill one buffer.
#[derive(Debug)]
pub struct Empty<'b> {
    buffers: &'b Buffers<'b>,
    index: u32,
}

/// The right to read one buffer, and the duty to pass it. Eight bytes, so that every queue can carry it as it would a pointer.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Full {
    id: u32,
    index: u32,
}

const _: () = assert!(size_of::<Full>() == 8);

/// The region is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes give {have} buffers of {PACKETS} packets, and {need} are the least")]
pub struct TooSmall {
    /// Bytes of the region.
    pub bytes: usize,
    /// Buffers in it.
    pub have: usize,
    /// Buffers needed.
    pub need: usize,
}

impl From<TooSmall> for Failure {
    fn from(error: TooSmall) -> Self {
        Self::CannotRun(error.to_string())
    }
}

impl<'m> Buffers<'m> {
    /// Least number of buffers for each producer: one being filled, one being read, two between them.
    pub const LEAST: usize = 4;

    /// Cuts `memory` into buffers for packets that take `record_bytes` each (at least 1), for a number of producers.
    ///
    /// # Errors
    /// [`TooSmall`] with fewer than [`Buffers::LEAST`] buffers a producer.
    pub fn new(
        memory: &'m mut [u8],
        record_bytes: usize,
        producers: usize,
    ) -> Result<Self, TooSmall> {
        static IDS: AtomicU32 = AtomicU32::new(0);
        // Whole cache lines, so that neighbours share none.
        let buffer_bytes = (PACKETS * record_bytes.max(1)).next_multiple_of(64);
        let have = (memory.len() / buffer_bytes).min(u32::MAX as usize);
        let need = Self::LEAST * producers;
        if have < need {
            return Err(TooSmall {
                bytes: memory.len(),
                have,
                need,
            });
        }
        Ok(Self {
            // Relaxed: the number has to differ, nothing else.
            id: IDS.fetch_add(1, Ordering::Relaxed),
            start: memory.as_mut_ptr(),
            buffer_bytes,
            states: (0..have).map(|_| AtomicU8::new(FREE)).collect(),
            memory: PhantomData,
        })
    }

    /// How many buffers there are.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// Divides the buffers among `producers`, as many as at [`Buffers::new`] or fewer.
    ///
    /// Borrows the value mutably for as long as the turns live, so that there is one division at a time.
    pub fn turns<'b>(&'b mut self, producers: usize) -> (&'b Self, Vec<Turn<'b>>) {
        let buffers = &*self;
        let share = buffers.states.len() / producers.max(1);
        let turn = |number: usize| Turn {
            buffers,
            first: number * share,
            end: (number + 1) * share,
            next: number * share,
        };
        (buffers, (0..producers).map(turn).collect())
    }

    /// The packets of a full buffer: how many, and the whole buffer, of which they are the beginning.
    ///
    /// # Panics
    /// With a token of other buffers.
    #[inline]
    pub fn packets<'f>(&'f self, full: &'f Full) -> (usize, &'f [u8]) {
        // Relaxed: the queue has ordered `seal` before this.
        let packets = usize::from(self.state(full).load(Ordering::Relaxed));
        // SAFETY: `full` is the one token of this buffer, so it is not written until the token is passed, which the borrow
        // of `full` forbids while the slice lives; `slot` is in bounds (`Buffers::new`) and stays borrowed for `'m`.
        let bytes = unsafe { std::slice::from_raw_parts(self.slot(full.index), self.buffer_bytes) };
        (packets, bytes)
    }

    /// Frees a buffer for its producer.
    ///
    /// # Panics
    /// With a token of other buffers.
    #[inline]
    pub fn pass(&self, full: Full) {
        // B1: Release, pairs with B2 in `take`: what was read has been read before it is overwritten.
        self.state(&full).store(FREE, Ordering::Release);
    }

    #[inline]
    fn state(&self, full: &Full) -> &AtomicU8 {
        assert_eq!(full.id, self.id, "a token of other buffers");
        &self.states[full.index as usize]
    }

    /// The first byte of buffer `index < count`.
    #[inline]
    fn slot(&self, index: u32) -> *mut u8 {
        self.start.wrapping_add(index as usize * self.buffer_bytes)
    }
}

impl<'b> Turn<'b> {
    /// The next buffer in order, or `None` while a consumer has not passed it.
    #[inline]
    pub fn take(&mut self) -> Option<Empty<'b>> {
        let state = &self.buffers.states[self.next];
        // B2: Acquire, pairs with B1 in `pass`.
        if state.load(Ordering::Acquire) != FREE {
            return None;
        }
        // Relaxed: only this turn looks for free buffers here.
        state.store(TAKEN, Ordering::Relaxed);
        let index =
            u32::try_from(self.next).expect("`Buffers::new` makes at most `u32::MAX` buffers");
        self.next += 1;
        if self.next == self.end {
            self.next = self.first;
        }
        Some(Empty {
            buffers: self.buffers,
            index,
        })
    }
}

impl Empty<'_> {
    /// The buffer's bytes, holding whatever was there.
    #[inline]
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `self` is the one token of this buffer, borrowed mutably while the slice lives; `slot` is in bounds
        // (`Buffers::new`), and every byte of the region is initialised, as it came from a slice.
        unsafe {
            std::slice::from_raw_parts_mut(self.buffers.slot(self.index), self.buffers.buffer_bytes)
        }
    }

    /// Says how many packets were filled in.
    ///
    /// # Panics
    /// With no packet, or more than [`PACKETS`].
    #[inline]
    pub fn seal(self, packets: u64) -> Full {
        assert!(
            (1..=PACKETS as u64).contains(&packets),
            "{packets} packets in a buffer of {PACKETS}"
        );
        // Checked above: it fits.
        let state = u8::try_from(packets).unwrap_or(TAKEN);
        // Relaxed: the queue orders this before the buffer is read.
        self.buffers.states[self.index as usize].store(state, Ordering::Relaxed);
        Full {
            id: self.buffers.id,
            index: self.index,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_after_it_was_passed_and_not_before() {
        let mut memory = vec![0; 4 * 64 * 10];
        let mut buffers = Buffers::new(&mut memory, 10, 1).unwrap();
        let (buffers, mut turns) = buffers.turns(1);
        let turn = &mut turns[0];
        let full: Vec<_> = (1..=4)
            .map(|n| {
                let mut empty = turn.take().unwrap();
                empty.bytes().fill(n);
                empty.seal(u64::from(n))
            })
            .collect();
        assert!(turn.take().is_none(), "all buffers are out");
        for (n, full) in (1u8..).zip(&full) {
            assert_eq!(buffers.packets(full), (usize::from(n), &[n; 640][..]));
        }
        let mut full = full.into_iter();
        let first = full.next().unwrap();
        // The second comes back first: the producer waits for the first all the same.
        buffers.pass(full.next().unwrap());
        assert!(turn.take().is_none(), "buffers are filled in order");
        buffers.pass(first);
        assert_eq!(turn.take().unwrap().bytes()[0], 1);
        assert_eq!(turn.take().unwrap().bytes()[0], 2);
        assert!(turn.take().is_none());
    }

    #[test]
    fn producers_fill_different_buffers() {
        let mut memory = vec![0; 9 * 64];
        let mut buffers = Buffers::new(&mut memory, 1, 2).unwrap();
        let (buffers, mut turns) = buffers.turns(2);
        for turn in &mut turns {
            while let Some(mut empty) = turn.take() {
                empty.bytes()[0] += 1;
            }
        }
        assert_eq!(buffers.count(), 9);
        assert_eq!(
            memory.iter().map(|byte| u32::from(*byte)).sum::<u32>(),
            8,
            "four each, the odd one is left out"
        );
    }

    #[test]
    #[should_panic(expected = "a token of other buffers")]
    fn a_token_of_another_run_is_refused() {
        let (mut one, mut other) = (vec![0; 256], vec![0; 256]);
        let (mut one, other) = (
            Buffers::new(&mut one, 1, 1).unwrap(),
            Buffers::new(&mut other, 1, 1).unwrap(),
        );
        let full = one.turns(1).1[0].take().unwrap().seal(1);
        other.pass(full);
    }

    #[test]
    fn a_region_too_small_is_told() {
        let error = Buffers::new(&mut [0; 3 * 64], 1, 1).unwrap_err();
        assert_eq!(
            error,
            TooSmall {
                bytes: 192,
                have: 3,
                need: 4
            }
        );
    }
}
