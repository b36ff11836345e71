//! A checked copy of one bucket in memory of the caller.

use std::ops::Range;

use super::CopyError;
use crate::{
    BucketRef, Packet,
    storage::descriptor::{
        CAPTURED_BYTES_MAX, DESCRIPTOR_BYTES, Descriptor, EXTENSION_BYTES, Extension,
    },
};

/// Maximum memory for the list of a bucket's records, bytes. A damaged file may claim more records
/// than fit.
const COPY_BYTES_MAX: usize = 512 << 20;

/// A copy of the records of one bucket. Reuse the buffer for the next bucket to save allocations.
#[derive(Debug, Default)]
pub struct Buffer {
    bucket: Option<BucketRef>,
    payload: Vec<u8>,
    records: Vec<Copied>,
}

/// A record whose payload is a range of the buffer.
#[derive(Debug, Clone)]
struct Copied {
    /// The record without payload.
    packet: Packet<'static>,
    data: Range<usize>,
}

/// The bytes of a bucket, unchecked. They may change between calls.
pub(super) trait CopySource {
    /// The two words of a descriptor.
    fn descriptor(&self, index: usize) -> [u64; 2];
    /// Fills `out` from this offset in the bucket. The range must be inside the bucket.
    fn payload(&self, offset: usize, out: &mut [u8]);
}

impl Buffer {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The copied bucket. `None` before the first copy and after a failed copy.
    #[must_use]
    pub fn bucket(&self) -> Option<BucketRef> {
        self.bucket
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the buffer contains no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The records, in storage order.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = Packet<'_>> + Clone {
        self.records.iter().map(|record| Packet {
            data: &self.payload[record.data.clone()],
            ..record.packet
        })
    }

    /// Drops the contents, keeps the memory.
    pub(super) fn clear(&mut self) {
        self.bucket = None;
        self.payload.clear();
        self.records.clear();
    }

    /// Marks the contents as a valid copy of records of this bucket.
    pub(super) fn confirm(&mut self, bucket: BucketRef) {
        self.bucket = Some(bucket);
    }

    /// Copies the records of `range`. If the source changes meanwhile, the result is meaningless;
    /// the caller must detect this and clear the buffer. After `Ok`, every record's range is inside
    /// the copy.
    pub(super) fn fill(
        &mut self,
        source: &impl CopySource,
        bucket: BucketRef,
        range: Range<u64>,
        bucket_bytes: usize,
        base_ns: i64,
    ) -> Result<(), CopyError> {
        self.clear();
        let end = usize::try_from(range.end)
            .ok()
            .filter(|&end| end <= bucket_bytes / DESCRIPTOR_BYTES)
            .ok_or(CopyError::Damaged {
                bucket,
                what: "it counts more records than it has room for",
            })?;
        let first = usize::try_from(range.start).map_or(end, |first| first.min(end));
        let count = end - first;
        let room = bucket_bytes - end * DESCRIPTOR_BYTES;
        if count.saturating_mul(size_of::<Copied>()) > COPY_BYTES_MAX {
            return Err(CopyError::Damaged {
                bucket,
                what: "it is larger than can be copied",
            });
        }
        let reserved = self.records.try_reserve(count);
        reserved.map_err(|_| CopyError::Memory {
            bytes: count * size_of::<Copied>(),
        })?;
        let damaged = |what| CopyError::Damaged { bucket, what };
        let begin = match first.checked_sub(1) {
            None => 0,
            Some(before) => {
                let begin = Descriptor::from_words(source.descriptor(before)).offset();
                let before = Copied::read(source, before, room, base_ns, begin);
                before.map_err(damaged)?.data.end
            }
        };
        let mut at = begin;
        for index in first..end {
            let mut record = Copied::read(source, index, room, base_ns, at).map_err(damaged)?;
            at = record.data.end;
            record.data = record.data.start - begin..record.data.end - begin;
            self.records.push(record);
        }
        let bytes = at - begin;
        let reserved = self.payload.try_reserve(bytes);
        reserved.map_err(|_| CopyError::Memory { bytes })?;
        self.payload.resize(bytes, 0);
        source.payload(begin, &mut self.payload);
        Ok(())
    }
}

