//! What all requests share.

use std::{
    future::pending,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use axum::response::{IntoResponse, Response};
use retroscope_recorder::{Clock, RecorderHandle, Refusal, SystemClock};
use tokio::{task::JoinHandle, task_local, time::sleep};

use crate::{
    Services,
    caller::Caller,
    keys::IdempotencyKeys,
    metrics::Requests,
    problem::Problem,
    queries::{ConcurrencyLimit, ConcurrencyPermit, Queries},
    refusals::Refusals,
    tls::Tls,
    token::Tokens,
};

/// How often it is looked whether the token still stands of who is given something that goes on.
const TOKEN_CHECK_PERIOD: Duration = Duration::from_secs(1);

task_local! {
    /// The place of the request that this task answers.
    pub(crate) static PERMIT: Arc<ConcurrencyPermit>;
}

/// See the module.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) handle: RecorderHandle,
    /// What sources that wait in a read look at: set before the recorder is stopped.
    pub(crate) stop: Arc<AtomicBool>,
    /// `None`: nothing is listened at but unix sockets.
    pub(crate) tokens: Option<Tokens>,
    /// `None`: no TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Names, in lower case, by which the API may be asked for beside addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Queries that go on with what comes, …
    pub(crate) following: Arc<ConcurrencyLimit>,
    /// … those that do not, …
    pub(crate) running: Arc<ConcurrencyLimit>,
    /// … and what became of the last ones.
    pub(crate) queries: Arc<Queries>,
    pub(crate) listeners: Arc<ConcurrencyLimit>,
    /// Requests of one account that are being answered.
    pub(crate) requests: Arc<ConcurrencyLimit>,
    /// Triggers by hand that are compiled and started.
    pub(crate) triggers: Arc<ConcurrencyLimit>,
    pub(crate) services: Services,
    pub(crate) keys: IdempotencyKeys,
    pub(crate) refusals: Refusals,
    /// What the API counts about itself, for the metrics.
    pub(crate) counts: Arc<Requests>,
}

impl App {
    /// Whether what a caller was let in by still stands as it was.
    ///
    /// # Errors
    /// A sentence, of a token that is not what it was.
    pub(crate) fn check(&self, caller: &Caller) -> Result<(), String> {
        match (&caller.token, &self.tokens) {
            (Some(token), Some(tokens)) => tokens.check(token, SystemClock.now().wall_ns),
            _ => Ok(()),
        }
    }

    /// Reports that a client was refused, as an event, within a bound.
    pub(crate) fn refuse(&self, refusal: Refusal) {
        if let Some(refusal) = self.refusals.add(refusal, Instant::now()) {
            self.handle.tell_refusal(refusal);
        }
    }

    /// Reports the sums of refusals that are due.
    pub(crate) fn report_refusals(&self) {
        let due = self.refusals.take(Instant::now()).into_iter();
        due.for_each(|refusal| self.handle.tell_refusal(refusal));
    }

    /// Waits until [`Self::check`] refuses a caller, and gives what it says.
    pub(crate) async fn revoked(&self, caller: &Caller) -> String {
        if caller.token.is_none() {
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

/// A task that ends with this.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs what may wait for the recorder, or for the ring, on a thread that may wait. The work keeps
/// the place of its request to its end, also after the client has left.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let place = PERMIT.try_with(Arc::clone).ok();
    let work = move || {
        let _place = place;
        work()
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Problem::bug(
            "a thread of the recorder's API failed: please report this bug with what it printed",
        ))
    })
}

/// As [`waiting`], and the text of the answer is made on that thread too: of a long list that takes
/// milliseconds.
pub(crate) async fn answer_blocking<T: IntoResponse>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    run_blocking(move || work().map(IntoResponse::into_response)).await
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::mpsc::channel, task::Poll, thread::yield_now};

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn work_keeps_its_place_after_the_client_has_left() {
        let (places, caller) = (ConcurrencyLimit::requests(), Caller::of_peer(0, 1));
        let place = Arc::new(places.take(&caller).unwrap());
        let others: Vec<_> = std::iter::from_fn(|| places.take(&caller).ok()).collect();
        let runtime = Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.unwrap();
        // Dropped before the runtime, which waits for its threads.
        let (release, released) = channel::<()>();
        let work = run_blocking(move || {
            let _ = released.recv();
            Ok(())
        });
        let mut work = Box::pin(PERMIT.scope(place, work));
        runtime.block_on(poll_fn(|context| {
            assert!(work.as_mut().poll(context).is_pending());
            Poll::Ready(())
        }));
        drop(work);
        assert!(places.take(&caller).is_err(), "the work goes on");
        drop(release);
        let deadline = Instant::now() + Duration::from_secs(30);
        while places.take(&caller).is_err() {
            assert!(Instant::now() < deadline);
            yield_now();
        }
        drop(others);
    }
}
