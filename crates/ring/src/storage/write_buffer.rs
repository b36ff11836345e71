//! The write-combining buffer of a writer. Bytes wait here, in the L1 cache, until whole cache
//! lines can go to memory at once.
//!
//! Payloads are packed byte by byte and descriptors have 16 bytes, so a record seldom ends with a
//! line. Stores that go past the cache (non-temporal) need whole lines, many in a row. Written line
//! by line, with payload and descriptors alternating, they cost about twice as much. The buffer
//! therefore collects payloads until 1 KiB is complete (and 1 KiB more, see `YOUNG_BYTES`), and
//! descriptors in groups of 32.
//!
//! The writer chooses the kind of store by its load. It first uses regular stores: an awake reader
//! finds these bytes in the cache, and a fence after few bytes would cost more than it saves. After
//! 4 KiB since the last publication it uses non-temporal stores for whole lines, and at once if the
//! previous publication covered at least 8 KiB.
//!
//! A store fence covers only the thread that runs the fence. If a producer moves to another thread
//! with unfenced stores, the next call runs a fence for all threads ([`Barrier::heavy`]). If the
//! kernel cannot do that, all later stores are regular stores.
//!
//! A publication writes all pending bytes. A line may then be half published. Its second half is
//! written later without touching the first half (invariant 3 of ARCHITECTURE.md: no byte of a
//! published record is stored again).
#![expect(unsafe_code, reason = "writes into the region")]

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod packed;

use std::fmt;

use super::{
    Storage,
    descriptor::{self, CAPTURED_BYTES_MAX, DESCRIPTOR_BYTES, Descriptor, EXTENSION_BYTES},
    stream::{self, LINE_BYTES, Thread},
    wide::Avx512Vbmi,
};
use crate::{Record, barrier::Barrier};

/// Before a group or a piece is added, the buffer contains fewer payload bytes than this.
const PAYLOAD_BYTES: usize = if cfg!(loom) { LINE_BYTES } else { 4096 };
/// Number of the most recent bytes that stay in the buffer when older bytes are written. A load of
/// bytes from two recent stores stalls until both stores have left the processor's store buffer,
/// where they queue after stores to memory.
const YOUNG_BYTES: usize = if cfg!(loom) { 0 } else { 1024 };
/// Bytes older than the last `YOUNG_BYTES` are usually written once there are this many.
const AT_ONCE_BYTES: usize = if cfg!(loom) { LINE_BYTES } else { 1024 };
/// A longer piece of payload bypasses the buffer, except for its first and last line.
pub(super) const SHORT_BYTES: usize = if cfg!(loom) { 16 } else { 512 };
/// Number of descriptors in a group. Descriptors wait in the buffer until the group is complete or
/// published.
pub(super) const DESCRIPTORS: usize = if cfg!(loom) { 2 } else { 32 };
/// The maximum payload of a group of short records.
const GROUP_BYTES: usize = DESCRIPTORS * SHORT_BYTES;
/// After this many bytes of payload since the last publication, stores usually go past the cache.
const STREAM_AFTER_BYTES: usize = if cfg!(loom) { LINE_BYTES } else { 4 << 10 };
/// If at least this many bytes were stored between the last two publications, whole lines usually
/// go past the cache until the next publication.
const STREAM_AGAIN_BYTES: usize = 2 * STREAM_AFTER_BYTES;

const _: () = assert!((DESCRIPTORS * DESCRIPTOR_BYTES).is_multiple_of(LINE_BYTES));

const _: () = assert!(PAYLOAD_BYTES.is_multiple_of(LINE_BYTES));
const _: () = assert!(YOUNG_BYTES + AT_ONCE_BYTES <= PAYLOAD_BYTES);

