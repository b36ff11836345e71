//! What the analyzer tells the dumper, and how.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::AtomicU64,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
};

use retroscope_alert::Alert;
use retroscope_filter::Filter;
use retroscope_packet::LinkType;
use retroscope_ring::Reservation;

use crate::{
    analysis::{
        director::Clip,
        predicate::DumpPredicate,
        terms::{DumpWindow, SubDirectory},
    },
    control::hits::Suppressed,
};

/// The fragments of a datagram come within such a time, ns, unless they are held up on their way.
pub(super) const DATAGRAM_NS: i64 = 100_000_000;

/// To the dumper.
#[derive(Debug)]
pub(crate) enum DumperMessage {
    /// Start a dump, whose window is reserved.
    Open(Box<DumpOrder>, Reservation),
    /// One more alert belongs to a dump. It marks its frame if the record is `unread` or later, and
    /// is not written yet.
    Alert {
        id: u64,
        alert: Arc<Alert>,
        unread: u64,
    },
    /// No packet after `ends` belongs to the dump.
    Close(Box<CloseOrder>),
    /// Look again: a gate waits.
    Wake,
    /// Write what can be written of the records before `ends`, say what it cost, and answer: the analyzer waits (from files).
    Account {
        ends: Vec<u64>,
        reply: SyncSender<()>,
    },
}

/// Messages that the dumper may be behind before others wait with the analyzer.
const BEHIND_MAX: usize = 1024;

/// The way to the dumper. Live the analyzer never waits for a disk that holds the dumper up: what does not fit waits here. That is
/// bounded by the limits on open dumps, whose files are not finished then: a message or two for each.
#[derive(Debug)]
pub(crate) struct DumperMessages {
    queue: SyncSender<DumperMessage>,
    pub(crate) unsent: VecDeque<DumperMessage>,
    live: bool,
}

impl DumperMessages {
    pub(crate) fn new(live: bool) -> (Self, Receiver<DumperMessage>) {
        let (queue, messages) = sync_channel(BEHIND_MAX);
        let unsent = VecDeque::new();
        let sender = Self {
            queue,
            unsent,
            live,
        };
        (sender, messages)
    }

    /// Sends a message behind all before it; from files it may wait until the dumper took some. If the dumper has ended, the
    /// message is dropped: it was told to end, or it failed, which shows when it is joined.
    pub(crate) fn send(&mut self, message: DumperMessage) {
        if self.live {
            self.unsent.push_back(message);
            self.push();
        } else {
            let _ = self.queue.send(message);
        }
    }

    /// Sends what waits, as far as the dumper took what was before it.
    pub(crate) fn push(&mut self) {
        while let Some(message) = self.unsent.pop_front() {
            if let Err(TrySendError::Full(message)) = self.queue.try_send(message) {
                self.unsent.push_front(message);
                return;
            }
        }
    }

    /// Sends all that waits, and waits for the dumper itself: there is nothing else to do.
    pub(crate) fn finish(&mut self) {
        for message in std::mem::take(&mut self.unsent) {
            let _ = self.queue.send(message);
        }
    }
}

/// A dump to start.
#[derive(Debug)]
pub(crate) struct DumpOrder {
    pub(crate) id: u64,
    /// The trigger's text, for names and reports.
    pub(crate) rule: String,
    /// Its number.
    pub(crate) rule_number: usize,
    /// Below the directory of the dumps: where it goes.
    pub(crate) into: Option<SubDirectory>,
    /// Who asked for it, if that is told.
    pub(crate) asked_by: Option<Arc<str>>,
    /// As whom they were let in.
    pub(crate) caller: Option<Arc<str>>,
    /// Why, if that is.
    pub(crate) reason: Option<Arc<str>>,
    /// What its rule is called; `None`: it has none.
    pub(crate) rule_name: Option<Arc<str>>,
    pub(crate) window: DumpWindow,
    /// Where the trigger packet is: producer, record, interface. `None`: by hand.
    pub(crate) trigger: Option<(usize, u64, u16)>,
    /// Times are ring time.
    pub(crate) trigger_ns: i64,
    /// Stamp less ring time of the trigger packet, ns: in its clock's time a report tells all others.
    pub(crate) offset_ns: i64,
    pub(crate) expression: String,
    pub(crate) predicate: DumpPredicate,
    /// Where a script made it of the trigger packet: the packet's link type. A filter that cannot be compiled for it is the script's fault.
    pub(crate) made_for: Option<LinkType>,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    /// The alert that it is of.
    pub(crate) alert: Option<Arc<Alert>>,
}

impl DumpOrder {
    /// From when on its filter looks at packets, ns of ring time: those before the window tell which datagrams reach into it.
    pub(crate) fn looks_from_ns(&self) -> i64 {
        let filter = self.predicate.filter();
        if filter.is_some_and(Filter::follows_fragments) {
            self.from_ns.saturating_sub(DATAGRAM_NS)
        } else {
            self.from_ns
        }
    }
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
    /// Packets in or about the window that the trigger rules did not see.
    pub(crate) unseen: u64,
    /// Upper bound on packets that arrived too late, but before the verdict was judged. Live only:
    /// from files the number depends on the dumper's progress.
    pub(crate) late: Option<Arc<AtomicU64>>,
}
