//! The threads of the API, which wait for clients and for answers of the recorder.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::AtomicBool,
        mpsc::{RecvTimeoutError, SyncSender, sync_channel},
    },
    thread::Builder,
    time::{Duration, Instant},
};

use axum::Router;
use retroscope_recorder::{RecorderHandle, Refusal};
use retroscope_unix::{Peer, SocketFile, uid_of};
use rustix::process::setpriority_process;
use tokio::{
    net::{TcpListener, UnixListener},
    runtime::{Builder as RuntimeBuilder, Runtime},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::Error as TlsError};

use crate::{
    Services,
    app::App,
    connection::{CONNECTIONS_MAX, ConnectionLimit, MinRateStream, serve, unless_evicted},
    guard::Transport,
    keys::IdempotencyKeys,
    listen::{BoundApi, Listener},
    operations,
    problem::Problem,
    queries::ConcurrencyLimit,
    refusals::Refusals,
    sessions::Sessions,
    tls::Tls,
};

/// Number of threads that serve connections.
const THREADS: usize = 2;
/// Maximum number of blocking threads, for calls of the recorder, reads of the ring, and answers.
const WORKERS_MAX: usize = 64;
/// Niceness (nice(2)) of the API's threads: other threads have priority if CPU time is short.
const NICE: i32 = 5;
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// At the end: time for clients to read what they requested.
const LAST_NEWS_WAIT: Duration = Duration::from_secs(3);
/// At the end: time for clients to read the verdicts of cancelled queries.
const VERDICT_WAIT: Duration = Duration::from_secs(5);
/// At the end: interval at which the server checks whether it must hurry.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Interval at which the API checks its files for changes and reports refusals.
const REFRESH_EVERY: Duration = Duration::from_secs(1);

/// A running API. It ends with [`Self::end`] or when dropped.
#[derive(Debug)]
pub struct Server {
    /// `None` only while the server is dropped.
    runtime: Option<Runtime>,
    closing: watch::Sender<bool>,
    /// Request that the tokens or the TLS files are read again.
    refresh: Vec<SyncSender<()>>,
    app: Arc<App>,
    seats: Vec<Arc<ConnectionLimit>>,
    /// The sockets' files, removed on drop.
    _files: Vec<SocketFile>,
}

