//! Messages from the analyzer to the dumper, and their queue.

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

/// Fragments of a datagram usually arrive within this time, ns.
pub(super) const DATAGRAM_NS: i64 = 100_000_000;

/// A message to the dumper.
#[derive(Debug)]
pub(crate) enum DumperMessage {
    /// Start a dump, whose window is reserved.
    Open(Box<(DumpOrder, Reservation)>),
    /// One more alert of a dump. The dump marks only frames whose record is `unread` or later.
    Alert {
        id: u64,
        alert: Arc<Alert>,
        unread: u64,
    },
    /// Close a dump's window: records from [`CloseOrder::ends`] on do not belong to the dump.
    Close(Box<CloseOrder>),
}

/// Maximum number of messages in the queue of the dumper.
const BEHIND_MAX: usize = 1024;

/// If this number of messages waits in the analyzer, no more alerts that join a dump are sent. An
/// alert takes about 1 KiB.
const UNSENT_ALERTS_MAX: usize = 16_384;

/// Live: the analyzer's end of the queue to the dumper. Messages without room in the queue wait
/// here, so that the analyzer need not wait for a dumper that a disk delays. The limits on open
/// dumps bound the waiting orders, and [`UNSENT_ALERTS_MAX`] bounds the alerts.
#[derive(Debug)]
pub(crate) struct DumperMessages {
    queue: SyncSender<DumperMessage>,
    pub(crate) unsent: VecDeque<DumperMessage>,
}

impl DumperMessages {
    pub(crate) fn new() -> (Self, Receiver<DumperMessage>) {
        let (queue, messages) = sync_channel(BEHIND_MAX);
        let unsent = VecDeque::new();
        (Self { queue, unsent }, messages)
    }

    /// Sends a message after all earlier messages. If the dumper has ended, the message is dropped.
    pub(crate) fn send(&mut self, message: DumperMessage) {
        self.unsent.push_back(message);
        self.push();
    }

    pub(crate) fn has_room_for_alert(&self) -> bool {
        self.unsent.len() < UNSENT_ALERTS_MAX
    }

    pub(crate) fn push(&mut self) {
        while let Some(message) = self.unsent.pop_front() {
            if let Err(TrySendError::Full(message)) = self.queue.try_send(message) {
                self.unsent.push_front(message);
                return;
            }
        }
    }

    /// Sends all waiting messages, and waits while the queue is full.
    pub(crate) fn finish(&mut self) {
        for message in std::mem::take(&mut self.unsent) {
            let _ = self.queue.send(message);
        }
    }
}

#[derive(Debug)]
pub(crate) struct DumpOrder {
    pub(crate) id: u64,
    /// The trigger's expression or name, for file names and reports.
    pub(crate) rule: String,
    /// The number of the trigger rule. Alerts and dumps by hand have numbers too.
    pub(crate) rule_number: usize,
    /// The directory for the dump's files, below the directory of the dumps.
    pub(crate) into: Option<SubDirectory>,
    /// The person who asked for the dump, if the trigger names a person.
    pub(crate) asked_by: Option<Arc<str>>,
    /// The identity under which the control plane accepted the request.
    pub(crate) caller: Option<Arc<str>>,
    pub(crate) reason: Option<Arc<str>>,
    /// The name of the dump's rule; `None`: a dump without a rule, by hand or of an IDS alert.
    pub(crate) rule_name: Option<Arc<str>>,
    pub(crate) window: DumpWindow,
    /// Producer, record and interface of the trigger packet, if a packet triggered the dump.
    pub(crate) trigger: Option<(usize, u64, u16)>,
    /// Ring time of the trigger, ns. All times of an order are ring time.
    pub(crate) trigger_ns: i64,
    /// Stamp minus ring time of the trigger, ns. Reports add this offset to ring times.
    pub(crate) offset_ns: i64,
    pub(crate) expression: String,
    pub(crate) predicate: DumpPredicate,
    /// The link type of the trigger packet, if a script or module made the filter. The filter must
    /// compile for this link type.
    pub(crate) made_for: Option<LinkType>,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    /// The IDS alert that triggered the dump.
    pub(crate) alert: Option<Arc<Alert>>,
}

impl DumpOrder {
    /// The dump's filter reads packets from this ring time on, ns. Packets shortly before the
    /// window decide about datagrams that reach into the window.
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
    /// Recorded packets up to the close, by interface; offline only.
    pub(crate) received: Option<Vec<u64>>,
    /// Ring time at the close, ns.
    pub(crate) clock_ns: i64,
    /// Ring time of the start of the recording, ns. From files: the earliest ring time of a packet
    /// up to the close.
    pub(crate) start_ns: i64,
    /// Packets in or near the window that the trigger rules did not see.
    pub(crate) unseen: u64,
    /// Upper bound on the packets that have arrived too late up to now. Live only.
    pub(crate) late: Option<Arc<AtomicU64>>,
}