/// Contains the stored bytes of the open bucket that are not in its memory yet. Offsets are bytes
/// from the start of the bucket.
#[repr(C, align(64))]
pub(super) struct WriteBuffer {
    /// Payload from `base` on.
    payload: [u8; PAYLOAD_BYTES + GROUP_BYTES],
    /// The current group of 32 descriptors in memory order: the first descriptor is last.
    descriptors: [Descriptor; DESCRIPTORS],
    /// Bucket offset of the first byte of `payload`; a multiple of a line.
    base: usize,
    /// Payload before this offset is in the bucket; `base <= written`.
    written: usize,
    /// Descriptors with smaller numbers are in the bucket.
    written_descriptors: usize,
    /// Offset at which the payload since the last publication begins.
    run_start: usize,
    streaming: bool,
    /// Whether `thread` may have made non-temporal stores since the last fence.
    unfenced: bool,
    thread: Thread,
    barrier: Barrier,
    pub(super) wide: Option<Avx512Vbmi>,
}

/// Counts and times of an open bucket. A separate value, so that a burst keeps it in registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredRecords {
    /// Number of records.
    pub(super) count: usize,
    /// End of the payloads, bytes from the start of the bucket.
    pub(super) end: usize,
    /// Captured bytes.
    pub(super) bytes: u64,
    pub(super) min_ns: i64,
    pub(super) max_ns: i64,
}

#[derive(Debug)]
pub(crate) enum BurstStop<'a> {
    /// The iterator has no more records.
    End,
    /// Enough records are unpublished for a publication.
    Publish,
    /// This record was not stored: it does not suit the path that was tried, it may not fit the
    /// bucket, or no bucket is open.
    Refused(Record<'a>),
}

/// How far a burst may go before it publishes.
#[derive(Debug, Clone, Copy)]
pub(super) struct BurstLimits {
    pub(super) bucket_bytes: usize,
    /// Soft limit, a payload offset: from here on the burst stops at the end of a group.
    pub(super) soft_end: usize,
    /// Hard limit, a payload offset: from here on the burst stops after a long record, or after a
    /// run of short records of one group.
    pub(super) hard_end: usize,
}

/// The bucket that a buffer writes to. Only the owner of the open bucket makes this value.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketTarget<'s> {
    storage: &'s Storage,
    bucket: usize,
}

impl<'s> BucketTarget<'s> {
    /// # Safety
    /// The caller owns the bucket (open), and gives the target only to its own buffer. The buffer
    /// is new or was restarted ([`WriteBuffer::restart`]) for the bucket.
    pub(super) unsafe fn new(storage: &'s Storage, bucket: usize) -> Self {
        Self { storage, bucket }
    }

    fn write(self, offset: usize, bytes: &[u8]) {
        // SAFETY: the caller owns the bucket (`new`). The buffer writes each offset once before the
        // commit: payload in ascending offsets, descriptors in ascending numbers.
        unsafe { self.storage.copy_in(self.bucket, offset, bytes) };
    }

    #[inline(always)]
    fn range(self, offset: usize, length: usize) -> *mut u8 {
        self.storage.place(self.bucket, offset, length)
    }

    fn stream(self, offset: usize, lines: &[u8]) {
        // SAFETY: as for `write`; `drain` fences before anything is published.
        unsafe { self.storage.stream_in(self.bucket, offset, lines) };
    }
}

impl WriteBuffer {
    pub(super) fn new(barrier: Barrier) -> Self {
        Self {
            payload: [0; PAYLOAD_BYTES + GROUP_BYTES],
            descriptors: [Descriptor::ZERO; DESCRIPTORS],
            base: 0,
            written: 0,
            written_descriptors: 0,
            run_start: 0,
            streaming: false,
            unfenced: false,
            thread: Thread::current(),
            barrier,
            wide: Avx512Vbmi::detect(),
        }
    }

    /// Continues at the start of another bucket, after [`Self::drain`].
    pub(super) fn restart(&mut self) {
        assert!(!self.unfenced, "fenced before");
        self.base = 0;
        self.written = 0;
        self.written_descriptors = 0;
        self.run_start = 0;
    }

