//! The memory of one bucket, for reading.
#![expect(unsafe_code, reason = "reads from the region")]

use std::marker::PhantomData;

use super::{
    Storage,
    descriptor::{DESCRIPTOR_BYTES, Descriptor, EXTENSION_BYTES, Extension},
    stream,
};
use crate::Packet;

/// Ethernet, IPv4 without options, and both ports with a little more.
const HEADER_BYTES: usize = 48;

/// The address of a bucket, for a loop over records to keep in registers.
#[derive(Debug, Clone, Copy)]
pub(super) struct BucketMemory<'s> {
    /// The first byte of `bytes` that are mapped and initialized while `'s` lasts.
    base: *const u8,
    bytes: usize,
    #[cfg(loom)]
    shadow: (&'s super::shadow::Shadow, usize),
    region: PhantomData<&'s Storage>,
}

impl<'s> BucketMemory<'s> {
    /// Panics unless the storage has the bucket.
    pub(super) fn new(storage: &'s Storage, bucket: usize) -> Self {
        let bytes = storage.geometry.bucket_bytes;
        Self {
            base: storage.place(bucket, 0, bytes), // asserts that the bucket is inside the region
            bytes,
            #[cfg(loom)]
            shadow: (&storage.shadow, bucket),
            region: PhantomData,
        }
    }

    /// The record at `index`.
    ///
    /// # Safety
    /// The record is committed in the present generation of the bucket, and the caller has
    /// synchronized with the commitment (edge P1). While the result lives, nobody claims the
    /// bucket, or the claimer does not write to the bucket. `base_ns` is the bucket's.
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

    /// # Safety
    /// As for [`Self::packet`], of the record of `descriptor`.
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

    /// Prefetches the cache lines of a record's first and 48th byte.
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

    /// Reads nothing, so any index is allowed.
    #[inline(always)]
    pub(super) fn prefetch_descriptor(self, index: usize) {
        let end = self.base.wrapping_add(self.bytes);
        stream::prefetch(end.wrapping_sub(DESCRIPTOR_BYTES.wrapping_mul(index + 1)));
    }

    /// # Safety
    /// As for [`Self::packet`].
    #[inline(always)]
    pub(super) unsafe fn descriptor(self, index: usize) -> Descriptor {
        // No index of a record is large enough for an overflow here.
        let from_end = DESCRIPTOR_BYTES * (index + 1);
        assert!(from_end <= self.bytes);
        let offset = self.bytes - from_end;
        #[cfg(loom)]
        self.shadow.0.read(self.shadow.1, offset, DESCRIPTOR_BYTES);
        // SAFETY: inside the bucket, as asserted.
        let place = unsafe { self.base.add(offset) };
        // SAFETY: aligned, since buckets and descriptors are multiples of 16 bytes. The caller
        // ensures that nobody writes these bytes.
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
        // SAFETY: the memory was zeroed at the start, so that every byte is initialized. The caller
        // ensures that nobody writes these bytes while the result lives, and `'s` keeps them
        // mapped.
        unsafe { std::slice::from_raw_parts(first, length) }
    }
}
