//! Filtering and truncation that the recorder offers to an engine.
//!
//! An engine filters only if it selects exactly the frames that the recorder's own filter selects.
//! [`Queue::is_filtered`](crate::Queue::is_filtered) reports whether the engine filters; otherwise
//! the recorder filters. The recorder always truncates to the snap length.

use retroscope_bpf::Instruction;
use retroscope_packet::LinkType;

/// A capture filter and a snap length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// The capture filter: one classic BPF program for each link type for which a single program
    /// can decide. The programs expect frames as on the wire, with all VLAN tags in place, and
    /// return 0 for an unwanted frame. Empty without a filter, and with a packet limit (`-c`).
    pub programs: Vec<(LinkType, Vec<Instruction>)>,
    /// The recorder has a filter, and `programs` is empty. The engine must deliver whole frames,
    /// which the recorder then filters.
    pub is_filtered_behind: bool,
    /// Bytes needed of each frame as on the wire; 0: all. An engine may deliver more. An engine
    /// that truncates a frame delivers at least one byte more, so that the recorder counts the
    /// truncation.
    pub snaplen: u32,
}
