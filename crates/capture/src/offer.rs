//! What a recorder offers an engine to take over, so that unwanted bytes are not even copied.
//!
//! An engine takes what it can do with exactly the same outcome, and says so by
//! [`Queue::is_filtered`](crate::Queue::is_filtered); the recorder does whatever it leaves.

use retroscope_bpf::Instruction;
use retroscope_packet::LinkType;

/// A capture filter and a snap length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// The capture filter: one classic BPF program for each link type that it compiles for. They are meant for frames as
    /// they were on the wire, with every VLAN tag in its place, and return 0 for a frame that is not wanted. Empty: there
    /// is no filter, or none that a program decides alone.
    pub programs: Vec<(LinkType, Vec<Instruction>)>,
    /// There is a filter that is not in `programs`: frames are wanted whole, the recorder decides.
    pub is_filtered_behind: bool,
    /// Bytes wanted of each frame as it was on the wire; 0: all. An engine that hands over more does no harm, one that cuts
    /// a frame hands over at least one byte more than this, so that the cut is counted.
    pub snaplen: u32,
}
