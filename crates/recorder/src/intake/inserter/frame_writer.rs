//! Writes frames into the ring, and counts stored, filtered and lost frames.
//!
//! Bursts are usually *plain*: one interface, no tag to restore, nothing to truncate. Plain frames
//! go to the ring in one loop. If frames have tags to restore, copies with tags are made, and the
//! copies are plain. The frames of other bursts are processed individually.

use std::cell::Cell;

use retroscope_capture::{FrameMeta, LentFrame};
use retroscope_flow::ShedCause;
use retroscope_packet::LinkType;
use retroscope_ring::{Producer, Record};

use super::{
    frame::{PutBack, TAG_BYTES, WireFrame, has_tag},
    parts::{InserterParts, KnownInterface},
    shards::{ShardCounts, ShardHash},
};
use crate::{
    analysis::lockstep::Lockstep,
    intake::{
        capture_filter::CaptureFilter,
        counters::{BurstCount, SHED_BY, hull},
        inline::{InHand, Inline},
        shedding::Shedding,
    },
};

#[derive(Debug, Default)]
pub(super) struct FrameWriter {
    pub(super) count: BurstCount,
    /// Packets stored until now, by shard, if packets have shards.
    pub(super) shard_counts: ShardCounts,
    /// First and last ring time of packets that found no bucket.
    pub(super) refused_ns: Option<(i64, i64)>,
    /// Ring time of the last packet whose interface has no number.
    pub(super) unnumbered_ns: Option<i64>,
    /// Stamp less ring time of the frames that are being stored, ns.
    pub(super) offset_ns: i64,
    pub(super) inline: Option<Inline>,
    pub(super) shedding: Option<Box<Shedding>>,
    /// First and last ring time of live packets that were shed, by cause.
    pub(super) shed_ns: [Option<(i64, i64)>; SHED_BY.len()],
    /// Index of the source of the frames.
    pub(super) source: usize,
    /// Memory for copies with restored tags.
    pub(super) put_back: PutBack,
}

/// The interface of all `frames`, if the frames are plain apart from tags to restore, and whether
/// some have tags to restore. `snaplen` 0 truncates nothing.
pub(super) fn together(
    frames: &[FrameMeta],
    interfaces: &[KnownInterface],
    snaplen: u32,
) -> Option<(KnownInterface, bool)> {
    let index = frames.first()?.interface;
    let longest = if snaplen == 0 { u32::MAX } else { snaplen };
    let is_plain = |meta: &FrameMeta| {
        (meta.interface == index) & meta.vlan.is_none() & (meta.captured_len <= longest)
    };
    let is_plain_but_for_a_tag = |meta: &FrameMeta| {
        let tag_bytes = if meta.vlan.is_some() { TAG_BYTES } else { 0 };
        meta.interface == index && meta.captured_len.saturating_add(tag_bytes) <= longest
    };
    let known = *interfaces.get(usize::from(index))?;
    // Nearly always all frames are plain, and a loop without branches is faster.
    if frames.iter().fold(true, |all, meta| all & is_plain(meta)) {
        return Some((known, false));
    }
    let are_together = frames.iter().all(is_plain_but_for_a_tag);
    are_together.then_some((known, true))
}

impl FrameWriter {
    /// Stores the frames that are to be kept; they are plain apart from tags to restore. Returns as
    /// [`Self::store_filtered`].
    pub(super) fn store_tagged(
        &mut self,
        burst: &InHand<'_>,
        frames: &[FrameMeta],
        interface: KnownInterface,
        producer: &mut Producer,
        parts: &mut InserterParts,
    ) -> usize {
        let mut put_back = std::mem::take(&mut self.put_back);
        let mut dealt_with = 0;
        while dealt_with < frames.len() {
            let count = put_back.fill(burst, &frames[dealt_with..], interface.link_type);
            let copies = InHand {
                burst: put_back.burst(),
                is_followed: burst.is_followed,
                is_behind: burst.is_behind,
            };
            let frames = put_back.frames.as_slice();
            let some = self.store_together(&copies, frames, interface, producer, parts);
            dealt_with += some;
            if some < count {
                break;
            }
        }
        self.put_back = put_back;
        dealt_with
    }