impl Copied {
    /// Reads a record, which must begin at `begin` and end at `room` or before. `Err`: the fault.
    fn read(
        source: &impl CopySource,
        index: usize,
        room: usize,
        base_ns: i64,
        begin: usize,
    ) -> Result<Self, &'static str> {
        let inside = |start: usize, length: usize| {
            let end = start.checked_add(length).filter(|&end| end <= room);
            end.ok_or("a record ends outside of it")
        };
        let descriptor = Descriptor::from_words(source.descriptor(index));
        let captured = descriptor.captured();
        if captured > CAPTURED_BYTES_MAX {
            return Err("a record is longer than any can be");
        }
        let mut start = descriptor.offset();
        if start != begin {
            return Err("a record is not where the one before it ends");
        }
        let mut packet = Packet {
            time_ns: descriptor.time_ns(base_ns),
            wire_len: descriptor.wire_len(),
            interface: descriptor.interface(),
            direction: descriptor.direction(),
            tag_restored: descriptor.tag_restored(),
            shard: descriptor.shard(),
            data: &[],
        };
        if descriptor.extended() {
            inside(start, EXTENSION_BYTES)?;
            let mut extension = Extension([0; EXTENSION_BYTES]);
            source.payload(start, &mut extension.0);
            if extension.len() < EXTENSION_BYTES {
                return Err("an extension is too short");
            }
            packet.time_ns = extension.time_ns();
            packet.wire_len = extension.wire_len();
            packet.interface = extension.interface();
            start = inside(start, extension.len())?;
        }
        let data = start..inside(start, captured)?;
        Ok(Self { packet, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Record, config::BUCKET_BYTES_MAX, storage::descriptor::encode};

    const BUCKET: BucketRef = BucketRef {
        index: 0,
        generation: 1,
    };

    struct Bytes(Vec<u8>);

    impl CopySource for Bytes {
        fn descriptor(&self, index: usize) -> [u64; 2] {
            let start = self.0.len() - (index + 1) * DESCRIPTOR_BYTES;
            let word = |at: usize| u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap());
            [word(start), word(start + 8)]
        }

        fn payload(&self, offset: usize, out: &mut [u8]) {
            out.copy_from_slice(&self.0[offset..offset + out.len()]);
        }
    }

    impl Bytes {
        fn put(&mut self, index: usize, offset: usize, record: &Record<'_>) {
            let at = u32::try_from(offset).unwrap();
            let (descriptor, extension) = encode(record, 1000, at, record.parts[0].len());
            let place = self.0.len() - (index + 1) * DESCRIPTOR_BYTES;
            self.0[place..place + DESCRIPTOR_BYTES]
                .copy_from_slice(Descriptor::as_bytes(&[descriptor]));
            let mut offset = offset;
            if let Some(Extension(extension)) = extension {
                self.0[offset..offset + 16].copy_from_slice(&extension);
                offset += 16;
            }
            self.0[offset..offset + record.parts[0].len()].copy_from_slice(record.parts[0]);
        }
    }

    #[test]
    fn both_forms_are_copied() {
        let mut bytes = Bytes(vec![0; 256]);
        bytes.put(0, 0, &Record::whole(1007, 3, b"compact"));
        let far = Record {
            shard: 31,
            ..Record::whole(i64::MIN, 300, b"far")
        };
        bytes.put(1, 7, &far);
        let mut buffer = Buffer::new();
        buffer.fill(&bytes, BUCKET, 0..2, 256, 1000).unwrap();
        let packets: Vec<_> = buffer.packets().collect();
        assert_eq!((packets[0].time_ns, packets[0].interface), (1007, 3));
        assert_eq!(packets[0].data, b"compact");
        assert_eq!((packets[1].time_ns, packets[1].interface), (i64::MIN, 300));
        assert_eq!(
            (packets[1].wire_len, packets[1].shard, packets[1].data),
            (3, 31, b"far".as_slice())
        );
        let all: Vec<_> = packets.iter().map(|packet| packet.data.to_vec()).collect();
        for first in 0..4 {
            buffer.fill(&bytes, BUCKET, first..2, 256, 1000).unwrap();
            let data = buffer.packets().map(|packet| packet.data.to_vec());
            let expected = all.iter().skip(usize::try_from(first).unwrap());
            assert!(data.eq(expected.cloned()), "from {first} on");
        }
    }

