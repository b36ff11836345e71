//! Events of a recorder: a feed of the last events, each with a number. A listener that is too slow
//! learns how many events it missed. Senders do not wait for slow listeners, except the analyzer,
//! briefly, for a listener that writes events to a file.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst, fence},
        mpsc::RecvTimeoutError,
    },
    thread,
    time::Duration,
};

use retroscope_dumpstore::store::StoreListener;
use retroscope_flow::{Feed, FeedCursor, FeedItem};
use serde::Serialize;

use crate::{
    Query, QueryReport,
    analysis::flows::FlowWaker,
    control::{
        alerts::AlertNews,
        audit::{Change, Refusal},
        lock,
        time::rfc3339,
    },
    dump::{log::DumpCounts, post::PostResult, report::DumpReport, store::DeletedDump},
};

/// Number of events that the feed keeps.
const KEPT: usize = 1024;
/// Maximum number of checks, at intervals of [`PATIENCE_LOOK`], whether the listener that writes to
/// a file has made room.
const PATIENCE_LOOKS: u32 = 20;
const PATIENCE_LOOK: Duration = Duration::from_micros(500);

/// An event of a running recorder.
#[derive(Debug, Clone)]
pub enum RecorderEvent {
    /// A hit started a dump.
    Triggered {
        /// The dump's number, as in [`DumpReport::number`].
        number: u64,
        /// The expression of the trigger rule, the name of the script or module, `alert` or
        /// `manual`. If a command triggered a rule, the name of the rule.
        rule: String,
        /// Time stamp of the trigger packet or alert, or the command's time, ns since the epoch.
        trigger_ns: i64,
        /// The filled-in dump expression; empty: everything.
        expression: String,
        /// The alert's name, or the client's reason.
        reason: Option<Arc<str>>,
    },
    /// A dump was completed, or failed.
    Finished(DumpReport),
    /// The files of a finished dump were replaced by compressed ones, with other names.
    Compressed(DumpReport),
    /// A dump's files were deleted.
    Deleted(DeletedDump),
    /// A dump's command ended, or was not run.
    Posted(PostResult),
    /// A sentence for the user.
    Notice(String),
    /// The outcome of an IDS alert.
    Alert(AlertNews),
    /// An answer with packets, or a dump's file, was given to a client, perhaps only in part.
    Exported(Export),
    /// A change by a client or by a reload, or a failed reload.
    Changed(Change),
    /// One or more requests or connections of clients were refused.
    Refused(Refusal),
    /// Newer events overwrote events that this listener has not read.
    Missed(Missed),
}

/// Packets that left the recorder on request: the client, the selection, and the amount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Export {
    /// The client: a token's name, or a user and process at the unix socket.
    #[serde(rename = "caller")]
    pub who: String,
    /// The client's address and port; `None`: the client has none, as at the unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<SocketAddr>,
    /// The kind of request, for example `query`.
    pub what: String,
    /// The expression of a query; empty: every packet, or the client read a dump's file.
    pub filter: String,
    /// The requested Community ID; `None`: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub community_id: Option<String>,
    /// The requested interfaces; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Start of the answer (of the request if it failed), RFC 3339; `None`: the oldest packet, or
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// End of the answer (of the request if it failed), RFC 3339; `None`: the newest packet, or
    /// unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Most bytes of each packet; `None`: all recorded bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// Packets that were given; `None`: unknown, for example because the request failed, or because
    /// the client read a part of a file.
    pub packets: Option<u64>,
    /// For queries and files, the bytes that were given to the client's connection. Otherwise the
    /// bytes of the packets or of the conversation in the answer.
    pub bytes: u64,
    /// The error that ended the answer early; `None`: the whole answer was given.
    pub error: Option<String>,
}

impl Export {
    /// The facts that are known before the answer.
    #[must_use]
    pub fn new(who: &str, address: Option<SocketAddr>, what: &str, query: &Query) -> Self {
        Self {
            who: who.to_owned(),
            address,
            what: what.to_owned(),
            filter: query.whole_expression(),
            community_id: query.community_id.clone(),
            interfaces: query.interfaces.clone(),
            from: query.from_ns.map(rfc3339),
            to: query.to_ns.map(rfc3339),
            snaplen: query.headers.map(NonZeroU32::get),
            ..Self::default()
        }
    }

    /// Adds the facts in the answer's report.
    pub fn answered(&mut self, report: &QueryReport) {
        self.packets = Some(report.packets);
        self.from.clone_from(&report.from);
        self.to.clone_from(&report.to);
    }
}

