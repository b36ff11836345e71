//! News for whoever watches the recorder: a log of the last ones, each with a number. Nobody who sends news waits for who reads them,
//! and who is too slow is told how many were missed.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc::RecvTimeoutError},
    time::Duration,
};

use crate::{
    control::lock,
    dump::{log::DumpCounts, report::DumpReport},
};

/// News that are kept; of older ones only the numbers are known.
const KEPT: usize = 1024;

/// News from a running recorder, in the order they happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A hit started a dump.
    Triggered {
        /// The dump's number, as in [`DumpReport::number`].
        number: u64,
        /// The trigger expression, or `manual`.
        rule: String,
        /// Time stamp of the trigger packet, ns since the epoch.
        trigger_ns: i64,
        /// The filled-in dump expression; empty: everything.
        expression: String,
    },
    /// A dump is on disk, or failed.
    Finished(DumpReport),
    /// The verdict of a finished dump changed.
    Amended(DumpReport),
    /// A sentence for the user.
    Notice(String),
    /// Only who listens is told this: news that are not kept any more.
    Missed(Missed),
}

/// How many news of each kind were missed. Nothing else is lost with them: [`crate::Summary`] has the dumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missed {
    /// Dumps that were started.
    pub triggered: u64,
    /// Dumps that were finished, or whose verdict changed.
    pub finished: DumpCounts,
    /// Sentences.
    pub notices: u64,
    /// Those from before the listener came: nobody knows of what kind.
    pub unknown: u64,
}

impl Missed {
    /// Counts news.
    pub fn add(&mut self, event: &Event) {
        match event {
            Event::Triggered { .. } => self.triggered += 1,
            Event::Finished(report) | Event::Amended(report) => self.finished.add(report.verdict),
            Event::Notice(_) => self.notices += 1,
            Event::Missed(more) => {
                self.triggered += more.triggered;
                self.finished.add_all(&more.finished);
                self.notices += more.notices;
                self.unknown += more.unknown;
            }
        }
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.triggered + self.finished.total() + self.notices + self.unknown
    }

    /// Those that `self` has and `before` had not.
    fn since(&self, before: &Self) -> Self {
        Self {
            triggered: self.triggered - before.triggered,
            finished: self.finished.since(&before.finished),
            notices: self.notices - before.notices,
            unknown: self.unknown - before.unknown,
        }
    }
}

/// The log.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    kept: Mutex<Kept>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    last: VecDeque<Arc<Event>>,
    /// The number of the first of them.
    first: u64,
    /// All before it.
    gone: Missed,
    /// Nobody sends any more.
    is_closed: bool,
}

/// Where news are sent. Any number of threads may hold one.
#[derive(Debug, Clone)]
pub(crate) struct Events(Arc<Sending>);

/// The right to send; the log is closed when the last one is gone.
#[derive(Debug)]
struct Sending(Arc<EventLog>);

impl Drop for Sending {
    fn drop(&mut self) {
        lock(&self.0.kept).is_closed = true;
        self.0.news.notify_all();
    }
}

/// A listener, with its place in the log.
#[derive(Debug)]
pub struct Subscription {
    log: Arc<EventLog>,
    next: u64,
    /// All before `next`.
    passed: Missed,
    /// To be told first.
    untold: Option<Missed>,
}

impl Events {
    /// The first sender of a log of its own.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Sending(Arc::default())))
    }

    /// Never waits but for who copies a few numbers.
    pub(crate) fn tell(&self, event: Event) {
        let log = &self.0.0;
        let mut kept = lock(&log.kept);
        kept.last.push_back(Arc::new(event));
        if kept.last.len() > KEPT
            && let Some(first) = kept.last.pop_front()
        {
            kept.gone.add(&first);
            kept.first += 1;
        }
        drop(kept);
        log.news.notify_all();
    }

    pub(crate) fn log(&self) -> &Arc<EventLog> {
        &self.0.0
    }
}

impl EventLog {
    /// The number of the next event.
    pub(crate) fn end(&self) -> u64 {
        let kept = lock(&self.kept);
        kept.first + kept.last.len() as u64
    }

    /// A listener from the event of this number on, or, if that is in the future or `None`, from the next one on.
    pub(crate) fn subscribe(self: &Arc<Self>, from: Option<u64>) -> Subscription {
        let kept = lock(&self.kept);
        let end = kept.first + kept.last.len() as u64;
        let from = from.unwrap_or(end).min(end);
        let next = from.max(kept.first);
        let mut passed = kept.gone;
        let before = kept.last.iter().zip(kept.first..next);
        before.for_each(|(event, _)| passed.add(event));
        Subscription {
            log: Arc::clone(self),
            next,
            passed,
            untold: (from < next).then(|| Missed {
                unknown: next - from,
                ..Missed::default()
            }),
        }
    }
}

impl Subscription {
    /// The number of the event that is to come: where another listener goes on.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.next
    }

    /// Waits for news, at most `timeout`.
    ///
    /// # Errors
    /// As `Receiver::recv_timeout`: `Disconnected` when all threads of the recorder are gone, and all news taken.
    pub fn take(&mut self, timeout: Duration) -> Result<Event, RecvTimeoutError> {
        if let Some(missed) = self.untold.take() {
            return Ok(Event::Missed(missed));
        }
        let kept = lock(&self.log.kept);
        let is_early =
            |kept: &mut Kept| !kept.is_closed && kept.first + kept.last.len() as u64 <= self.next;
        let waited = self.log.news.wait_timeout_while(kept, timeout, is_early);
        let (kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if self.next < kept.first {
            let missed = kept.gone.since(&self.passed);
            (self.next, self.passed) = (kept.first, kept.gone);
            return Ok(Event::Missed(missed));
        }
        let place = usize::try_from(self.next - kept.first).unwrap_or(usize::MAX);
        let Some(event) = kept.last.get(place).map(Arc::clone) else {
            return Err(if kept.is_closed {
                RecvTimeoutError::Disconnected
            } else {
                RecvTimeoutError::Timeout
            });
        };
        drop(kept);
        self.next += 1;
        self.passed.add(&event);
        Ok(Arc::unwrap_or_clone(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(number: u64) -> Event {
        Event::Notice(number.to_string())
    }

    /// All that waits: the sentences, and how many were missed before each.
    fn taken(listener: &mut Subscription) -> Vec<(u64, String)> {
        let (mut all, mut missed) = (Vec::new(), 0);
        loop {
            match listener.take(Duration::ZERO) {
                Ok(Event::Missed(more)) => missed += more.total(),
                Ok(Event::Notice(text)) => all.push((std::mem::take(&mut missed), text)),
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
                matches!(quick.take(Duration::ZERO), Ok(Event::Notice(text)) if text == number.to_string())
            );
        }
        let missed = match slow.take(Duration::ZERO) {
            Ok(Event::Missed(missed)) => missed,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (missed.notices, missed.total()),
            (100_000 - KEPT as u64, missed.notices)
        );
        let rest = taken(&mut slow);
        assert_eq!(
            (rest.len(), rest[0].clone()),
            (KEPT, (0, missed.notices.to_string()))
        );
        let thread = std::thread::spawn(move || events.tell(notice(7)));
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
        // Kinds are told of what passed by while somebody listened, also where that began in the middle.
        let mut listener = log.subscribe(Some(total - 10));
        (0..2 * KEPT as u64).for_each(|number| events.tell(notice(number)));
        let missed = match listener.take(Duration::ZERO) {
            Ok(Event::Missed(missed)) => missed,
            other => panic!("{other:?}"),
        };
        assert_eq!((missed.notices, missed.unknown), (10 + KEPT as u64, 0));
    }
}
