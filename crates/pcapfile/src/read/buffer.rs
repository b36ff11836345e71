//! The one buffer of a reader. Records are parsed and lent where they were read.

use std::ops::Range;

/// Default initial size, bytes: space for many records, and fits into the second-level cache of
/// many processors.
const BYTES_INITIAL: usize = 512 << 10;
/// Minimum of the initial size, bytes: space for the start of a file and a few records. Programs
/// that have many files open want small buffers.
const BYTES_MIN: usize = 4 << 10;
/// Maximum number of bytes that one read appends, because decompression takes time.
const READ_BYTES: usize = 256 << 10;

/// A window that slides over a stream. `start <= end <= bytes.len()`.
#[derive(Debug)]
pub(super) struct SlidingBuffer {
    /// The memory. `start..end` contains the unread bytes.
    bytes: Vec<u8>,
    /// Start of the bytes that are not yet consumed.
    start: usize,
    /// End of the bytes that are not yet consumed.
    end: usize,
    /// Offset of `bytes[0]` in the stream.
    base: u64,
}

impl SlidingBuffer {
    /// An empty buffer at the start of a stream.
    pub(super) fn new() -> Self {
        Self::with_bytes(BYTES_INITIAL)
    }

    /// An empty buffer with an initial size of `bytes`, but at least [`BYTES_MIN`].
    pub(super) fn with_bytes(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes.max(BYTES_MIN)],
            start: 0,
            end: 0,
            base: 0,
        }
    }

    /// The memory up to the end of the unread bytes. Ranges and offsets of lent records count from
    /// the start of this memory.
    pub(super) fn memory(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    /// The bytes that were read and not consumed.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The range of the unread bytes in [`SlidingBuffer::memory`].
    pub(super) fn position(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Offset of the unread bytes in the stream.
    pub(super) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Skips the first `size` unread bytes. They stay in memory until the next
    /// [`SlidingBuffer::read_with`].
    pub(super) fn consume(&mut self, size: usize) {
        assert!(size <= self.end - self.start);
        self.start += size;
    }

    /// Moves the unread bytes to the front and lets `read` append bytes. Returns the number of
    /// appended bytes.
    ///
    /// `need` is the number of unread bytes for which the caller waits. If the memory is full, it
    /// grows towards `need`, but at most doubles. So a false length in a damaged file takes at most
    /// twice the memory that the file fills, or the initial size.
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
        /// Size of the allocated memory, bytes.
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
