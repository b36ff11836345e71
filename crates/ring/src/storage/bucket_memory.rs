//! The memory of one bucket, as it is read.
#![expect(unsafe_code, reason = "reads from the region")]

use std::marker::PhantomData;

use super::{
    Storage,
    descriptor::{DESCRIPTOR_BYTES, Descriptor, EXTENSION_BYTES, Extension},
    stream,
};
use crate::Packet;

/// Bytes of the headers that most filters look at: Ethernet, IPv4 without options, and both ports with a little more.
const HEADER_BYTES: usize = 48;

/// Where a bucket lies. A value of its own, so that a loop over records keeps it in registers instead of finding the bucket in the
/// region for each.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketMemory<'s> {
    /// The first byte of `bytes` that are mapped and initialised while `'s` lasts.
    base: *const u8,
    bytes: usize,
    #[cfg(loom)]
    shadow: (&'s super::shadow::Shadow, usize),
    region: PhantomData<&'s Storage>,
}

impl<'s> BucketMemory<'s> {
    /// Panics unless `bucket` is one of the storage.
    pub(super) fn new(storage: &'s Storage, bucket: usize) -> Self {
        let bytes = storage.geometry.bucket_bytes;
        Self {
            base: storage.place(bucket, 0, bytes), // which asserts that they are inside the region
            bytes,
            #[cfg(loom)]
            shadow: (&storage.shadow, bucket),
            region: PhantomData,
        }
    }

    /// The record at `index`.
    ///
    /// # Safety
    /// The record is committed in the present generation of the bucket, the caller has synchronised with the commitment
    /// (edge P1), and the bucket cannot be claimed, or not be written after a claim, while the result lives. `base_ns` is
    /// the bucket's.
    #[inline(always)]
    pub(super) unsafe fn packet(self, base_ns: i64, index: usize) -> Packet<'s> {
        // SAFETY: the caller's promise covers the record's descriptor.
        let descriptor = unsafe { self.descriptor(index) };
        if descriptor.extended() {
            // SAFETY: the caller's promise covers the whole record.
            return unsafe { self.extended(descriptor) };
        }
        Packet {
            time_ns: descriptor.time_ns(base_ns),
            wire_len: descriptor.wire_len(),
            interface: descriptor.interface(),
            direction: descriptor.direction(),
            tag_restored: descriptor.tag_restored(),
            shard: descriptor.shard(),
            // SAFETY: the payload belongs to the record.
            data: unsafe { self.slice(descriptor.offset(), descriptor.captured()) },
        }
    }

    /// A record of the extended form.
    ///
    /// # Safety
    /// As for [`Self::packet`], of the record that `descriptor` was read from.
    #[cold]
    unsafe fn extended(self, descriptor: Descriptor) -> Packet<'s> {
        let offset = descriptor.offset();
        // SAFETY: the extension belongs to the record.
        let bytes = unsafe { self.slice(offset, EXTENSION_BYTES) };
        let mut extension = Extension([0; EXTENSION_BYTES]);
        extension.0.copy_from_slice(bytes);
        Packet {
            time_ns: extension.time_ns(),
            wire_len: extension.wire_len(),
            interface: extension.interface(),
            direction: descriptor.direction(),
            tag_restored: descriptor.tag_restored(),
            shard: descriptor.shard(),
            // SAFETY: the payload belongs to the record.
            data: unsafe { self.slice(offset + extension.len(), descriptor.captured()) },
        }
    }

    /// Asks for the first bytes of a record, which a reader will soon want: the line that it begins in, and that of its ports,
    /// which is another one for most records that are not whole lines.
    ///
    /// # Safety
    /// As for [`Self::packet`].
    #[inline(always)]
    pub(super) unsafe fn prefetch(self, index: usize) {
        // SAFETY: the caller's promise covers the record's descriptor.
        let descriptor = unsafe { self.descriptor(index) };
        let first = self.base.wrapping_add(descriptor.offset());
        stream::prefetch(first);
        stream::prefetch(first.wrapping_add(HEADER_BYTES - 1));
    }

    /// Asks for a descriptor, which a reader will soon want. Nothing is read: any index may be given.
    #[inline(always)]
    pub(super) fn prefetch_descriptor(self, index: usize) {
        let end = self.base.wrapping_add(self.bytes);
        stream::prefetch(end.wrapping_sub(DESCRIPTOR_BYTES.wrapping_mul(index + 1)));
    }

    /// # Safety
    /// As for [`Self::packet`].
    #[inline(always)]
    pub(super) unsafe fn descriptor(self, index: usize) -> Descriptor {
        // Bytes from the end of the bucket. No index of a record is large enough for this to overflow.
        let from_end = DESCRIPTOR_BYTES * (index + 1);
        assert!(from_end <= self.bytes);
        let offset = self.bytes - from_end;
        #[cfg(loom)]
        self.shadow.0.read(self.shadow.1, offset, DESCRIPTOR_BYTES);
        // SAFETY: inside the bucket, as asserted.
        let place = unsafe { self.base.add(offset) };
        // SAFETY: aligned, since buckets and descriptors are multiples of 16 bytes; the caller sees to it that nobody writes
        // these bytes.
        unsafe { place.cast::<Descriptor>().read() }
    }

    /// # Safety
    /// The range belongs to a record for which the caller gives the promise of [`Self::packet`].
    #[inline(always)]
    unsafe fn slice(self, offset: usize, length: usize) -> &'s [u8] {
        assert!(offset <= self.bytes && length <= self.bytes - offset);
        #[cfg(loom)]
        self.shadow.0.read(self.shadow.1, offset, length);
        // SAFETY: inside the bucket, as asserted.
        let first = unsafe { self.base.add(offset) };
        // SAFETY: the memory was zeroed at the start, so that every byte is initialised; the caller sees to it that nobody
        // writes these bytes while the result lives, and `'s` keeps them mapped.
        unsafe { std::slice::from_raw_parts(first, length) }
    }
}
