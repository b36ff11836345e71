//! Continues after packets of an earlier answer.
//!
//! For a producer with a named packet, the next answer continues after the last such packet; for
//! any other producer, after the last named packet whose time is known. If the last named packet of
//! a producer was overwritten, packets of higher numbers follow.

use retroscope_ring::{Attached, Buffer};

use super::{
    PacketId, QueryError, Recording,
    contents::{QueryWindow, RegionContents},
};

/// Position in the order of packets: ring time in ns, producer, record.
pub(super) type RecordPosition = (i64, usize, u64);

/// The named packets of a query, and the packets that they exclude.
#[derive(Debug, Default)]
pub(super) struct Resume {
    /// By the producer's number: the last named packet.
    own: Vec<Option<ResumePlace>>,
    /// Packets before this position are left out, if they are of producers without a named packet.
    begin: Option<RecordPosition>,
}

/// A packet that the ring has, or has had.
pub(super) struct FoundPacket {
    pub(super) producer: usize,
    pub(super) record: u64,
    /// Ring time in ns, and number of the interface. `None`: the packet was overwritten, or cannot
    /// be read.
    pub(super) place: Option<(i64, u16)>,
}

/// # Errors
/// In words, why the ID names no packet of this recording.
pub(super) fn find(
    id: PacketId,
    recording: Recording,
    attached: &Attached,
    contents: &RegionContents,
) -> Result<FoundPacket, &'static str> {
    let (producer, record) = recording.read(id);
    if producer >= attached.info().producers {
        return Err("it is of another recording");
    }
    if record >= contents.end_of(producer) {
        return Err("there is no such packet");
    }
    let buckets = contents.buckets.iter().map(|candidate| &candidate.bucket);
    let mut buckets = buckets.filter(|bucket| bucket.producer == producer);
    let holder =
        buckets.find(|bucket| record >= bucket.first && record - bucket.first < bucket.packets);
    let place = holder.and_then(|bucket| {
        let skip = record - bucket.first;
        let mut buffer = Buffer::new();
        attached
            .copy_bucket_from(bucket.bucket, skip, &mut buffer)
            .ok()?;
        let packet = buffer.packets().next()?;
        Some((packet.time_ns, packet.interface))
    });
    Ok(FoundPacket {
        producer,
        record,
        place,
    })
}

/// A named packet of a producer.
#[derive(Debug, Clone, Copy)]
struct ResumePlace {
    record: u64,
    /// Ring time, ns; `None`: the packet was overwritten, or cannot be read.
    time_ns: Option<i64>,
}

impl Resume {
    pub(super) fn new(
        after: &[PacketId],
        recording: Recording,
        attached: &Attached,
        contents: &RegionContents,
    ) -> Result<Self, QueryError> {
        let mut resume = Self::default();
        for id in after {
            let found = find(*id, recording, attached, contents);
            let found = found.map_err(|why| QueryError::Usage(format!("after packet {id}: {why}")));
            let FoundPacket {
                producer,
                record,
                place,
            } = found?;
            let time_ns = place.map(|(time_ns, _)| time_ns);
            if resume.own.len() <= producer {
                resume.own.resize(producer + 1, None);
            }
            let known = &mut resume.own[producer];
            if known.is_none_or(|known| (known.time_ns, known.record) < (time_ns, record)) {
                *known = Some(ResumePlace { record, time_ns });
            }
            let behind = time_ns.map(|time_ns| (time_ns, producer, record + 1));
            resume.begin = resume.begin.max(behind);
        }
        Ok(resume)
    }

    /// Leaves out what is before the oldest named packet, unless the time of a named packet is
    /// unknown.
    pub(super) fn narrow(&self, window: &mut QueryWindow, contents: &RegionContents) {
        if self.own.is_empty() {
            return;
        }
        let places = self.own.iter().flatten();
        let is_known = places.clone().all(|place| place.time_ns.is_some());
        let first_ns = places.filter_map(|place| place.time_ns).min();
        window.resume(first_ns.filter(|_| is_known), contents.latest_offset_ns());
    }

    /// Leaves out all packets before `position`.
    pub(super) fn begin_with(&mut self, position: RecordPosition) {
        self.begin = Some(position);
    }

    /// Whether a packet is before the place where this answer continues.
    pub(super) fn had(&self, time_ns: i64, producer: usize, record: u64) -> bool {
        match self.place(producer) {
            Some(ResumePlace {
                record: last,
                time_ns: Some(last_ns),
            }) => (time_ns, record) <= (last_ns, last),
            Some(ResumePlace { record: last, .. }) => record <= last,
            None => (self.begin).is_some_and(|begin| (time_ns, producer, record) < begin),
        }
    }

    /// The number after the named packet of a producer: a gap before that number belongs to the
    /// earlier answer.
    pub(super) fn end_of(&self, producer: usize) -> Option<u64> {
        self.place(producer).map(|place| place.record + 1)
    }

    fn place(&self, producer: usize) -> Option<ResumePlace> {
        self.own.get(producer).copied().flatten()
    }
}