impl Server {
    /// Starts the API. The threads of the API descend from a thread that calls `give_up` to drop
    /// its privileges.
    ///
    /// # Errors
    ///
    /// The system refused a thread or a socket, or `give_up` failed.
    pub fn start(
        bound: BoundApi,
        handle: RecorderHandle,
        stop: Arc<AtomicBool>,
        services: Services,
        give_up: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> io::Result<Self> {
        let say = bound.say.clone();
        // A thread inherits its privileges from its creator, so no thread of the runtime has
        // privileges.
        let thread = Builder::new().name("api-start".to_owned());
        let made = thread.spawn(move || {
            give_up().map_err(io::Error::other)?;
            RuntimeBuilder::new_multi_thread()
                .worker_threads(THREADS)
                .max_blocking_threads(WORKERS_MAX)
                .thread_name("api")
                .on_thread_start(|| {
                    // If the system does not permit the niceness, the thread keeps its normal
                    // priority.
                    let _ = setpriority_process(None, NICE);
                })
                .enable_all()
                .build()
        })?;
        let made = made.join();
        let runtime = made.unwrap_or_else(|_| Err(io::Error::other("a thread failed")));
        let runtime =
            runtime.inspect_err(|error| (say.0)(&format!("--api: {error}: nobody is let in")))?;
        let (closing, closed) = watch::channel(false);
        let app = App {
            handle,
            stop,
            tokens: bound.tokens,
            tls: bound.tls,
            hosts: bound.hosts,
            has_page: bound.page.is_some(),
            page_url: bound.page_url,
            sessions: Sessions::new(bound.page),
            follow_limit: ConcurrencyLimit::followers(),
            query_limit: ConcurrencyLimit::queries(),
            queries: Arc::default(),
            listener_limit: ConcurrencyLimit::listeners(),
            request_limit: ConcurrencyLimit::requests(),
            trigger_limit: ConcurrencyLimit::triggers(),
            peaks_limit: ConcurrencyLimit::peaks(),
            dissection_limit: ConcurrencyLimit::dissections(),
            services,
            keys: IdempotencyKeys::default(),
            refusals: Refusals::default(),
            counts: Arc::default(),
        };
        let app = Arc::new(app);
        let (mut seats, mut files) = (Vec::new(), Vec::new());
        let refresh = follow_files(&runtime, &app)?;
        let inside = runtime.enter();
        for (listener, part) in bound.listeners {
            let room = ConnectionLimit::new(CONNECTIONS_MAX, Arc::clone(&app.counts));
            seats.push(Arc::clone(&room));
            let serving = Serving {
                app: Arc::clone(&app),
                seats: room,
                router: operations::router(&app, part),
                closing: closed.clone(),
            };
            match listener {
                Listener::Tcp(listener, tls) => {
                    let listener = TcpListener::from_std(listener)?;
                    runtime.spawn(serving.tcp(listener, tls));
                }
                Listener::Unix(listener, file) => {
                    let group = file.group();
                    files.push(file);
                    let listener = UnixListener::from_std(listener)?;
                    runtime.spawn(serving.unix(listener, group));
                }
            }
        }
        runtime.spawn(report_refusals(Arc::downgrade(&app)));
        drop(inside);
        Ok(Self {
            runtime: Some(runtime),
            closing,
            refresh,
            app,
            seats,
            _files: files,
        })
    }

    /// Requests that the files of tokens and TLS are read again. An event reports the result.
    /// Returns false if the API has no such file.
    pub fn refresh(&self) -> bool {
        for ask in &self.refresh {
            // If the queue is full, the file is read again in any case.
            let _ = ask.try_send(());
        }
        !self.refresh.is_empty()
    }

    /// Ends the API after the recording. Clients have 3 s to read what they requested. Queries that
    /// are not complete then are cancelled, and clients have 5 s more to read the verdicts. If
    /// `is_hurried` returns true, the wait ends within 100 ms.
    pub fn end(self, is_hurried: impl Fn() -> bool) {
        self.closing.send_replace(true);
        if !self.is_empty_within(LAST_NEWS_WAIT, &is_hurried) {
            self.app.queries.cancel_all();
            self.is_empty_within(VERDICT_WAIT, &is_hurried);
        }
    }

    fn is_empty_within(&self, wait: Duration, is_hurried: impl Fn() -> bool) -> bool {
        let deadline = Instant::now() + wait;
        while Instant::now() < deadline && !is_hurried() {
            let look = deadline.min(Instant::now() + LOOK_EVERY);
            let mut seats = self.seats.iter();
            if seats.all(|seats| seats.is_empty_until(look)) {
                return true;
            }
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Do not wait for threads that read the ring for a client.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Follows the token file on one thread, and the TLS files on another thread, so that a read that
/// hangs delays only its own thread.
fn follow_files(runtime: &Runtime, app: &Arc<App>) -> io::Result<Vec<SyncSender<()>>> {
    type Refresh = fn(&App, bool) -> Option<String>;
    let tokens: Refresh = |app, is_asked| {
        let notice = app.tokens.as_ref()?.refresh(is_asked);
        app.end_sessions_of_lost_tokens();
        notice
    };
    let tls: Refresh = |app, is_asked| app.tls.as_ref()?.refresh(is_asked);
    let files = [(app.tokens.is_some(), tokens), (app.tls.is_some(), tls)];
    let files = files.into_iter().filter(|(is_there, _)| *is_there);
    files
        .map(|(_, refresh)| {
            let app = Arc::clone(app);
            follow(runtime, move |is_asked| {
                if let Some(notice) = refresh(&app, is_asked) {
                    app.handle.tell_notice(notice);
                }
            })
        })
        .collect()
}

/// Starts a thread that calls `refresh` every [`REFRESH_EVERY`], and when a message arrives from
/// the returned sender. The thread is separate, so that clients who keep all workers busy cannot
/// delay the revocation of their token.
fn follow(
    runtime: &Runtime,
    refresh: impl Fn(bool) + Send + 'static,
) -> io::Result<SyncSender<()>> {
    let (ask, asked) = sync_channel(1);
    let work = move || {
        loop {
            let is_asked = match asked.recv_timeout(REFRESH_EVERY) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // After a panic the next call tries again.
            let _ = catch_unwind(AssertUnwindSafe(|| refresh(is_asked)));
        }
    };
    // The threads of the runtime have no privileges, and a thread inherits that from its creator.
    let start = async { Builder::new().name("api-files".to_owned()).spawn(work) };
    let started = runtime.block_on(runtime.spawn(start));
    started.map_err(io::Error::other)??;
    Ok(ask)
}

async fn report_refusals(app: Weak<App>) {
    loop {
        sleep(REFRESH_EVERY).await;
        match app.upgrade() {
            Some(app) => app.report_refusals(),
            None => return,
        }
    }
}

struct Serving {
    app: Arc<App>,
    seats: Arc<ConnectionLimit>,
    router: Router,
    closing: watch::Receiver<bool>,
}

impl Serving {
    async fn tcp(self, listener: TcpListener, tls: Option<Arc<Tls>>) {
        loop {
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    wait_after(&error).await;
                    continue;
                }
            };
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            // Disable Nagle's algorithm: many answers are small. An error only costs latency.
            let _ = stream.set_nodelay(true);
            let Some((seat, evicted)) = self.seats.take() else {
                if tls.is_none() {
                    let _ = stream.try_write(no_room().as_bytes());
                }
                continue;
            };
            let permit = (Arc::new(seat), evicted);
            let (router, closing) = (self.router.clone(), self.closing.clone());
            let is_tls = tls.is_some();
            let transport = Transport::Tcp { is_tls, address };
            match tls.as_ref().map(|tls| TlsAcceptor::from(tls.config())) {
                None => {
                    tokio::spawn(serve(
                        MinRateStream::new(stream),
                        permit,
                        transport,
                        router,
                        closing,
                    ));
                }
                Some(acceptor) => {
                    let app = Arc::clone(&self.app);
                    tokio::spawn(async move {
                        let (seat, mut evicted) = permit;
                        let handshake = acceptor.accept(MinRateStream::new(stream));
                        let shaken = timeout(HANDSHAKE_WAIT, handshake);
                        match unless_evicted(shaken, &mut evicted).await {
                            Some(Ok(Ok(stream))) => {
                                serve(stream, (seat, evicted), transport, router, closing).await;
                            }
                            Some(Ok(Err(error))) => {
                                if let Some(why) = refused_certificate(&error) {
                                    app.refuse(Refusal::new(None, Some(address.ip()), None, &why));
                                }
                            }
                            // The handshake timed out, or the connection was evicted.
                            _ => {}
                        }
                    });
                }
            }
        }
    }

    async fn unix(self, listener: UnixListener, group: u32) {
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    wait_after(&error).await;
                    continue;
                }
            };
            let Some((seat, evicted)) = self.seats.take() else {
                let _ = stream.try_write(no_room().as_bytes());
                continue;
            };
            let permit = (Arc::new(seat), evicted);
            let transport = Transport::Unix {
                peer: Peer::of(&stream, group),
                uid: uid_of(&stream),
            };
            let (router, closing) = (self.router.clone(), self.closing.clone());
            tokio::spawn(serve(
                MinRateStream::new(stream),
                permit,
                transport,
                router,
                closing,
            ));
        }
    }
}

