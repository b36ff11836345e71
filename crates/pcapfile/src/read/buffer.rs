//! The one buffer of a reader: records are parsed and lent where they were read.

use std::ops::Range;

/// Bytes at the start: room for many records, and small enough to stay in the second-level cache.
const BYTES_INITIAL: usize = 512 << 10;
/// Smallest buffer, for programs that have many files open: the head of a file and a few records.
const BYTES_MIN: usize = 4 << 10;
/// Bytes that one read appends at most: what comes out of a decompressor takes its time.
const READ_BYTES: usize = 256 << 10;

/// A window that slides over a stream. `start <= end <= bytes.len()`.
#[derive(Debug)]
pub(super) struct SlidingBuffer {
    /// Memory; what was read lies in `start..end`.
    bytes: Vec<u8>,
    /// Where the bytes not yet consumed begin.
    start: usize,
    /// Where they end.
    end: usize,
    /// Where `bytes[0]` lies in the stream.
    base: u64,
}

impl SlidingBuffer {
    /// An empty buffer at the start of a stream.
    pub(super) fn new() -> Self {
        Self::with_bytes(BYTES_INITIAL)
    }

    /// An empty buffer that begins with `bytes` of memory.
    pub(super) fn with_bytes(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes.max(BYTES_MIN)],
            start: 0,
            end: 0,
            base: 0,
        }
    }

    /// All memory; ranges and offsets of lent records count from its start.
    pub(super) fn memory(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    /// What was read and not consumed.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Where the unread bytes lie in [`SlidingBuffer::memory`].
    pub(super) fn position(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Where the unread bytes begin in the stream.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Steps over the first `size` unread bytes. They stay in memory until the next [`SlidingBuffer::read_with`].
    pub(super) fn consume(&mut self, size: usize) {
        assert!(size <= self.end - self.start);
        self.start += size;
    }

    /// Moves the unread bytes to the front and lets `read` append to them, returning how many it appended. `need` is how
    /// many unread bytes the caller waits for: the memory grows towards it only as it fills, so that a length in a
    /// damaged file costs no memory that the file does not fill.
    pub(super) fn read_with<E>(
        &mut self,
        need: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
        }
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        if self.end == self.bytes.len() {
            assert!(need > self.end, "a full buffer must be waiting for more");
            let grown = need.min(2 * self.bytes.len());
            self.bytes.reserve_exact(grown - self.bytes.len());
            self.bytes.resize(grown, 0);
        }
        let room = (self.bytes.len() - self.end).min(READ_BYTES);
        let appended = read(&mut self.bytes[self.end..self.end + room])?;
        assert!(appended <= self.bytes.len() - self.end);
        self.end += appended;
        Ok(appended)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    impl SlidingBuffer {
        /// Bytes of memory taken.
        pub(in crate::read) fn capacity(&self) -> usize {
            self.bytes.capacity()
        }
    }

    fn append(buffer: &mut SlidingBuffer, need: usize, count: usize) -> usize {
        let read = |room: &mut [u8]| {
            let count = count.min(room.len());
            room[..count].fill(7);
            Ok::<_, Infallible>(count)
        };
        buffer.read_with(need, read).unwrap_or(0)
    }

    #[test]
    fn slides_and_counts() {
        let mut buffer = SlidingBuffer::new();
        assert_eq!(append(&mut buffer, 10, 10), 10);
        buffer.consume(4);
        assert_eq!(
            (buffer.offset(), buffer.unread().len(), buffer.position()),
            (4, 6, 4..10)
        );
        assert_eq!(append(&mut buffer, 10, 1), 1);
        assert_eq!(
            (buffer.offset(), buffer.unread().len(), buffer.position()),
            (4, 7, 0..7)
        );
    }

    #[test]
    fn grows_only_as_it_fills() {
        let mut buffer = SlidingBuffer::new();
        append(&mut buffer, usize::MAX, 100);
        append(&mut buffer, usize::MAX, 100);
        assert_eq!(buffer.bytes.len(), BYTES_INITIAL);
        while append(&mut buffer, usize::MAX, BYTES_INITIAL) > 0 && buffer.end < BYTES_INITIAL {}
        append(&mut buffer, BYTES_INITIAL + 5, 100);
        assert_eq!(buffer.bytes.len(), BYTES_INITIAL + 5);
        assert_eq!(buffer.unread().len(), BYTES_INITIAL + 5);
    }
}
