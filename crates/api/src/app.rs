//! State that all requests share.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::{Arc, atomic::AtomicBool},
    task::Poll,
    time::{Duration, Instant},
};

use axum::response::{IntoResponse, Response};
use retroscope_recorder::{Clock, RecorderHandle, Refusal, SystemClock};
use tokio::{task::JoinHandle, task_local, time::sleep};

use crate::{
    Services,
    caller::Caller,
    guard::unauthenticated,
    keys::IdempotencyKeys,
    metrics::Requests,
    problem::Problem,
    queries::{ConcurrencyLimit, ConcurrencyPermit, Queries},
    refusals::Refusals,
    sessions::Sessions,
    tls::Tls,
    token::Tokens,
};

/// Interval between two checks of the token and the session by [`App::revoked`].
const TOKEN_CHECK_PERIOD: Duration = Duration::from_secs(1);

task_local! {
    /// The concurrency permit of the request that this task answers.
    pub(crate) static PERMIT: Arc<ConcurrencyPermit>;
}

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) handle: RecorderHandle,
    /// Flag that a source checks while it waits in a read, for example of a pipe.
    pub(crate) stop: Arc<AtomicBool>,
    /// `None`: there is no token file.
    pub(crate) tokens: Option<Tokens>,
    /// `None`: no TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Additional host names, in lower case, that requests may use.
    pub(crate) hosts: Vec<String>,
    /// Limit of queries that follow the recording, and of downloads of open dumps.
    pub(crate) follow_limit: Arc<ConcurrencyLimit>,
    /// Limit of queries that do not follow the recording, and for example of scans, streams and
    /// downloads of finished dumps.
    pub(crate) query_limit: Arc<ConcurrencyLimit>,
    /// Limit of timelines that read packets.
    pub(crate) peaks_limit: Arc<ConcurrencyLimit>,
    /// Limit of requests for packet details, which may start Wireshark's `sharkd`.
    pub(crate) dissection_limit: Arc<ConcurrencyLimit>,
    /// The state and the verdicts of recent queries.
    pub(crate) queries: Arc<Queries>,
    pub(crate) listener_limit: Arc<ConcurrencyLimit>,
    /// Limit of concurrent requests.
    pub(crate) request_limit: Arc<ConcurrencyLimit>,
    /// Limit of manual triggers that are compiled and started at the same time.
    pub(crate) trigger_limit: Arc<ConcurrencyLimit>,
    pub(crate) services: Services,
    pub(crate) keys: IdempotencyKeys,
    /// Whether the web page is served. Then sessions are possible.
    pub(crate) has_page: bool,
    /// The web page's address for links that clients of the unix socket request; `None`: no TCP
    /// address serves the page.
    pub(crate) page_url: Option<String>,
    pub(crate) sessions: Sessions,
    pub(crate) refusals: Refusals,
    /// Counters of the API, for the metrics.
    pub(crate) counts: Arc<Requests>,
}

impl App {
    /// Checks that the caller's token and session are valid. Success counts as use of the session.
    ///
    /// # Errors
    ///
    /// As [`Self::check_unused`].
    pub(crate) fn check(&self, caller: &Caller) -> Result<(), String> {
        self.check_unused(caller)?;
        if let Some(session) = &caller.session {
            session.touch(Instant::now());
        }
        Ok(())
    }

    /// Checks the caller's token and session. Does not count as use of the session.
    ///
    /// # Errors
    ///
    /// A sentence: the token was removed or changed, or has expired, or the session has ended.
    pub(crate) fn check_unused(&self, caller: &Caller) -> Result<(), String> {
        if let (Some(token), Some(tokens)) = (&caller.token, &self.tokens) {
            tokens.check(token, SystemClock.now().wall_ns)?;
        }
        match &caller.session {
            Some(session) => self.sessions.check(session, Instant::now()),
            None => Ok(()),
        }
    }

    /// Ends the sessions and links whose token was removed or changed, or has expired.
    pub(crate) fn end_sessions_of_lost_tokens(&self) {
        let is_valid = |caller: &Caller| self.check_unused(caller).is_ok();
        self.sessions.end_unless(is_valid);
    }

    /// Reports a refused client as an event, at once or later in a sum: see [`Refusals`].
    pub(crate) fn refuse(&self, refusal: Refusal) {
        if let Some(refusal) = self.refusals.add(refusal, Instant::now()) {
            self.handle.tell_refusal(refusal);
        }
    }

    /// Reports the counted refusals as events if their minute has ended.
    pub(crate) fn report_refusals(&self) {
        let due = self.refusals.take(Instant::now()).into_iter();
        due.for_each(|refusal| self.handle.tell_refusal(refusal));
    }

    /// Waits until [`Self::check`] refuses a caller, and returns the error.
    pub(crate) async fn revoked(&self, caller: &Caller) -> String {
        if caller.token.is_none() && caller.session.is_none() {
            return pending().await;
        }
        loop {
            sleep(TOKEN_CHECK_PERIOD).await;
            if let Err(why) = self.check(caller) {
                return why;
            }
        }
    }
}

/// Does work for a caller until the caller's token or session ends.
///
/// # Errors
///
/// The error of the work; `unauthenticated`: the token or the session has ended.
pub(crate) async fn while_valid<T>(
    app: &App,
    caller: &Caller,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let (mut work, mut revoked) = (pin!(work), pin!(app.revoked(caller)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Pending => revoked
            .as_mut()
            .poll(context)
            .map(|why| Err(unauthenticated(&why))),
        done => done,
    })
    .await
}

/// A task that is aborted when this value is dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs work that may wait for the recorder or the ring on a blocking thread. The work keeps the
/// permit of its request, even if the client disconnects.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = PERMIT.try_with(Arc::clone).ok();
    let work = move || {
        let _permit = permit;
        work()
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Problem::bug(
            "a thread of the recorder's API failed: please report this bug with what it printed",
        ))
    })
}

/// Like [`run_blocking`]. The blocking thread also makes the text of the answer, which takes
/// milliseconds for a long list.
pub(crate) async fn answer_blocking<T: IntoResponse>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    run_blocking(move || work().map(IntoResponse::into_response)).await
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread::yield_now};

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn work_keeps_its_place_after_the_client_has_left() {
        let (limit, caller) = (ConcurrencyLimit::requests(), Caller::of_peer(0, 1));
        let permit = Arc::new(limit.take(&caller).unwrap());
        let others: Vec<_> = std::iter::from_fn(|| limit.take(&caller).ok()).collect();
        let runtime = Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.unwrap();
        // Declared after the runtime: if an assertion fails, `release` is dropped first and ends
        // the work, for which the runtime's drop waits.
        let (release, released) = channel::<()>();
        let work = run_blocking(move || {
            let _ = released.recv();
            Ok(())
        });
        let mut work = Box::pin(PERMIT.scope(permit, work));
        runtime.block_on(poll_fn(|context| {
            assert!(work.as_mut().poll(context).is_pending());
            Poll::Ready(())
        }));
        drop(work);
        assert!(limit.take(&caller).is_err(), "the work goes on");
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(30);
        while limit.take(&caller).is_err() {
            assert!(Instant::now() < deadline);
            yield_now();
        }
        drop(others);
    }
}
