//! What the analyzer tells the dumper.

use retroscope_ring::Reservation;

use crate::{director::Clip, hits::Suppressed, predicate::Predicate};

/// To the dumper.
#[derive(Debug)]
pub(crate) enum Message {
    /// Start a dump.
    Open(Box<DumpOrder>),
    /// No packet after `ends` belongs to the dump.
    Close(Box<CloseOrder>),
    /// Packets of a closed window arrived too late.
    Late {
        id: u64,
        packets: u64,
        first_ns: i64,
        last_ns: i64,
    },
    /// Look again: a barrier waits.
    Wake,
}

/// A dump to start.
#[derive(Debug)]
pub(crate) struct DumpOrder {
    pub(crate) id: u64,
    /// The trigger's text, for names and reports.
    pub(crate) rule: String,
    /// Its number.
    pub(crate) rule_number: usize,
    /// Where the trigger packet is: producer, record, interface. `None`: by hand.
    pub(crate) trigger: Option<(usize, u64, u16)>,
    /// Times are ring time.
    pub(crate) trigger_ns: i64,
    /// Stamp less ring time of the trigger packet, ns: in its clock's time a report tells all others.
    pub(crate) offset_ns: i64,
    pub(crate) expression: String,
    pub(crate) predicate: Predicate,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) reservation: Reservation,
}

/// The end of a dump's window.
#[derive(Debug)]
pub(crate) struct CloseOrder {
    pub(crate) id: u64,
    pub(crate) clipped: Option<Clip>,
    pub(crate) suppressed: Suppressed,
    /// The first record of each producer that no longer belongs to the dump.
    pub(crate) ends: Vec<u64>,
    /// Packets seen so far by interface (offline, where that is a function of the input).
    pub(crate) received: Option<Vec<u64>>,
    /// Ring time at the close, ns.
    pub(crate) clock_ns: i64,
    /// The earliest ring time recorded so far, ns.
    pub(crate) start_ns: i64,
}