/// Missed events of each kind. [`crate::RecorderSummary`] still lists or counts the finished dumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missed {
    /// Dumps that were started.
    pub triggered: u64,
    /// Dumps that were finished.
    pub finished: DumpCounts,
    /// Dumps that were compressed.
    pub compressed: u64,
    /// Dumps whose files were deleted.
    pub deleted: u64,
    /// Results of dumps' commands.
    pub posted: u64,
    /// Messages for the user.
    pub notices: u64,
    /// Outcomes of alerts.
    pub alerts: u64,
    /// Exports of packets.
    pub exports: u64,
    /// Changes by clients and reloads, and failed reloads.
    pub changes: u64,
    /// Events about refusals.
    pub refusals: u64,
    /// Events that a listener missed, of unknown kind.
    pub unknown: u64,
}

impl Missed {
    /// Counts an event.
    pub fn add(&mut self, event: &RecorderEvent) {
        match event {
            RecorderEvent::Triggered { .. } => self.triggered += 1,
            RecorderEvent::Finished(report) => self.finished.add(report.verdict),
            RecorderEvent::Compressed(_) => self.compressed += 1,
            RecorderEvent::Deleted(_) => self.deleted += 1,
            RecorderEvent::Posted(_) => self.posted += 1,
            RecorderEvent::Notice(_) => self.notices += 1,
            RecorderEvent::Alert(_) => self.alerts += 1,
            RecorderEvent::Exported(_) => self.exports += 1,
            RecorderEvent::Changed(_) => self.changes += 1,
            RecorderEvent::Refused(_) => self.refusals += 1,
            RecorderEvent::Missed(more) => {
                self.triggered += more.triggered;
                self.finished.add_all(&more.finished);
                self.compressed += more.compressed;
                self.deleted += more.deleted;
                self.posted += more.posted;
                self.notices += more.notices;
                self.alerts += more.alerts;
                self.exports += more.exports;
                self.changes += more.changes;
                self.refusals += more.refusals;
                self.unknown += more.unknown;
            }
        }
    }

    /// Number of all missed events.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.triggered
            + self.finished.total()
            + self.compressed
            + self.deleted
            + self.posted
            + self.notices
            + self.alerts
            + self.exports
            + self.changes
            + self.refusals
            + self.unknown
    }
}

/// The feed of events, and the state with which senders wake sleeping listeners.
#[derive(Debug)]
pub(crate) struct EventLog {
    feed: Feed<Arc<RecorderEvent>>,
    /// Number of listeners that sleep, or are about to sleep.
    sleepers: AtomicUsize,
    /// Taken by a listener that goes to sleep, and by a sender if a listener sleeps.
    sleep: Mutex<()>,
    news: Condvar,
    /// Wakes the [holding](Subscription::hold) listener, which may be waiting for flows.
    holder: Mutex<FlowWaker>,
    /// Whether all [`Events`] are dropped.
    is_closed: AtomicBool,
    /// The next event number of the holding listener when the analyzer last waited in vain.
    waited_for: AtomicU64,
}

/// Sends events. Any number of threads may have a sender.
#[derive(Debug, Clone)]
pub(crate) struct Events(Arc<LogGuard>);

/// Closes the log when the last clone of [`Events`] is dropped.
#[derive(Debug)]
struct LogGuard(Arc<EventLog>);

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.is_closed.store(true, SeqCst);
        self.0.wake(0);
    }
}

/// A listener, with its place in the log.
#[derive(Debug)]
pub struct Subscription {
    log: Arc<EventLog>,
    cursor: FeedCursor,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self(Arc::new(LogGuard(Arc::new(EventLog {
            feed: Feed::new(KEPT),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            news: Condvar::new(),
            holder: Mutex::default(),
            is_closed: AtomicBool::new(false),
            waited_for: AtomicU64::new(u64::MAX),
        }))))
    }

    /// Sends an event without waiting until listeners read the event.
    pub(crate) fn tell(&self, event: RecorderEvent) {
        self.0.0.tell(event);
    }

    /// Sends an event. If the event would overwrite an event that the [holding](Subscription::hold)
    /// listener has not read, waits about 10 ms at most. Does not wait if the listener has read
    /// nothing since the last wait in vain.
    pub(crate) fn tell_patiently(&self, event: RecorderEvent) {
        self.tell_within(event, PATIENCE_LOOKS);
    }

    fn tell_within(&self, event: RecorderEvent, looks_max: u32) {
        let log = &self.0.0;
        let mut looks = 0;
        let unread = log.feed.push_or_wait(Arc::new(event), |held| {
            if looks == looks_max {
                log.waited_for.store(held, SeqCst);
            }
            let is_worth_it = log.waited_for.load(SeqCst) != held;
            if is_worth_it {
                looks += 1;
                thread::park_timeout(PATIENCE_LOOK);
            }
            is_worth_it
        });
        log.wake(unread);
    }

    pub(crate) fn log(&self) -> &Arc<EventLog> {
        &self.0.0
    }
}

