//! What a recorder offers an engine to take over, so that unwanted bytes are not even copied.
//!
//! An engine takes what it can do with exactly the same outcome, and says so by
//! [`Queue::is_filtered`](crate::Queue::is_filtered); whatever it leaves is done behind it.

use retroscope_packet::LinkType;

/// A capture filter and a snap length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// The capture filter: one classic BPF program for each link type that it compiles for. They are meant for frames as
    /// they were on the wire, with every VLAN tag in its place, and return 0 for a frame that is not wanted. Empty: there
    /// is no filter, or none that a program decides alone.
    pub programs: Vec<(LinkType, Vec<Instruction>)>,
    /// There is a filter that is not in `programs`: frames are wanted whole, to be decided behind the engine.
    pub is_filtered_behind: bool,
    /// Bytes wanted of each frame as it was on the wire; 0: all. An engine that hands over more does no harm, one that cuts
    /// a frame hands over at least one byte more than this, so that the cut is counted.
    pub snaplen: u32,
}

/// A classic BPF instruction, laid out as `struct sock_filter` of `linux/filter.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// Operation code: class, size or operation, mode or source.
    pub code: u16,
    /// Instructions to skip when a conditional jump's condition holds.
    pub jump_true: u8,
    /// Instructions to skip when it does not.
    pub jump_false: u8,
    /// The constant: offset, operand, jump distance or scratch index.
    pub k: u32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

impl Instruction {
    /// `ret #k`.
    #[must_use]
    pub const fn ret(k: u32) -> Self {
        Self {
            code: 0x06,
            jump_true: 0,
            jump_false: 0,
            k,
        }
    }
}
