//! Short records of whole lines, on the way from a burst to their place, without a stage.
#![expect(unsafe_code, reason = "writes into the region")]

use super::{
    descriptor::{self, Descriptor},
    open::{Stop, Stored},
    stage::{SHORT_BYTES, Target},
    stream::{LINE_BYTES, Lines},
};
use crate::Record;

/// `1 << LINE_BITS` bytes are a line.
const LINE_BITS: u32 = LINE_BYTES.trailing_zeros();

/// Records of whole lines on the way to their place in the bucket, which has [`SHORT_BYTES`] for each from `place` on.
#[derive(Debug)]
pub(super) struct Straight<'s> {
    target: Target<'s>,
    /// The address of offset 0 of the bucket.
    origin: usize,
    base_ns: i64,
    /// Where the next payload goes: the begin of a line.
    place: *mut u8,
    /// The largest stamp.
    max_ns: i64,
}

impl<'s> Straight<'s> {
    /// From `place` on, which is that of offset `stored.end`.
    ///
    /// # Safety
    /// There are [`SHORT_BYTES`] from `place` on for each record that will be put, in the bucket of `target` and nobody else's;
    /// `place` begins a line.
    #[inline(always)]
    pub(super) unsafe fn new(
        target: Target<'s>,
        stored: &Stored,
        base_ns: i64,
        place: *mut u8,
    ) -> Self {
        Self {
            target,
            origin: place.wrapping_sub(stored.end).addr(),
            base_ns,
            place,
            max_ns: stored.max_ns,
        }
    }

    /// Takes `added` records, all since the last call, into what is stored. The bucket has one already.
    #[inline(always)]
    pub(super) fn note(&self, added: usize, stored: &mut Stored) {
        let end = self.place.addr() - self.origin;
        // None is older than the base, which is the time of the bucket's first record.
        stored.max_ns = self.max_ns;
        stored.count += added;
        stored.bytes += (end - stored.end) as u64;
        stored.end = end;
    }

    /// Puts records to their places and their descriptors into `group`, from its end. Returns how many there is still place
    /// for, and why, unless that is none.
    #[inline(always)]
    pub(super) fn put_group<'a, const WIDE: bool>(
        &mut self,
        lines: Lines<WIDE>,
        group: &mut [Descriptor],
        records: &mut impl Iterator<Item = Record<'a>>,
    ) -> (usize, Option<Stop<'a>>) {
        let mut slots = group.iter_mut().rev();
        let mut next = loop {
            let Some(slot) = slots.next() else {
                return (0, None);
            };
            let Some(record) = records.next() else {
                return (slots.len() + 1, Some(Stop::End));
            };
            if record.parts[0].len() != LINE_BYTES {
                break Some((slot, record));
            }
            if let Err(record) = self.put_one(lines, slot, record) {
                return (slots.len() + 1, Some(Stop::Other(record)));
            }
        };
        // A loop of its own: a second address to write to wants registers that the first one has use for.
        loop {
            let (slot, record) = match next.take() {
                Some(next) => next,
                None => {
                    let Some(slot) = slots.next() else {
                        return (0, None);
                    };
                    let Some(record) = records.next() else {
                        return (slots.len() + 1, Some(Stop::End));
                    };
                    (slot, record)
                }
            };
            if let Err(record) = self.put(lines, slot, record) {
                return (slots.len() + 1, Some(Stop::Other(record)));
            }
        }
    }

    /// Writes the payload of a record of one line, and its descriptor to `slot`; or gives it back, if the short form does not
    /// describe it.
    #[inline(always)]
    fn put_one<'a, const WIDE: bool>(
        &mut self,
        lines: Lines<WIDE>,
        slot: &mut Descriptor,
        record: Record<'a>,
    ) -> Result<(), Record<'a>> {
        let [data, second, third] = record.parts;
        let fits = data.len() == LINE_BYTES && second.is_empty() && third.is_empty();
        let Some(descriptor) = fits.then(|| self.describe(&record, LINE_BYTES)).flatten() else {
            return Err(record);
        };
        self.target
            .told(self.place.addr() - self.origin, LINE_BYTES);
        // SAFETY: the source is a line, as checked. The promise to `new` covers the target; `place` still
        // begins a line, since all lengths are whole lines.
        unsafe { lines.copy_one(self.place, data.as_ptr()) };
        self.pass(slot, descriptor, record.time_ns, LINE_BYTES);
        Ok(())
    }

    /// As [`Self::put_one`], for any number of lines up to [`SHORT_BYTES`].
    #[inline(always)]
    fn put<'a, const WIDE: bool>(
        &mut self,
        lines: Lines<WIDE>,
        slot: &mut Descriptor,
        record: Record<'a>,
    ) -> Result<(), Record<'a>> {
        let [data, second, third] = record.parts;
        let length = data.len();
        // One comparison: what is no multiple of a line comes out huge.
        let lines_but_one = length.wrapping_sub(LINE_BYTES).rotate_right(LINE_BITS);
        let fits =
            lines_but_one < SHORT_BYTES >> LINE_BITS && second.is_empty() && third.is_empty();
        // The length first: it bounds the others.
        let Some(descriptor) = fits.then(|| self.describe(&record, length)).flatten() else {
            return Err(record);
        };
        self.target.told(self.place.addr() - self.origin, length);
        // SAFETY: as in `put_one`; `length` is a multiple of a line, and at most `SHORT_BYTES`.
        unsafe { lines.copy(self.place, data.as_ptr(), length) };
        self.pass(slot, descriptor, record.time_ns, length);
        Ok(())
    }

    /// The payload of a record is in its place.
    #[inline(always)]
    fn pass(&mut self, slot: &mut Descriptor, descriptor: Descriptor, time_ns: i64, length: usize) {
        self.place = self.place.wrapping_add(length);
        descriptor.store(slot);
        self.max_ns = self.max_ns.max(time_ns);
    }

    #[inline(always)]
    fn describe(&self, record: &Record<'_>, length: usize) -> Option<Descriptor> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "buckets have at most 2 GiB"
        )]
        let offset = (self.place.addr() - self.origin) as u32;
        descriptor::compact_later(record, self.base_ns, offset, length)
    }
}