impl StoreListener for Events {
    fn deleted(&self, dump: DeletedDump) {
        self.tell(RecorderEvent::Deleted(dump));
    }

    fn notice(&self, text: String) {
        self.tell(RecorderEvent::Notice(text));
    }
}

impl EventLog {
    /// As [`Events::tell`], also for callers without an [`Events`], even after the log was closed.
    pub(crate) fn tell(&self, event: RecorderEvent) {
        let unread = self.feed.push(Arc::new(event));
        self.wake(unread);
    }

    /// Wakes sleeping listeners. Either this function sees the sleeper, or the sleeper sees the
    /// event: one fence precedes the other. At half a feed of `unread` events, also wakes the
    /// holding listener, which may wait for flows.
    fn wake(&self, unread: u64) {
        if unread == KEPT as u64 / 2 {
            lock(&self.holder).wake();
        }
        fence(SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.news.notify_all();
        }
    }

    /// The number of the next event.
    pub(crate) fn end(&self) -> u64 {
        self.feed.end()
    }

    /// Makes a listener from the event of this number on. If the number is in the future or `None`,
    /// the listener begins with the next event.
    pub(crate) fn subscribe(self: &Arc<Self>, from: Option<u64>) -> Subscription {
        Subscription {
            log: Arc::clone(self),
            cursor: self.feed.listen(from),
        }
    }
}

