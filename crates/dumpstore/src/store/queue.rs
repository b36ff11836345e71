//! Questions to a thread that may have to wait for a disk. The number of questions that are not
//! urgent is bounded. A pending question is removed when its asker stops waiting.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    time::Duration,
};

use crate::lock;

/// Maximum number of pending questions to one thread, without urgent questions.
pub(super) const QUESTIONS_MAX: usize = 64;

/// The requests to one thread. Clones share the requests.
#[derive(Debug)]
pub(super) struct RequestQueue<R>(Arc<QueueShared<R>>);

#[derive(Debug)]
struct QueueShared<R> {
    state: Mutex<QueueState<R>>,
    /// A request was added, or the queue was closed.
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState<R> {
    /// Each question with its number. Requests without an answer have no number.
    waiting: VecDeque<(Option<u64>, R)>,
    /// Urgent questions, which precede all other requests. The limit does not apply: only the
    /// threads that write dumps ask urgently.
    urgent: VecDeque<(Option<u64>, R)>,
    next: u64,
    is_closed: bool,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// Too many questions are pending.
    Busy,
    /// No answer arrived in time.
    Late,
    /// The thread has ended, or takes no new questions because it is about to end.
    Ended,
}

/// The result of waiting for the next request.
#[derive(Debug)]
pub(super) enum NextRequest<R> {
    Request(R),
    /// No request arrived in time.
    Nothing,
    /// The queue is closed and empty.
    End,
}

impl<R> Clone for RequestQueue<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> Default for RequestQueue<R> {
    fn default() -> Self {
        let state = QueueState {
            waiting: VecDeque::new(),
            urgent: VecDeque::new(),
            next: 0,
            is_closed: false,
        };
        Self(Arc::new(QueueShared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }
}

impl<R> RequestQueue<R> {
    /// Adds a request that needs no answer. The limit does not apply.
    pub(super) fn push(&self, request: R) {
        lock(&self.0.state).waiting.push_back((None, request));
        self.0.changed.notify_all();
    }

    /// Asks a question, and waits for at most `wait`. After that, a question that the thread has
    /// not taken is removed.
    pub(super) fn ask<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> R,
        wait: Duration,
    ) -> Result<T, NoAnswer> {
        self.put_and_wait(request, wait, false)
    }

    /// As [`Self::ask`], but before all other requests, and without the limit on their number.
    pub(super) fn ask_urgently<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> R,
        wait: Duration,
    ) -> Result<T, NoAnswer> {
        self.put_and_wait(request, wait, true)
    }

    fn put_and_wait<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> R,
        wait: Duration,
        is_urgent: bool,
    ) -> Result<T, NoAnswer> {
        let (reply, answer) = sync_channel(1);
        let number = self.put(request(reply), is_urgent)?;
        answer.recv_timeout(wait).map_err(|error| match error {
            RecvTimeoutError::Disconnected => NoAnswer::Ended,
            RecvTimeoutError::Timeout => {
                let is_other = |it: &(Option<u64>, R)| it.0 != Some(number);
                let mut state = lock(&self.0.state);
                state.waiting.retain(is_other);
                state.urgent.retain(is_other);
                NoAnswer::Late
            }
        })
    }

    fn put(&self, request: R, is_urgent: bool) -> Result<u64, NoAnswer> {
        let mut state = lock(&self.0.state);
        if state.is_closed {
            return Err(NoAnswer::Ended);
        }
        if !is_urgent && state.questions() >= QUESTIONS_MAX {
            return Err(NoAnswer::Busy);
        }
        let number = state.next;
        state.next += 1;
        let queue = match is_urgent {
            true => &mut state.urgent,
            false => &mut state.waiting,
        };
        queue.push_back((Some(number), request));
        self.0.changed.notify_all();
        Ok(number)
    }

    /// Closes the queue: new questions fail.
    pub(super) fn close(&self) {
        lock(&self.0.state).is_closed = true;
        self.0.changed.notify_all();
    }

    /// Takes the oldest urgent question, otherwise the oldest request. Waits for at most `wait`;
    /// `None`: without a limit.
    pub(super) fn next(&self, wait: Option<Duration>) -> NextRequest<R> {
        let state = lock(&self.0.state);
        let is_empty = |state: &mut QueueState<R>| {
            state.waiting.is_empty() && state.urgent.is_empty() && !state.is_closed
        };
        let mut state = match wait {
            Some(wait) => {
                let waited = self.0.changed.wait_timeout_while(state, wait, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.0.changed.wait_while(state, is_empty);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        let urgent = state.urgent.pop_front();
        match urgent.or_else(|| state.waiting.pop_front()) {
            Some((_, request)) => NextRequest::Request(request),
            None if state.is_closed => NextRequest::End,
            None => NextRequest::Nothing,
        }
    }

    /// Takes all pending requests of a kind, except urgent questions.
    pub(super) fn take_all(&self, is_it: impl Fn(&R) -> bool) -> Vec<R> {
        let mut state = lock(&self.0.state);
        let (taken, left) = std::mem::take(&mut state.waiting)
            .into_iter()
            .partition(|(_, request)| is_it(request));
        state.waiting = left;
        let taken: VecDeque<_> = taken;
        taken.into_iter().map(|(_, request)| request).collect()
    }

    /// Number of pending requests.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let state = lock(&self.0.state);
        state.waiting.len() + state.urgent.len()
    }

    /// Number of pending questions, without urgent questions.
    #[cfg(test)]
    pub(super) fn questions(&self) -> usize {
        lock(&self.0.state).questions()
    }
}

impl<R> QueueState<R> {
    fn questions(&self) -> usize {
        let numbers = self.waiting.iter().filter_map(|(number, _)| *number);
        numbers.count()
    }
}