    /// Stores the plain frames of `burst` that are to be kept. Returns as [`Self::store_filtered`].
    pub(super) fn store_together(
        &mut self,
        burst: &InHand<'_>,
        frames: &[FrameMeta],
        interface: KnownInterface,
        producer: &mut Producer,
        parts: &mut InserterParts,
    ) -> usize {
        if self.shedding.is_some() {
            return self.store_kept(burst, frames, interface, producer, parts);
        }
        if parts.filter.is_some() {
            return self.store_filtered(burst, frames, interface, producer, parts);
        }
        let granted = &frames[..parts.reserve(frames.len())];
        self.store_plain(burst, granted, interface, producer, parts.shards.as_ref());
        granted.len()
    }

    fn store_plain(
        &mut self,
        burst: &InHand<'_>,
        frames: &[FrameMeta],
        interface: KnownInterface,
        producer: &mut Producer,
        shards: Option<&ShardHash>,
    ) {
        // Two loops, so that frames without shards have no extra branch.
        match shards {
            None => self.store_sharded(burst, frames, interface, producer, (|_| 0, || ())),
            Some(shards) => {
                let mut counts = self.shard_counts;
                let cells = Cell::from_mut(&mut counts[..]).as_slice_of_cells();
                // A script may join pairs at any time, so the shard is computed once a frame.
                let last = Cell::new(0);
                let stored = |data: &[u8]| {
                    let shard = shards.of(interface.link_type, data);
                    last.set(shard);
                    let count = &cells[usize::from(shard)];
                    count.set(count.get() + 1);
                    shard
                };
                let refused = || {
                    let count = &cells[usize::from(last.get())];
                    count.set(count.get() - 1);
                };
                self.store_sharded(burst, frames, interface, producer, (stored, refused));
                self.shard_counts = counts;
            }
        }
    }

    /// `shard_of` counts a frame and computes its shard from its bytes; `refused` takes back the
    /// count of the last frame, which was not stored.
    fn store_sharded(
        &mut self,
        burst: &InHand<'_>,
        frames: &[FrameMeta],
        interface: KnownInterface,
        producer: &mut Producer,
        (shard_of, refused): (impl Fn(&[u8]) -> u8, impl Fn()),
    ) {
        let is_ethernet = interface.link_type == LinkType::ETHERNET;
        // Values that a loop can keep in registers. Assembly in a loop, such as a store past the
        // cache, makes the compiler load again whatever is behind a reference.
        let (memory, id, offset_ns) = (burst.memory, interface.id, self.offset_ns);
        let data =
            move |meta: &FrameMeta| &memory[meta.offset..meta.offset + meta.captured_len as usize];
        let is_tagged = move |data: &[u8]| is_ethernet && has_tag(data);
        if let Some(inline) = &mut self.inline {
            inline.before_storing(producer);
        }
        let mut rest = frames;
        while !rest.is_empty() {
            // Counts bytes and tags while the frames are in the first-level cache.
            let (mut bytes, mut tagged) = (0, 0);
            let record = |meta: &FrameMeta| {
                let data = data(meta);
                bytes += u64::from(meta.captured_len);
                tagged += u64::from(is_tagged(data));
                Record {
                    time_ns: meta.time_ns.wrapping_sub(offset_ns),
                    wire_len: meta.wire_len,
                    interface: id,
                    direction: meta.direction as u8,
                    tag_restored: meta.vlan.is_some(),
                    shard: shard_of(data),
                    parts: [data, &[], &[]],
                }
            };
            let first = producer.stored();
            let result = producer.store_burst(rest.iter().map(record));
            let (stored, behind) = rest.split_at(result.unwrap_or_else(|burst| burst.stored));
            if let Some(inline) = &mut self.inline {
                inline.after_storing(first, (interface.id, offset_ns), burst, (stored, bytes));
            }
            rest = behind;
            if result.is_err()
                && let Some((frame, behind)) = rest.split_first()
            {
                // The closure `record` counted the refused frame.
                bytes -= u64::from(frame.captured_len);
                tagged -= u64::from(is_tagged(data(frame)));
                refused();
                self.refuse(frame.time_ns);
                rest = behind;
            }
            self.count.stored += stored.len() as u64;
            self.count.stored_bytes += bytes;
            self.count.tagged += tagged;
        }
    }

