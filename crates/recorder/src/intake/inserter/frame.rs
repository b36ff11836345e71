//! Frames as they were on the wire.

use retroscope_capture::{Burst, FrameMeta, LentFrame};
use retroscope_packet::LinkType;

/// Whether an Ethernet frame carries an 802.1Q, 802.1ad or QinQ tag.
pub(super) fn has_tag(data: &[u8]) -> bool {
    matches!(
        data.get(12..14),
        Some([0x81, 0x00] | [0x88, 0xa8] | [0x91, 0x00])
    )
}

/// A frame as it was on the wire, with the VLAN tag that the NIC or the kernel removed.
#[derive(Debug)]
pub(crate) struct WireFrame<'a> {
    head: &'a [u8],
    tag: [u8; 4],
    tag_len: usize,
    tail: &'a [u8],
    /// Bytes on the wire.
    pub(crate) wire_len: u32,
    pub(crate) direction: u8,
}

/// Bytes before a VLAN tag: two MAC addresses.
const MACS: usize = 12;
pub(super) const TAG_BYTES: u32 = 4;

impl<'a> WireFrame<'a> {
    /// A frame that is in memory as it was on the wire.
    pub(crate) fn whole(frame: &LentFrame<'a>) -> Self {
        Self {
            head: frame.data,
            tag: [0; 4],
            tag_len: 0,
            tail: &[],
            wire_len: frame.meta.wire_len,
            direction: frame.meta.direction as u8,
        }
    }

    /// Whether the frame has a restored tag, which is not in the engine's memory.
    pub(super) fn has_own_tag(&self) -> bool {
        self.tag_len > 0
    }

    pub(crate) fn new(frame: &LentFrame<'a>, link_type: LinkType) -> Self {
        let meta = &frame.meta;
        let plain = Self::whole(frame);
        match meta.vlan {
            Some(vlan) if link_type == LinkType::ETHERNET && frame.data.len() >= MACS => {
                let ([a, b], [c, d]) = (vlan.tpid.to_be_bytes(), vlan.tci.to_be_bytes());
                let (head, tail) = frame.data.split_at(MACS);
                Self {
                    head,
                    tag: [a, b, c, d],
                    tag_len: 4,
                    tail,
                    wire_len: meta.wire_len.saturating_add(TAG_BYTES),
                    ..plain
                }
            }
            _ => plain,
        }
    }

    /// The parts of the frame, in the order in which they are stored.
    pub(crate) fn parts(&self) -> [&[u8]; 3] {
        [self.head, &self.tag[..self.tag_len], self.tail]
    }

    pub(super) fn captured_len(&self) -> usize {
        self.head.len() + self.tag_len + self.tail.len()
    }

    /// Truncates to the first `snaplen` bytes (0: no limit). Returns whether bytes were cut.
    pub(super) fn cut(&mut self, snaplen: u32) -> bool {
        let snaplen = snaplen as usize;
        if snaplen == 0 || self.captured_len() <= snaplen {
            return false;
        }
        self.head = &self.head[..self.head.len().min(snaplen)];
        self.tag_len = self.tag_len.min(snaplen - self.head.len());
        self.tail = &self.tail[..self
            .tail
            .len()
            .min(snaplen - self.head.len() - self.tag_len)];
        true
    }
}

/// Copies of frames, with the tags that the NIC or the kernel removed.
#[derive(Debug, Default)]
pub(super) struct PutBack {
    memory: Vec<u8>,
    /// The frames as copied; `vlan` has the restored tag.
    pub(super) frames: Vec<FrameMeta>,
}

impl PutBack {
    /// Most bytes that are copied at once, so that the copies are analyzed from the cache. A longer
    /// frame is copied alone.
    pub(super) const BYTES: usize = 96 << 10;

    /// Replaces the copies by copies of the first of `frames`. Returns how many frames were copied.
    pub(super) fn fill(
        &mut self,
        burst: &Burst<'_>,
        frames: &[FrameMeta],
        link_type: LinkType,
    ) -> usize {
        self.memory.clear();
        self.memory.reserve(Self::BYTES);
        self.frames.clear();
        for meta in frames {
            let data = &burst.memory[meta.offset..meta.offset + meta.captured_len as usize];
            let wire = WireFrame::new(&LentFrame { meta: *meta, data }, link_type);
            let offset = self.memory.len();
            if offset > 0 && offset + wire.captured_len() > Self::BYTES {
                break;
            }
            (wire.parts().into_iter()).for_each(|part| self.memory.extend_from_slice(part));
            self.frames.push(FrameMeta {
                offset,
                #[expect(clippy::cast_possible_truncation, reason = "no frame has 4 GiB")]
                captured_len: wire.captured_len() as u32,
                wire_len: wire.wire_len,
                vlan: meta.vlan.filter(|_| wire.has_own_tag()),
                ..*meta
            });
        }
        self.frames.len()
    }

    pub(super) fn burst(&self) -> Burst<'_> {
        Burst {
            memory: &self.memory,
            frames: &self.frames,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use retroscope_capture::{Direction, VlanTag};

    fn frame(data: &[u8], vlan: Option<VlanTag>) -> LentFrame<'_> {
        let captured_len = u32::try_from(data.len()).unwrap();
        let meta = FrameMeta {
            time_ns: 0,
            offset: 0,
            captured_len,
            wire_len: 100,
            interface: 0,
            direction: Direction::Unknown,
            vlan,
        };
        LentFrame { meta, data }
    }

    #[test]
    fn a_stripped_tag_goes_back_behind_the_addresses() {
        let data: Vec<u8> = (0..20).collect();
        let tag = Some(VlanTag {
            tpid: 0x88a8,
            tci: 0x3123,
        });
        let wire = WireFrame::new(&frame(&data, tag), LinkType::ETHERNET);
        let expected: Vec<u8> = (0..12)
            .chain([0x88, 0xa8, 0x31, 0x23])
            .chain(12..20)
            .collect();
        assert_eq!((wire.parts().concat(), wire.wire_len), (expected, 104));
        let raw = WireFrame::new(&frame(&data, tag), LinkType::RAW);
        assert_eq!((raw.parts().concat(), raw.wire_len), (data, 100));
    }

    #[test]
    fn the_snap_length_counts_the_tag() {
        let data: Vec<u8> = (0..20).collect();
        let tag = Some(VlanTag {
            tpid: 0x8100,
            tci: 5,
        });
        let whole = WireFrame::new(&frame(&data, tag), LinkType::ETHERNET)
            .parts()
            .concat();
        for snaplen in 1..30 {
            let f = frame(&data, tag);
            let mut wire = WireFrame::new(&f, LinkType::ETHERNET);
            let cut = wire.cut(snaplen);
            let kept = whole.len().min(snaplen as usize);
            assert_eq!(
                (wire.parts().concat().as_slice(), cut, wire.wire_len),
                (&whole[..kept], kept < whole.len(), 104)
            );
        }
    }
}
