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
    /// One more alert belongs to a dump. The dump can mark the alert's frame only if the frame is
    /// not written yet, and its record is `unread` or later.
    Alert {
        id: u64,
        alert: Arc<Alert>,
        unread: u64,
    },
    /// Close a dump's window: records from [`CloseOrder::ends`] on do not belong to the dump.
    Close(Box<CloseOrder>),
}

/// Maximum number of messages in the queue of the dumper. Live, further messages wait in the
/// analyzer.
const BEHIND_MAX: usize = 1024;

/// If this number of messages waits in the analyzer, no more alerts that join a dump are sent. An
/// alert takes about 1 KiB.
const UNSENT_ALERTS_MAX: usize = 16_384;

/// Live: the analyzer's end of the queue to the dumper. Before the end of the recording, the
/// analyzer does not wait for a dumper that a disk delays: messages without room in the queue wait
/// here. The limits on open dumps bound the waiting orders, because a dump whose order waits here
/// is not finished. Each dump has at most two orders. [`UNSENT_ALERTS_MAX`] bounds the alerts.
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

    /// Sends a message after all earlier messages. If the dumper has ended, the message is dropped:
    /// either the dumper was asked to end, or it failed, and the join of its thread reports the
    /// failure.
    pub(crate) fn send(&mut self, message: DumperMessage) {
        self.unsent.push_back(message);
        self.push();
    }

    /// Whether an alert that joins a dump may be sent. Live, the limits on open dumps do not bound
    /// such alerts.
    pub(crate) fn has_room_for_alert(&self) -> bool {
        self.unsent.len() < UNSENT_ALERTS_MAX
    }

    /// Sends waiting messages, as far as the queue has room.
    pub(crate) fn push(&mut self) {
        while let Some(message) = self.unsent.pop_front() {
            if let Err(TrySendError::Full(message)) = self.queue.try_send(message) {
                self.unsent.push_front(message);
                return;
            }
        }
    }

    /// Sends all waiting messages, and waits while the queue is full: the analyzer has nothing else
    /// to do.
    pub(crate) fn finish(&mut self) {
        for message in std::mem::take(&mut self.unsent) {
            let _ = self.queue.send(message);
        }
    }
}

/// An order to start a dump.
#[derive(Debug)]
pub(crate) struct DumpOrder {
    pub(crate) id: u64,
    /// The trigger's expression or name, for file names and reports.
    pub(crate) rule: String,
    /// The number of the trigger rule, or the number that stands for IDS alerts or for dumps by
    /// hand.
    pub(crate) rule_number: usize,
    /// The directory for the dump's files, below the directory of the dumps.
    pub(crate) into: Option<SubDirectory>,
    /// The person who asked for the dump, if the trigger names a person.
    pub(crate) asked_by: Option<Arc<str>>,
    /// The identity under which the control plane accepted the request.
    pub(crate) caller: Option<Arc<str>>,
    /// The reason, if the trigger names a reason.
    pub(crate) reason: Option<Arc<str>>,
    /// The name of the dump's rule; `None`: a dump without a rule, by hand or of an IDS alert.
    pub(crate) rule_name: Option<Arc<str>>,
    pub(crate) window: DumpWindow,
    /// Producer, record and interface of the trigger packet. `None`: a command or an alert
    /// triggered the dump, without a packet.
    pub(crate) trigger: Option<(usize, u64, u16)>,
    /// Ring time of the trigger, ns. All times of an order are ring time.
    pub(crate) trigger_ns: i64,
    /// Stamp minus ring time of the trigger packet, ns. Without a trigger packet, that of the alert
    /// or of the system's clock. Reports add this offset to all ring times.
    pub(crate) offset_ns: i64,
    pub(crate) expression: String,
    pub(crate) predicate: DumpPredicate,
    /// The link type of the trigger packet, if a script or module made the filter. If the filter
    /// cannot be compiled for this link type, the script or module is at fault.
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
    /// Recorded packets up to the close, by interface (offline only, where the number depends only
    /// on the input).
    pub(crate) received: Option<Vec<u64>>,
    /// Ring time at the close, ns.
    pub(crate) clock_ns: i64,
    /// Ring time of the start of the recording, ns. From files: the earliest ring time of a packet
    /// up to the close.
    pub(crate) start_ns: i64,
    /// Packets in or near the window that the trigger rules did not see.
    pub(crate) unseen: u64,
    /// Upper bound on the packets that have arrived too late up to now. Live only: from files the
    /// number depends on the dumper's progress.
    pub(crate) late: Option<Arc<AtomicU64>>,
}