    /// Stores the plain frames of `burst` that match the capture filter. Returns the number of
    /// processed frames, which is less than all only if `-c` is reached.
    fn store_filtered(
        &mut self,
        burst: &InHand<'_>,
        frames: &[FrameMeta],
        interface: KnownInterface,
        producer: &mut Producer,
        parts: &mut InserterParts,
    ) -> usize {
        let mut dealt_with = 0;
        for some in frames.chunks(CaptureFilter::MANY) {
            let taken = match &mut parts.filter {
                Some(filter) => filter.takes_many(interface.link_type, burst, some),
                None => u64::MAX,
            };
            let is_taken = |index: usize| taken >> index & 1 == 1;
            let mut left = some;
            while !left.is_empty() {
                let start = some.len() - left.len();
                let same = |index: &usize| is_taken(*index) == is_taken(start);
                let (run, behind) = left.split_at((start..some.len()).take_while(same).count());
                if is_taken(start) {
                    let granted = &run[..parts.reserve(run.len())];
                    let shards = parts.shards.as_ref();
                    self.store_plain(burst, granted, interface, producer, shards);
                    dealt_with += granted.len();
                    if granted.len() < run.len() {
                        return dealt_with;
                    }
                } else {
                    self.count.filtered += run.len() as u64;
                    dealt_with += run.len();
                }
                left = behind;
            }
        }
        dealt_with
    }

    /// Stores the plain frames that match the capture filter and are not shed. Returns as
    /// [`Self::store_filtered`].
    fn store_kept(
        &mut self,
        burst: &InHand<'_>,
        frames: &[FrameMeta],
        interface: KnownInterface,
        producer: &mut Producer,
        parts: &mut InserterParts,
    ) -> usize {
        let Some(mut shedding) = self.shedding.take() else {
            return self.store_filtered(burst, frames, interface, producer, parts);
        };
        let (id, link_type) = (interface.id, interface.link_type);
        let mut taken = 0;
        // Frames before `next` are done. Frames from `next` up to the current one are to be kept.
        let (mut next, mut is_spent) = (0, false);
        for (index, meta) in frames.iter().enumerate() {
            if index % CaptureFilter::MANY == 0 {
                let some = &frames[index..frames.len().min(index + CaptureFilter::MANY)];
                taken = match &mut parts.filter {
                    Some(filter) => filter.takes_many(link_type, burst, some),
                    None => u64::MAX,
                };
            }
            let mut store_before = |writer: &mut Self, producer: &mut Producer| {
                let wanted = index - next;
                let granted = &frames[next..][..parts.reserve(wanted)];
                if wanted > 0 {
                    let shards = parts.shards.as_ref();
                    writer.store_plain(burst, granted, interface, producer, shards);
                }
                next += granted.len();
                is_spent = granted.len() < wanted;
            };
            let is_taken = taken >> (index % CaptureFilter::MANY) & 1 == 1;
            let time_ns = meta.time_ns.wrapping_sub(self.offset_ns);
            let mut shed = None;
            if is_taken {
                let data = &burst.memory[meta.offset..meta.offset + meta.captured_len as usize];
                let wire = WireFrame::whole(&LentFrame { meta: *meta, data });
                let drain = &mut |lockstep: &Lockstep| {
                    store_before(self, producer);
                    producer.publish();
                    lockstep.catch_up();
                };
                shed = shedding.sheds((link_type, id), time_ns, &wire, drain);
                if shed.is_none() {
                    continue;
                }
            }
            store_before(self, producer);
            if is_spent {
                break;
            }
            match shed {
                Some(cause) => self.shed(cause, time_ns, producer, parts),
                None => self.count.filtered += 1,
            }
            next += 1;
        }
        if !is_spent {
            let granted = &frames[next..][..parts.reserve(frames.len() - next)];
            self.store_plain(burst, granted, interface, producer, parts.shards.as_ref());
            next += granted.len();
        }
        self.shedding = Some(shedding);
        next
    }