/// Why a client's certificate was refused. `None`: the handshake failed for another reason.
fn refused_certificate(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<TlsError>()?;
    let is_refused = matches!(
        error,
        TlsError::NoCertificatesPresented | TlsError::InvalidCertificate(_)
    );
    is_refused.then(|| format!("TLS: {error}"))
}

async fn wait_after(error: &io::Error) {
    // A client that disconnected before it was accepted is no reason to wait.
    if error.kind() != ErrorKind::ConnectionAborted {
        sleep(ACCEPT_RETRY).await;
    }
}

/// The answer to a client without TLS if all connections are busy.
fn no_room() -> String {
    let why = format!("{CONNECTIONS_MAX} connections are busy, which is the limit: try again");
    let body = Problem::busy(why, Duration::from_secs(1)).text();
    let length = body.len();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn files_are_followed_while_all_workers_are_busy() {
        let runtime = RuntimeBuilder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let (release, released) = channel::<()>();
        runtime.spawn_blocking(move || released.recv());
        let (tell, told) = channel();
        let ask = follow(&runtime, move |is_asked| _ = tell.send(is_asked)).unwrap();
        let wait = Duration::from_secs(30);
        assert!(!told.recv_timeout(wait).unwrap());
        ask.send(()).unwrap();
        while !told.recv_timeout(wait).unwrap() {}
        drop(ask);
        while told.recv_timeout(wait) != Err(RecvTimeoutError::Disconnected) {}
        drop(release);
    }
}
