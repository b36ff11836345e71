//! News for whoever watches the recorder: bounded, so that nobody who sends them waits for a terminal that stands still.

use std::sync::{
    Arc, Mutex,
    mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
};
use std::time::Duration;

use crate::{
    control::lock,
    dump::{log::DumpCounts, report::DumpReport},
};

/// News that wait at most; further ones are counted.
const WAITING_MAX: usize = 1024;

/// News from a running recorder, in the order they happened.
#[derive(Debug)]
pub enum Event {
    /// A hit started a dump.
    Triggered {
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
    /// News that did not fit, because too many waited to be taken.
    Missed(Missed),
}

/// How many news of each kind were only counted. Nothing else is lost with them: [`crate::Summary`] has the dumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missed {
    /// Dumps that were started.
    pub triggered: u64,
    /// Dumps that were finished, or whose verdict changed.
    pub finished: DumpCounts,
    /// Sentences.
    pub notices: u64,
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
            }
        }
    }

    /// Whether it counted none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where news are sent. Any number of threads may hold one.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    queue: SyncSender<Event>,
    missed: Arc<Mutex<Missed>>,
}

/// Where they are taken.
#[derive(Debug)]
pub(crate) struct EventQueue {
    queue: Receiver<Event>,
    missed: Arc<Mutex<Missed>>,
}

/// A queue and its first sender.
pub(crate) fn events() -> (Events, EventQueue) {
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let missed = Arc::<Mutex<Missed>>::default();
    let events = Events {
        queue: sender,
        missed: Arc::clone(&missed),
    };
    let queue = EventQueue {
        queue: receiver,
        missed,
    };
    (events, queue)
}

impl Events {
    /// Never waits. Where nobody takes news any more, nobody needs them.
    pub(crate) fn tell(&self, event: Event) {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        match self.queue.try_send(event) {
            Err(Full(event)) => {
                let mut missed = lock(&self.missed);
                missed.add(&event);
            }
            Ok(()) | Err(Disconnected(_)) => {}
        }
    }
}

impl EventQueue {
    /// Waits for news, at most `timeout`. Those that did not fit come when the others were taken; none is withheld when all senders
    /// are gone.
    pub(crate) fn take(&self, timeout: Duration) -> Result<Event, RecvTimeoutError> {
        self.queue.recv_timeout(timeout).or_else(|error| {
            let mut missed = lock(&self.missed);
            let missed = std::mem::take(&mut *missed);
            if missed.is_empty() {
                Err(error)
            } else {
                Ok(Event::Missed(missed))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_who_does_not_listen_and_nothing_is_withheld() {
        let (events, queue) = events();
        for number in 0..100_000 {
            events.tell(Event::Notice(number.to_string()));
        }
        let thread = std::thread::spawn(move || events.tell(Event::Notice(String::new())));
        thread.join().expect("it did not wait");
        let mut taken = 0;
        let missed = loop {
            match queue.take(Duration::ZERO) {
                Ok(Event::Missed(missed)) => break missed,
                Ok(_) => taken += 1,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((taken, missed.notices), (WAITING_MAX, 100_001 - 1024));
        let end = queue.take(Duration::from_secs(60));
        assert!(
            matches!(end, Err(RecvTimeoutError::Disconnected)),
            "{end:?}"
        );
    }
}