    /// `time_ns`: ring time of the shed frame.
    fn shed(&mut self, cause: ShedCause, time_ns: i64, producer: &Producer, parts: &InserterParts) {
        let number = cause as usize;
        self.count.shed[number] += 1;
        let (intake, at_ns) = (&parts.common.intake, (time_ns, time_ns));
        if intake.offline {
            // Logged at once: a window may end with the next record.
            let record = producer.stored();
            let cause = SHED_BY[number];
            intake.shed.push(record, self.source, cause, [at_ns; 2], 1);
        } else {
            let span_ns = &mut self.shed_ns[number];
            *span_ns = Some(hull(span_ns.unwrap_or(at_ns), at_ns));
        }
    }

    /// Returns `false` if the frame is to be kept but `-c` is reached: the frame is neither stored
    /// nor counted.
    pub(super) fn store(
        &mut self,
        frame: &LentFrame<'_>,
        interfaces: &[KnownInterface],
        producer: &mut Producer,
        parts: &mut InserterParts,
    ) -> bool {
        let Some(&KnownInterface { id, link_type }) =
            interfaces.get(usize::from(frame.meta.interface))
        else {
            self.count.interface_limit += 1;
            self.unnumbered_ns = Some(frame.meta.time_ns.wrapping_sub(self.offset_ns));
            return true;
        };
        let mut wire = WireFrame::new(frame, link_type);
        if let Some(filter) = &mut parts.filter
            && !filter.takes(link_type, id, &wire)
        {
            self.count.filtered += 1;
            return true;
        }
        let time_ns = frame.meta.time_ns.wrapping_sub(self.offset_ns);
        if let Some(shedding) = &mut self.shedding {
            let drain = &mut |lockstep: &Lockstep| {
                producer.publish();
                lockstep.catch_up();
            };
            if let Some(cause) = shedding.sheds((link_type, id), time_ns, &wire, drain) {
                self.shed(cause, time_ns, producer, parts);
                return true;
            }
        }
        if parts.reserve(1) == 0 {
            return false;
        }
        let is_restored = wire.has_own_tag();
        let is_cut = wire.cut(parts.snaplen);
        let is_tagged = is_restored || link_type == LinkType::ETHERNET && has_tag(frame.data);
        let record = Record {
            time_ns,
            wire_len: wire.wire_len,
            interface: id,
            direction: frame.meta.direction as u8,
            tag_restored: is_restored,
            shard: (parts.shards.as_ref()).map_or(0, |shards| shards.of(link_type, frame.data)),
            parts: wire.parts(),
        };
        match producer.store(&record) {
            Ok(()) => {
                self.count.stored += 1;
                self.count.stored_bytes += wire.captured_len() as u64;
                self.count.cut += u64::from(is_cut);
                self.count.tagged += u64::from(is_tagged);
                self.shard_counts[usize::from(record.shard)] += 1;
            }
            Err(_) => self.refuse(frame.meta.time_ns),
        }
        true
    }

    /// Counts a frame with this stamp, which found no bucket.
    fn refuse(&mut self, stamp_ns: i64) {
        let time_ns = stamp_ns.wrapping_sub(self.offset_ns);
        self.count.no_bucket += 1;
        let at_ns = (time_ns, time_ns);
        self.refused_ns = Some(hull(self.refused_ns.unwrap_or(at_ns), at_ns));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicI64};