impl Subscription {
    /// The number of the next event, at which another listener can go on.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.cursor.next()
    }

    /// Makes the analyzer wait for this listener, up to about 10 ms an event, before it overwrites
    /// unread events. `flows` wakes the listener when half of the kept events are unread. Returns
    /// `false` if another listener holds the feed.
    pub fn hold(&mut self, flows: FlowWaker) -> bool {
        let holds = self.log.feed.hold(&mut self.cursor);
        if holds {
            *lock(&self.log.holder) = flows;
        }
        holds
    }

    /// Waits for an event, at most `timeout`.
    ///
    /// # Errors
    /// As `Receiver::recv_timeout`: `Disconnected` when the recorder's threads that send events
    /// have ended and the listener has taken all events.
    pub fn take(&mut self, timeout: Duration) -> Result<RecorderEvent, RecvTimeoutError> {
        if let Some(event) = self.next_event() {
            return Ok(event);
        }
        let log = &self.log;
        log.sleepers.fetch_add(1, SeqCst);
        fence(SeqCst);
        let is_early =
            |(): &mut ()| !log.is_closed.load(SeqCst) && !log.feed.has_news(&self.cursor);
        let waited = log
            .news
            .wait_timeout_while(lock(&log.sleep), timeout, is_early);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        log.sleepers.fetch_sub(1, SeqCst);
        // The last sender sends before it closes the log.
        let is_closed = log.is_closed.load(SeqCst);
        self.next_event().ok_or(if is_closed {
            RecvTimeoutError::Disconnected
        } else {
            RecvTimeoutError::Timeout
        })
    }

    fn next_event(&mut self) -> Option<RecorderEvent> {
        Some(match self.log.feed.next_event(&mut self.cursor) {
            FeedItem::Event(event) => Arc::unwrap_or_clone(event),
            FeedItem::Missed(unknown) => RecorderEvent::Missed(Missed {
                unknown,
                ..Missed::default()
            }),
            FeedItem::Nothing => return None,
        })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.log.feed.release(&mut self.cursor);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, sync_channel};

    use super::*;

    fn notice(number: u64) -> RecorderEvent {
        RecorderEvent::Notice(number.to_string())
    }

    /// All unread messages, and the number of events missed before each.
    fn taken(listener: &mut Subscription) -> Vec<(u64, String)> {
        let (mut all, mut missed) = (Vec::new(), 0);
        loop {
            match listener.take(Duration::ZERO) {
                Ok(RecorderEvent::Missed(more)) => missed += more.total(),
                Ok(RecorderEvent::Notice(text)) => all.push((std::mem::take(&mut missed), text)),
                Ok(other) => panic!("{other:?}"),
                Err(_) => return all,
            }
        }
    }

    #[test]
    fn nobody_waits_for_who_does_not_listen_and_nothing_is_withheld() {
        let events = Events::new();
        let (mut slow, mut quick) = (
            events.log().subscribe(Some(0)),
            events.log().subscribe(None),
        );
        for number in 0..100_000 {
            events.tell(notice(number));
            assert!(
                matches!(quick.take(Duration::ZERO), Ok(RecorderEvent::Notice(text)) if text == number.to_string())
            );
        }
        let missed = match slow.take(Duration::ZERO) {
            Ok(RecorderEvent::Missed(missed)) => missed,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (missed.unknown, missed.total()),
            (100_000 - KEPT as u64, missed.unknown)
        );
        let rest = taken(&mut slow);
        assert_eq!(
            (rest.len(), rest[0].clone()),
            (KEPT, (0, missed.unknown.to_string()))
        );
        let thread = thread::spawn(move || events.tell(notice(7)));
        thread.join().expect("it did not wait");
        assert_eq!(taken(&mut slow), [(0, "7".to_owned())]);
        let end = slow.take(Duration::from_secs(60));
        assert!(
            matches!(end, Err(RecvTimeoutError::Disconnected)),
            "{end:?}"
        );
    }

    #[test]
    fn a_listener_goes_on_where_another_was() {
        let events = Events::new();
        let log = events.log();
        let total = 3 * KEPT as u64;
        (0..total).for_each(|number| events.tell(notice(number)));
        let first_kept = total - KEPT as u64;
        for (cursor, missed) in [
            (0, first_kept),
            (first_kept - 1, 1),
            (first_kept, 0),
            (total - 1, 0),
        ] {
            let mut listener = log.subscribe(Some(cursor));
            let found = taken(&mut listener);
            assert_eq!(found[0], (missed, cursor.max(first_kept).to_string()));
            assert_eq!(listener.cursor(), total);
        }
        for cursor in [Some(total), Some(u64::MAX), None] {
            assert_eq!(taken(&mut log.subscribe(cursor)), []);
        }
    }

    /// If the listener does not read, the analyzer overwrites events, and notes where it waited in
    /// vain.
    #[test]
    fn the_analyzer_waits_for_who_writes_news_to_a_file() {
        let events = Events::new();
        let mut listener = events.log().subscribe(None);
        assert!(
            listener.hold(FlowWaker::default())
                && !events.log().subscribe(None).hold(FlowWaker::default())
        );
        let total = 4 * KEPT as u64;
        let reading = thread::spawn(move || {
            let mut count = 0;
            while count < total {
                match listener.take(Duration::from_secs(60)).unwrap() {
                    RecorderEvent::Notice(text) => assert_eq!(text, count.to_string()),
                    other => panic!("{other:?}"),
                }
                count += 1;
                thread::yield_now();
            }
            listener
        });
        // The reading thread may get no CPU for longer than 10 ms, so the analyzer waits longer
        // here.
        (0..total).for_each(|number| events.tell_within(notice(number), 100_000));
        let mut listener = reading.join().unwrap();
        let held = listener.cursor();
        (0..2 * KEPT as u64).for_each(|number| events.tell_patiently(notice(number)));
        assert_eq!(events.log().waited_for.load(SeqCst), held, "in vain, once");
        let missed = match listener.take(Duration::ZERO) {
            Ok(RecorderEvent::Missed(missed)) => missed.total(),
            other => panic!("{other:?}"),
        };
        assert_eq!((missed, taken(&mut listener).len()), (KEPT as u64, KEPT));
        drop(listener);
        assert!(
            events.log().subscribe(None).hold(FlowWaker::default()),
            "it let go"
        );
    }

    #[test]
    fn who_writes_news_to_a_file_is_woken_when_half_of_them_are_unread() {
        let events = Events::new();
        let (sender, flows) = sync_channel(1);
        let sender = Arc::new(sender);
        let mut listener = events.log().subscribe(None);
        assert!(listener.hold(FlowWaker::new(&sender)));
        let half = KEPT as u64 / 2;
        for patiently in [true, false, true] {
            let tell = |number| match patiently {
                true => events.tell_patiently(notice(number)),
                false => events.tell(notice(number)),
            };
            (1..half).for_each(tell);
            assert!(flows.try_recv().is_err(), "it may sleep on");
            tell(half);
            assert!(flows.try_recv().expect("it was woken").is_empty());
            // One wake-up is enough.
            (0..half).for_each(tell);
            assert!(flows.try_recv().is_err());
            assert_eq!(taken(&mut listener).len(), KEPT, "nothing was overwritten");
        }
        drop(sender);
        (0..half).for_each(|number| events.tell(notice(number)));
        let end = flows.try_recv();
        assert!(matches!(end, Err(TryRecvError::Disconnected)), "{end:?}");
    }
}