    /// Adds records while they are short, in one part, and fit the compact form. Adds at most
    /// `records_max`, and at most to the end of the group of 32 that contains `stored.count`. The
    /// caller guarantees that this many short records fit the bucket. Returns the new counts, and
    /// why it stopped before either limit, if it did.
    #[inline(always)]
    pub(super) fn put_group<'a>(
        &mut self,
        target: BucketTarget<'_>,
        mut stored: StoredRecords,
        base_ns: i64,
        records_max: usize,
        records: &mut impl Iterator<Item = Record<'a>>,
    ) -> (StoredRecords, Option<BurstStop<'a>>) {
        let first = stored.count % DESCRIPTORS;
        let last = DESCRIPTORS.min(first + records_max);
        let begin = stored.end;
        let room = (last - first) * SHORT_BYTES;
        // Regular stores go directly to the bucket. Bytes that will go past the cache wait in the
        // buffer.
        let direct = !self.streaming;
        let mut settled = !direct || self.written == begin;
        let memory = target.range(begin, room).wrapping_sub(begin);
        // Address of payload offset 0: the bucket's start, or where the bucket would start if it
        // contained the buffer.
        let origin = if direct {
            memory
        } else {
            assert!(begin - self.base < PAYLOAD_BYTES);
            self.payload.as_mut_ptr().wrapping_sub(self.base)
        };
        let mut end = begin;
        let mut stop = None;
        let mut slot = first;
        while slot < last {
            let Some(record) = records.next() else {
                stop = Some(BurstStop::End);
                break;
            };
            let [data, second, third] = record.parts;
            let length = data.len();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "buckets have at most 256 MiB"
            )]
            let descriptor = descriptor::compact(&record, base_ns, end as u32, length);
            let plain = second.is_empty() && third.is_empty() && length <= SHORT_BYTES;
            let Some(descriptor) = descriptor.filter(|_| plain) else {
                stop = Some(BurstStop::Refused(record));
                break;
            };
            if !settled {
                // Deferred: a long record would complete the pending cache line, and one store then
                // writes the line.
                self.settle(target, begin);
                settled = true;
            }
            // SAFETY: one call adds at most 32 pieces of at most `SHORT_BYTES`, this piece
            // included. In the bucket, `range` checked `room` bytes from `begin` on, and they
            // belong to this writer. In the buffer, `GROUP_BYTES` fit after the fewer than
            // `PAYLOAD_BYTES` that waited.
            unsafe { copy_short(origin.wrapping_add(end), data) };
            end += length;
            descriptor.store(&mut self.descriptors[DESCRIPTORS - 1 - slot]);
            stored = stored.seen(record.time_ns);
            slot += 1;
        }
        stored.count += slot - first;
        stored.end = end;
        stored.bytes += (end - begin) as u64;
        if direct && slot > first {
            (self.base, self.written) = (end & !(LINE_BYTES - 1), end);
            self.choose(end);
        } else if !direct && self.is_full(end) {
            self.write_older(target, end);
        }
        if slot == DESCRIPTORS {
            self.write_descriptors(target, stored.count);
        }
        (stored, stop)
    }

    /// Adds records from `next` on while they are long, in one part, and fit the compact form and
    /// the bucket. Returns `None` if a record reaches the soft limit and completes a group, or
    /// reaches the hard limit. Updates `stored` after every record, because the iterator may panic.
    #[inline(always)]
    pub(super) fn put_longs<'a>(
        &mut self,
        target: BucketTarget<'_>,
        stored: &mut StoredRecords,
        base_ns: i64,
        limits: BurstLimits,
        mut next: Record<'a>,
        records: &mut impl Iterator<Item = Record<'a>>,
    ) -> Option<BurstStop<'a>> {
        loop {
            let [data, second, third] = next.parts;
            let (length, end) = (data.len(), stored.end);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "buckets have at most 256 MiB"
            )]
            let descriptor = descriptor::compact(&next, base_ns, end as u32, length);
            let fits = (SHORT_BYTES + 1..=CAPTURED_BYTES_MAX).contains(&length)
                && needed(end, length, stored.count) <= limits.bucket_bytes;
            let plain = second.is_empty() && third.is_empty() && fits;
            let Some(descriptor) = descriptor.filter(|_| plain) else {
                return Some(BurstStop::Refused(next));
            };
            let end = self.put_long(target, end, data);
            self.put_descriptor(target, stored.count, descriptor);
            *stored = stored.with(next.time_ns, length, end);
            let is_group = stored.count.is_multiple_of(DESCRIPTORS);
            if end >= limits.soft_end && (is_group || end >= limits.hard_end) {
                return None;
            }
            match records.next() {
                Some(record) => next = record,
                None => return Some(BurstStop::End),
            }
        }
    }

    /// Must be called before other methods: the producer may have moved to this thread. In this
    /// case, fences the unfenced stores of the previous thread.
    #[inline(always)]
    pub(super) fn enter(&mut self) {
        let here = Thread::current();
        if self.thread != here {
            if std::mem::take(&mut self.unfenced) {
                self.fence_everywhere();
            }
            self.thread = here;
        }
    }

    /// The producer moved to this thread. A fence of this thread does not cover the stores of the
    /// previous thread.
    ///
    /// If a seccomp filter has forbidden membarrier(2) meanwhile, all later stores are regular
    /// stores. The hand-over itself then usually fenced the earlier stores, by a locked
    /// instruction. Such an instruction waits until the processor has written all buffered stores,
    /// non-temporal stores too (Intel SDM, volume 3A, "Strengthening or Weakening the
    /// Memory-Ordering Model"; AMD
    /// 25112, "Write-Combining Completion Events").
    #[cold]
    fn fence_everywhere(&mut self) {
        if !self.barrier.heavy() {
            self.barrier = Barrier::Symmetric;
            self.streaming = false;
        }
    }

    /// Writes the payload up to `end` to the bucket.
    #[inline(never)]
    fn settle(&mut self, target: BucketTarget<'_>, end: usize) {
        if self.written < end {
            self.write_lines(target, end);
        }
        if self.written < end {
            let waiting = self.written - self.base..end - self.base;
            target.write(self.written, &self.payload[waiting]);
            self.written = end;
        }
    }

    /// Adds payload at `end`, the end of the previous payload, and returns the new end.
    #[inline(always)]
    pub(super) fn put(&mut self, target: BucketTarget<'_>, end: usize, bytes: &[u8]) -> usize {
        let start = end - self.base;
        if bytes.len() > SHORT_BYTES {
            return self.put_long(target, end, bytes);
        }
        self.keep(start, bytes);
        let end = end + bytes.len();
        if self.is_full(end) {
            self.write_older(target, end);
        }
        end
    }

    /// Adds the descriptor with this number. Numbers must be consecutive.
    #[inline(always)]
    pub(super) fn put_descriptor(
        &mut self,
        target: BucketTarget<'_>,
        number: usize,
        descriptor: Descriptor,
    ) {
        descriptor.store(&mut self.descriptors[DESCRIPTORS - 1 - number % DESCRIPTORS]);
        if (number + 1).is_multiple_of(DESCRIPTORS) {
            self.write_descriptors(target, number + 1);
        }
    }

    /// The next payload starts at `start`. Only loom leaves gaps.
    pub(super) fn skip(&mut self, end: usize, start: usize) {
        if self.written == end {
            self.written = start;
        }
    }

    /// Writes the payload up to offset `end` and the descriptors before `count` to the bucket, and
    /// runs [`Self::fence`]. Must be called before the records are published.
    pub(super) fn drain(&mut self, target: BucketTarget<'_>, end: usize, count: usize) {
        self.settle(target, end);
        self.write_descriptors(target, count);
        self.fence();
        self.streaming =
            end - self.run_start >= STREAM_AGAIN_BYTES && self.barrier.reaches_others();
        self.run_start = end;
    }

    /// Orders stores past the cache before all later stores.
    pub(super) fn fence(&mut self) {
        if std::mem::take(&mut self.unfenced) {
            stream::fence();
        }
    }

    #[inline(always)]
    fn is_full(&self, end: usize) -> bool {
        end - self.written >= YOUNG_BYTES + AT_ONCE_BYTES || end - self.base >= PAYLOAD_BYTES
    }

    /// Writes the whole lines before `end`, except the most recent bytes. If the buffer is full,
    /// makes room for a group.
    #[inline(never)]
    fn write_older(&mut self, target: BucketTarget<'_>, end: usize) {
        self.write_before(target, end.saturating_sub(YOUNG_BYTES), end);
        if end - self.base >= PAYLOAD_BYTES {
            let kept = self.written & !(LINE_BYTES - 1);
            self.move_to_front(kept, end);
        }
    }

    /// Writes the whole lines before `end`, and moves the rest to the front.
    #[inline(never)]
    fn write_lines(&mut self, target: BucketTarget<'_>, end: usize) {
        let full = end & !(LINE_BYTES - 1);
        self.write_before(target, full, end);
        if full > self.base {
            self.move_to_front(full, end);
        }
    }

    #[inline(always)]
    fn write_before(&mut self, target: BucketTarget<'_>, before: usize, end: usize) {
        let full = before & !(LINE_BYTES - 1);
        let base = self.base;
        if self.written >= full {
            return;
        }
        if !self.written.is_multiple_of(LINE_BYTES) {
            let line_end = self.written.next_multiple_of(LINE_BYTES);
            target.write(
                self.written,
                &self.payload[self.written - base..line_end - base],
            );
            self.written = line_end;
        }
        if self.written < full {
            self.choose(end);
            let lines = &self.payload[self.written - base..full - base];
            if self.streaming {
                target.stream(self.written, lines);
                self.unfenced = true;
            } else {
                target.write(self.written, lines);
            }
            self.written = full;
        }
    }

    /// Makes `base`, a multiple of a line, the first byte of the buffer.
    #[inline(always)]
    fn move_to_front(&mut self, base: usize, end: usize) {
        self.payload
            .copy_within(base - self.base..end - self.base, 0);
        self.base = base;
    }

    /// Adds a piece longer than [`SHORT_BYTES`]. Its whole lines go directly to the bucket. Returns
    /// the new end of the payload.
    #[inline]
    fn put_long(&mut self, target: BucketTarget<'_>, end: usize, bytes: &[u8]) -> usize {
        let to_line = end.next_multiple_of(LINE_BYTES) - end;
        let (head, rest) = bytes.split_at(to_line);
        self.keep(end - self.base, head);
        let end = end + to_line;
        self.write_lines(target, end);
        let (lines, tail) = rest.split_at(rest.len() & !(LINE_BYTES - 1));
        // Nothing is pending: `written` and `base` are at `end`.
        self.choose(end + lines.len());
        if self.streaming {
            target.stream(end, lines);
            self.unfenced = true;
        } else {
            target.write(end, lines);
        }
        let end = end + lines.len();
        (self.base, self.written) = (end, end);
        self.keep(0, tail);
        end + tail.len()
    }

    /// Writes the pending descriptors before `count`, which belong to one group.
    #[inline(never)]
    fn write_descriptors(&mut self, target: BucketTarget<'_>, count: usize) {
        let first = self.written_descriptors;
        if first == count {
            return;
        }
        let group_end = count.next_multiple_of(DESCRIPTORS);
        let bytes = Descriptor::as_bytes(&self.descriptors[group_end - count..group_end - first]);
        let offset = target.storage.descriptor_offset(count - 1);
        if self.streaming && count - first == DESCRIPTORS {
            target.stream(offset, bytes);
            self.unfenced = true;
        } else {
            target.write(offset, bytes);
        }
        self.written_descriptors = count;
    }

    fn keep(&mut self, place: usize, bytes: &[u8]) {
        self.payload[place..place + bytes.len()].copy_from_slice(bytes);
    }

    /// May switch to stores past the cache: if enough was stored since the last publication.
    fn choose(&mut self, end: usize) {
        self.streaming |=
            end - self.run_start >= STREAM_AFTER_BYTES && self.barrier.reaches_others();
    }
}