    use retroscope_capture::{Burst, Direction, VlanTag, clock::SystemClock};
    use retroscope_ring::{GroupKind, Mode, Ring, RingConfig};

    use super::*;
    use crate::{
        analysis::{native::NativeCode, prepared::LinkTypes},
        control::common::RecorderShared,
        intake::Intake,
        start::{config::Config, expressions::CheckedExpressions},
    };

    const INTERFACES: [KnownInterface; 2] = [
        KnownInterface {
            id: 4,
            link_type: LinkType::ETHERNET,
        },
        KnownInterface {
            id: 5,
            link_type: LinkType::RAW,
        },
    ];

    fn ring(mode: Mode) -> Ring {
        let config = RingConfig {
            mode,
            ..RingConfig::new(16 << 20, 1, 1)
        };
        Ring::new(&config, None).unwrap()
    }

    fn parts(ring: &Ring) -> InserterParts {
        let intake = Intake::new(std::iter::empty(), Arc::default(), false);
        let clock = Arc::new(SystemClock);
        let common = RecorderShared::new(ring.clone(), clock, intake);
        InserterParts::new(&Config::default(), common)
    }

    /// Frames of 60 to 99 bytes, stamped with their number; every third frame has a tag.
    fn burst(memory: &mut Vec<u8>, count: usize) -> Vec<FrameMeta> {
        let mut frames = Vec::new();
        for number in 0..count {
            let offset = memory.len();
            let length = 60 + number % 40;
            memory.extend((0..length).map(|at| (at * 7 + number).to_le_bytes()[0]));
            memory[offset + 12..offset + 14].copy_from_slice(match number % 3 {
                0 => &[0x81, 0x00],
                _ => &[0x08, 0x00],
            });
            frames.push(FrameMeta {
                time_ns: i64::try_from(number).unwrap(),
                offset,
                captured_len: u32::try_from(length).unwrap(),
                wire_len: u32::try_from(length + number % 2).unwrap(),
                interface: 0,
                direction: Direction::Inbound,
                vlan: None,
            });
        }
        frames
    }

    /// The frames, with a removed tag in `vlan` for each frame that has a tag. The bytes stay as
    /// they are.
    fn without_tags(memory: &[u8], frames: &[FrameMeta]) -> Vec<FrameMeta> {
        let mut frames = frames.to_vec();
        for meta in &mut frames {
            if memory[meta.offset + 12..][..2] == [0x81, 0x00] {
                meta.vlan = Some(VlanTag {
                    tpid: 0x8100,
                    tci: 7,
                });
            }
        }
        frames
    }

    fn contents(ring: &Ring, producer: &mut Producer) -> Vec<String> {
        producer.publish();
        let mut reader = ring.group(GroupKind::Lapped).unwrap();
        let mut packets = Vec::new();
        while let Some(batch) = reader.next() {
            packets.extend(batch.iter().map(|packet| format!("{packet:?}")));
        }
        packets
    }

    #[test]
    fn plain_frames_end_up_as_others_do() {
        let mut memory = Vec::new();
        let frames = burst(&mut memory, 500);
        let burst = InHand::alone(Burst {
            memory: &memory,
            frames: &frames,
        });
        let (plain_ring, other_ring) = (ring(Mode::Record), ring(Mode::Record));
        let (mut plain_producer, mut other_producer) = (
            plain_ring.producer().unwrap(),
            other_ring.producer().unwrap(),
        );
        let (mut plain_writer, mut other_writer) = (FrameWriter::default(), FrameWriter::default());
        let (interface, are_tagged) = together(&frames, &INTERFACES, 0).unwrap();
        assert!(!are_tagged);
        let shards = ShardHash::random();
        plain_writer.store_plain(
            &burst,
            &frames,
            interface,
            &mut plain_producer,
            Some(&shards),
        );
        let mut parts = InserterParts {
            shards: Some(shards),
            ..parts(&other_ring)
        };
        for frame in burst.iter() {
            let stored = other_writer.store(&frame, &INTERFACES, &mut other_producer, &mut parts);
            assert!(stored);
        }
        let packets = contents(&plain_ring, &mut plain_producer);
        assert_eq!(packets.len(), 500);
        assert!(packets.iter().any(|packet| !packet.contains("shard: 0,")));
        assert!(packets == contents(&other_ring, &mut other_producer));
        let counts = format!("{:?}", plain_writer.count);
        assert_eq!(counts, format!("{:?}", other_writer.count));
        assert_eq!(plain_writer.count.tagged, 167);
        assert_eq!(plain_writer.count.stored_bytes, memory.len() as u64);
    }