    #[test]
    fn nothing_outside_of_the_bucket_is_believed() {
        let mut buffer = Buffer::new();
        let mut damaged = |bytes: &Bytes, count| match buffer.fill(bytes, BUCKET, 0..count, 256, 0)
        {
            Err(CopyError::Damaged { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let empty = Bytes(vec![0; 256]);
        assert!(damaged(&empty, 17).contains("room for"));
        assert!(damaged(&empty, u64::MAX).contains("room for"));
        let mut bytes = Bytes(vec![0; 256]);
        bytes.put(0, 1, &Record::whole(1000, 0, b"12345"));
        assert!(damaged(&bytes, 1).contains("the one before"));
        // The payload is one byte too long.
        let long = [7; 241];
        bytes.put(0, 0, &Record::whole(1000, 0, &long));
        assert!(damaged(&bytes, 1).contains("outside"));
        bytes.put(0, 0, &Record::whole(i64::MIN, 0, &long[..225]));
        assert!(damaged(&bytes, 1).contains("outside"));
        bytes.put(0, 0, &Record::whole(i64::MIN, 0, b"12345"));
        bytes.0[0..2].copy_from_slice(&15_u16.to_ne_bytes());
        assert!(damaged(&bytes, 1).contains("extension"));
        bytes.0[0..2].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert!(damaged(&bytes, 1).contains("outside"));
        bytes.0[248..256].copy_from_slice(&(((1_u64 << 19) - 1) << 28).to_ne_bytes());
        assert!(damaged(&bytes, 1).contains("longer"));
    }

    /// A sparse file may claim millions of empty records: no memory may be allocated for their
    /// list.
    #[test]
    fn what_is_too_large_is_not_copied() {
        struct Zeros;
        impl CopySource for Zeros {
            fn descriptor(&self, _index: usize) -> [u64; 2] {
                [0; 2]
            }
            fn payload(&self, _offset: usize, out: &mut [u8]) {
                out.fill(0);
            }
        }
        let mut buffer = Buffer::new();
        let count = (BUCKET_BYTES_MAX / DESCRIPTOR_BYTES) as u64;
        let filled = buffer.fill(&Zeros, BUCKET, 0..count, BUCKET_BYTES_MAX, 0);
        assert!(matches!(filled, Err(CopyError::Damaged { .. })));
        assert_eq!(buffer.records.capacity(), 0);
        assert!(
            buffer
                .fill(&Zeros, BUCKET, 0..1000, BUCKET_BYTES_MAX, 0)
                .is_ok()
        );
    }

    #[test]
    fn random_buckets_never_lead_outside() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut buffer = Buffer::new();
        let mut taken = 0;
        for _ in 0..20_000 {
            let mut bytes = Bytes((0..256).map(|_| random.u8(..)).collect());
            // Small lengths, so that some buckets are valid.
            let mut start = 0;
            for index in 0..4 {
                let length = random.u8(..64);
                let word = u64::from(start) | (u64::from(length) << 28);
                start += length;
                let place = 256 - index * 16 - 8;
                bytes.0[place..place + 8].copy_from_slice(&word.to_ne_bytes());
            }
            if buffer
                .fill(&bytes, BUCKET, 0..random.u64(0..5), 256, random.i64(..))
                .is_ok()
            {
                taken += buffer
                    .packets()
                    .map(|packet| packet.data.len())
                    .sum::<usize>();
            }
        }
        assert!(taken > 0);
    }
}