/// Bytes that a bucket must have for one more record of `captured` bytes, after `count` records
/// whose payload ends at `start`. An extension always counts: the test is then simple, and the loss
/// is at most 16 bytes a bucket.
#[inline(always)]
pub(super) fn needed(start: usize, captured: usize, count: usize) -> usize {
    start + EXTENSION_BYTES + captured + DESCRIPTOR_BYTES * (count + 1)
}

impl StoredRecords {
    pub(super) const EMPTY: Self = Self {
        count: 0,
        end: 0,
        bytes: 0,
        min_ns: i64::MAX,
        max_ns: i64::MIN,
    };

    #[inline(always)]
    pub(super) fn seen(self, time_ns: i64) -> Self {
        Self {
            min_ns: self.min_ns.min(time_ns),
            max_ns: self.max_ns.max(time_ns),
            ..self
        }
    }

    #[inline(always)]
    pub(super) fn with(self, time_ns: i64, captured: usize, end: usize) -> Self {
        Self {
            count: self.count + 1,
            end,
            bytes: self.bytes + captured as u64,
            ..self.seen(time_ns)
        }
    }
}

/// Omits the pending bytes, which are captured traffic.
impl fmt::Debug for WriteBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBuffer")
            .field("base", &self.base)
            .field("written", &self.written)
            .field("written_descriptors", &self.written_descriptors)
            .field("run_start", &self.run_start)
            .field("streaming", &self.streaming)
            .field("unfenced", &self.unfenced)
            .finish_non_exhaustive()
    }
}