    #[test]
    fn frames_end_up_together_as_one_by_one() {
        let mut memory = Vec::new();
        let standing = burst(&mut memory, 3000);
        let taken_out = without_tags(&memory, &standing);
        let filter = Some("less 85 and not vlan or ether[0] < 10");
        // Frames with removed tags do not all fit into one copy.
        assert!(memory.len() > 2 * PutBack::BYTES);
        let frames = [
            (&standing, filter),
            (&taken_out, filter),
            (&taken_out, None),
        ];
        let limits = [0, 1, 77, 2000, 100_000];
        for ((frames, filter), limit) in frames.into_iter().flat_map(|it| limits.map(|l| (it, l))) {
            let burst = InHand::alone(Burst {
                memory: &memory,
                frames,
            });
            let config = Config {
                offline: true,
                filter: filter.map(str::to_owned),
                ..Config::default()
            };
            let mut ends = Vec::new();
            for are_together in [true, false] {
                let ring = ring(Mode::Record);
                let mut producer = ring.producer().unwrap();
                let native = Arc::new(NativeCode::new());
                let link_types = LinkTypes::new(&[LinkType::ETHERNET], &Vec::new);
                let expressions = CheckedExpressions::new(&config, &link_types, &native).unwrap();
                let mut parts = InserterParts {
                    filter: expressions.filter.map(Box::new),
                    remaining: Some(Arc::new(AtomicI64::new(limit))),
                    ..parts(&ring)
                };
                let mut writer = FrameWriter::default();
                let dealt_with = if are_together {
                    let (interface, are_tagged) = together(frames, &INTERFACES, 0).unwrap();
                    let store = match are_tagged {
                        true => FrameWriter::store_tagged,
                        false => FrameWriter::store_together,
                    };
                    store(
                        &mut writer,
                        &burst,
                        frames,
                        interface,
                        &mut producer,
                        &mut parts,
                    )
                } else {
                    let store =
                        |frame| writer.store(&frame, &INTERFACES, &mut producer, &mut parts);
                    let stored = burst.iter().map(store);
                    stored.take_while(|stored| *stored).count()
                };
                let packets = contents(&ring, &mut producer);
                ends.push((dealt_with, format!("{:?}", writer.count), packets));
            }
            assert!(ends[0] == ends[1], "{:?} and {:?}", ends[0].1, ends[1].1);
            let (dealt_with, _, packets) = &ends[0];
            assert_eq!(packets.len() as i64 == limit, *dealt_with < 3000);
            let least = if filter.is_some() { 600 } else { 3000 };
            assert!(packets.len() as i64 >= limit.min(least));
        }
    }

    #[test]
    fn what_is_not_together() {
        let mut memory = Vec::new();
        let frames = burst(&mut memory, 50);
        assert_eq!(together(&[], &INTERFACES, 0), None);
        assert_eq!(
            together(&frames, &INTERFACES, 99),
            Some((INTERFACES[0], false))
        );
        assert_eq!(together(&frames, &INTERFACES, 98), None, "one would be cut");
        assert_eq!(together(&frames, &[], 0), None, "never announced");
        let with = |change: fn(&mut FrameMeta), snaplen| {
            let mut frames = frames.clone();
            change(&mut frames[39]);
            together(&frames, &INTERFACES, snaplen)
        };
        assert_eq!(with(|meta| meta.interface = 1, 0), None);
        let tag = |meta: &mut FrameMeta| {
            meta.vlan = Some(VlanTag {
                tpid: 0x8100,
                tci: 1,
            });
        };
        assert_eq!(with(tag, 0), Some((INTERFACES[0], true)));
        assert_eq!(with(tag, 103), Some((INTERFACES[0], true)));
        assert_eq!(with(tag, 102), None, "its tag counts");
        let mut all = frames.clone();
        all.iter_mut().for_each(|meta| meta.interface = 1);
        assert_eq!(together(&all, &INTERFACES, 0), Some((INTERFACES[1], false)));
    }

