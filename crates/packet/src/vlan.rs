//! The VLAN tags of one frame.

/// A VLAN tag: IEEE 802.1Q, 802.1ad or older. In host byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VlanTag {
    /// Tag protocol identifier, one of [`Self::TPIDS`].
    pub tpid: u16,
    /// Tag control information: 3 bits priority, 1 bit drop eligible, 12 bits VLAN identifier.
    pub tci: u16,
}

impl VlanTag {
    /// EtherTypes of tags. Linux strips the first two (IEEE 802.1Q and 802.1ad) from frames.
    /// pcap-filter's `vlan` also finds the third; [`crate::parse()`] follows all five.
    pub const TPIDS: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];

    /// VLAN identifier, 0 to 4095; 0 is a priority tag.
    #[must_use]
    pub fn id(self) -> u16 {
        self.tci & 0x0fff
    }
}

/// VLAN tags of a frame, outer to inner. Keeps the first [`VlanStack::CAPACITY`] tags and counts
/// all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VlanStack {
    /// The kept tags. Unused elements are zero.
    tags: [VlanTag; Self::CAPACITY],
    /// Number of tags in the frame, including those beyond the capacity. Saturates at 255.
    seen: u8,
}

impl VlanStack {
    /// Maximum number of kept tags.
    pub const CAPACITY: usize = 8;

    /// The kept tags, outer to inner.
    #[must_use]
    pub fn tags(&self) -> &[VlanTag] {
        &self.tags[..usize::from(self.seen).min(Self::CAPACITY)]
    }

    /// Whether the frame has more tags than are kept.
    #[must_use]
    pub fn has_more(&self) -> bool {
        usize::from(self.seen) > Self::CAPACITY
    }

    /// The outermost tag. pcap-filter's first `vlan` usually compares this tag.
    #[must_use]
    pub fn outer(&self) -> Option<VlanTag> {
        self.tags().first().copied()
    }

    /// Adds the next inner tag.
    pub(crate) fn push(&mut self, tag: VlanTag) {
        if let Some(slot) = self.tags.get_mut(usize::from(self.seen)) {
            *slot = tag;
        }
        self.seen = self.seen.saturating_add(1);
    }
}