/// Copies a piece. A piece of 33 to 64 bytes (the shortest frames have 60, or 64 with their
/// checksum) is copied as two pieces of 32 bytes that may overlap. A call to `memcpy` alone costs
/// as much as such a copy.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: &[u8]) {
    const HALF: usize = 32;
    let length = from.len();
    if !(HALF + 1..=2 * HALF).contains(&length) {
        // SAFETY: the caller's promise.
        return unsafe { to.copy_from_nonoverlapping(from.as_ptr(), length) };
    }
    let (head, tail) = (&from[..HALF], &from[length - HALF..]);
    // SAFETY: the first half of the range that the caller guarantees.
    unsafe { to.copy_from_nonoverlapping(head.as_ptr(), HALF) };
    // SAFETY: `length > HALF`, so the start and the end of the second half are inside the range.
    let second = unsafe { to.add(length - HALF) };
    // SAFETY: the last `HALF` bytes of the range that the caller guarantees. If the halves overlap,
    // the same bytes are written twice.
    unsafe { second.copy_from_nonoverlapping(tail.as_ptr(), HALF) };
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_copies_copy_their_bytes_and_no_others() {
        let from: Vec<u8> = (1..=251_u8).cycle().take(SHORT_BYTES).collect();
        for length in 0..=SHORT_BYTES {
            let mut to = vec![0; SHORT_BYTES + 64];
            // SAFETY: the target is more than 7 bytes longer than the source.
            unsafe { copy_short(to[7..].as_mut_ptr(), &from[..length]) };
            assert_eq!(to[7..7 + length], from[..length]);
            let outside = to[..7].iter().chain(&to[7 + length..]);
            assert!(outside.copied().all(|byte| byte == 0), "{length}");
        }
    }
}
