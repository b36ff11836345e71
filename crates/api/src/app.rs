//! What all requests share.

use std::sync::{Arc, atomic::AtomicBool};

use retroscope_recorder::Handle;

use crate::{
    Services,
    keys::Keys,
    problem::Problem,
    queries::{Places, Queries},
    token::Tokens,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) handle: Handle,
    /// What sources that wait in a read look at: set before the recorder is stopped.
    pub(crate) stop: Arc<AtomicBool>,
    /// `None`: nothing is listened at but unix sockets.
    pub(crate) tokens: Option<Tokens>,
    /// Names, in lower case, by which the API may be asked for beside addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Queries that go on with what comes, …
    pub(crate) following: Arc<Places>,
    /// … those that do not, …
    pub(crate) running: Arc<Places>,
    /// … and what became of the last ones.
    pub(crate) queries: Arc<Queries>,
    pub(crate) listeners: Arc<Places>,
    pub(crate) services: Services,
    pub(crate) keys: Keys,
}

/// Runs what may wait for the recorder, or for the ring, on a thread that may wait.
pub(crate) async fn waiting<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Problem::bug(
            "a thread of the recorder's API failed: please report this bug with what it printed",
        ))
    })
}