    #[test]
    fn frames_without_a_bucket_are_counted_and_the_others_stored() {
        let ring = ring(Mode::Protect);
        let mut producer = ring.producer().unwrap();
        let everything = ring.reserve(i64::MIN, i64::MAX);
        let mut memory = Vec::new();
        let frames = burst(&mut memory, 1000);
        let burst = InHand::alone(Burst {
            memory: &memory,
            frames: &frames,
        });
        let mut writer = FrameWriter::default();
        let mut bursts = 0;
        while writer.count.no_bucket == 0 {
            writer.store_plain(&burst, &frames, INTERFACES[0], &mut producer, None);
            bursts += 1;
        }
        let BurstCount {
            stored, no_bucket, ..
        } = writer.count;
        assert_eq!(stored + no_bucket, bursts * 1000);
        // A shorter frame may still fit where a longer one did not.
        let (first_ns, last_ns) = writer.refused_ns.unwrap();
        assert!(first_ns < last_ns && last_ns == 999, "{first_ns} {last_ns}");
        assert!(u64::try_from(last_ns - first_ns).unwrap() + 1 >= no_bucket);
        drop(everything);
        writer.store_plain(&burst, &frames[..10], INTERFACES[0], &mut producer, None);
        assert_eq!(writer.count.stored, stored + 10);
        drop(producer);
        assert_eq!(ring.statistics().stored_packets, stored + 10);
    }

    #[test]
    fn frames_of_interfaces_without_a_number_are_lost() {
        let ring = ring(Mode::Record);
        let mut producer = ring.producer().unwrap();
        let mut parts = parts(&ring);
        parts.remaining = Some(Arc::new(AtomicI64::new(0)));
        let mut memory = Vec::new();
        let mut frames = burst(&mut memory, 5);
        frames.iter_mut().for_each(|meta| meta.interface = 2);
        let burst = InHand::alone(Burst {
            memory: &memory,
            frames: &frames,
        });
        assert_eq!(together(&frames, &INTERFACES, 0), None);
        let mut writer = FrameWriter::default();
        for frame in burst.iter() {
            let stored = writer.store(&frame, &INTERFACES, &mut producer, &mut parts);
            assert!(stored);
        }
        assert_eq!(
            (writer.count.interface_limit, writer.count.filtered),
            (5, 0)
        );
        assert_eq!(writer.unnumbered_ns, Some(4));
        assert_eq!(writer.refused_ns, None);
    }

    #[test]
    fn the_count_lets_so_many_in() {
        let ring = ring(Mode::Record);
        let mut producer = ring.producer().unwrap();
        let mut parts = parts(&ring);
        parts.remaining = Some(Arc::new(AtomicI64::new(12)));
        assert!(!parts.is_spent());
        assert_eq!((parts.reserve(10), parts.is_spent()), (10, false));
        let mut memory = Vec::new();
        let frames = burst(&mut memory, 1);
        let frame = Burst {
            memory: &memory,
            frames: &frames,
        }
        .frame(0);
        let mut writer = FrameWriter::default();
        let mut store = || writer.store(&frame, &INTERFACES, &mut producer, &mut parts);
        assert!(store());
        assert!(store());
        assert!(!store());
        assert_eq!(writer.count.stored, 2);
        assert!(parts.is_spent());
        assert_eq!(parts.reserve(5), 0);
    }
}
