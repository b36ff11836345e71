//! `--control PATH`: a unix socket on which other programs control the recording, in lines of JSON.
//!
//! The socket is made before privileges are given up, and served when the recorder runs, by threads of their own: one that
//! accepts, and one for each client, which waits for nobody but its client and the recorder's answer. What clients may cost is
//! bounded: their number, the length of a line, the time that one may be silent or not read. They are people and programs of this
//! user, of root, or of the socket's group, and nobody else's.

mod answer;

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    thread::Builder,
    time::Duration,
};

use retroscope_api::{Peer, Socket, SocketFile};
use retroscope_recorder::Handle;
use serde_json::{Value, json};

use super::config::Reloader;
use crate::{failure::say, privileges::Privileges};

/// Clients at once.
const CLIENTS_MAX: usize = 64;
/// Queries at once.
const QUERIES_MAX: usize = 4;
/// Bytes of a request.
const LINE_BYTES_MAX: usize = 64 << 10;
/// How long a client may say nothing.
const CLIENT_SILENCE: Duration = Duration::from_secs(300);
/// How long a client may not read what it is told.
const CLIENT_READ_WAIT: Duration = Duration::from_secs(10);
/// How long the end waits for clients to be told the last news.
const LAST_NEWS_WAIT: Duration = Duration::from_secs(1);
/// How long nobody is let in after the system refused to.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The threads that serve a socket. They end with the process.
#[derive(Debug)]
pub(crate) struct Server {
    _file: SocketFile,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    handle: Handle,
    /// Reads the file of --config again, where there is one.
    reloader: Option<Arc<Reloader>>,
    /// See [`Signals::stop_flag`](super::signals::Signals::stop_flag).
    stop: Arc<AtomicBool>,
    clients: Mutex<Clients>,
    /// A client is no longer busy.
    idle: Condvar,
}

#[derive(Debug, Default)]
struct Clients {
    connected: usize,
    /// Of these, those that are being answered.
    busy: usize,
    /// Of these, those whose answers are packets.
    queries: usize,
}

impl Server {
    /// Serves the socket from now on. Its threads have no privileges.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(
        socket: Socket,
        handle: Handle,
        stop: Arc<AtomicBool>,
        reloader: Option<Arc<Reloader>>,
    ) -> io::Result<Self> {
        let Socket { file, listener } = socket;
        let group = file.group();
        let shared = Arc::new(Shared {
            handle,
            reloader,
            stop,
            clients: Mutex::default(),
            idle: Condvar::new(),
        });
        let server = Self {
            _file: file,
            shared: Arc::clone(&shared),
        };
        Builder::new().name("control".to_owned()).spawn(move || {
            let given_up = Privileges::give_up_rest();
            listen(listener, given_up, |stream| admit(stream, group, &shared));
        })?;
        Ok(server)
    }

    /// The recording has ended: clients that are being told something are waited for, for a moment.
    pub(crate) fn end(self) {
        let clients = self.shared.clients();
        let is_busy = |clients: &mut Clients| clients.busy > 0;
        let waited = self
            .shared
            .idle
            .wait_timeout_while(clients, LAST_NEWS_WAIT, is_busy);
        drop(waited);
    }
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets clients in for ever; none where privileges could not be given up, and then nobody waits for an answer.
fn listen(listener: UnixListener, given_up: anyhow::Result<()>, mut admit: impl FnMut(UnixStream)) {
    if let Err(error) = given_up {
        drop(listener);
        return say(&format!("--control: {error}: no client is let in"));
    }
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => admit(stream),
            Err(_) => std::thread::park_timeout(ACCEPT_RETRY),
        }
    }
}

/// Serves a client in a thread of its own, or says why not.
fn admit(stream: UnixStream, group: u32, shared: &Arc<Shared>) {
    let refuse = |mut stream: UnixStream, why: &str| {
        // One that does not read is not waited for.
        let _ = stream.set_nonblocking(true);
        let _ = stream.write_all(line(&refusal(why)).as_bytes());
    };
    if Peer::of(&stream, group).is_none() {
        return refuse(
            stream,
            "only this user, root and the socket's group may control the recording",
        );
    }
    {
        let mut clients = shared.clients();
        if clients.connected >= CLIENTS_MAX {
            drop(clients);
            return refuse(stream, "too many clients: try again");
        }
        clients.connected += 1;
    }
    let connected = Connected(Arc::clone(shared));
    // If there is no thread, the client is gone with the closure.
    let _ = Builder::new()
        .name("control-client".to_owned())
        .spawn(move || {
            // An error is the end of the client.
            let _ = serve(&stream, &connected.0);
        });
}

/// A client that counts as connected.
#[derive(Debug)]
struct Connected(Arc<Shared>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.clients().connected -= 1;
    }
}

/// A client that counts as busy, perhaps with a query.
#[derive(Debug)]
struct Busy<'a>(&'a Shared, bool);

impl<'a> Busy<'a> {
    /// `None`: too many queries run.
    fn new(shared: &'a Shared, is_query: bool) -> Option<Self> {
        let mut clients = shared.clients();
        if is_query && clients.queries >= QUERIES_MAX {
            return None;
        }
        clients.busy += 1;
        clients.queries += usize::from(is_query);
        Some(Self(shared, is_query))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut clients = self.0.clients();
        clients.busy -= 1;
        clients.queries -= usize::from(self.1);
        self.0.idle.notify_all();
    }
}

/// Answers a client's requests until it leaves, errs too much, or is silent for too long.
fn serve(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_SILENCE))?;
    stream.set_write_timeout(Some(CLIENT_READ_WAIT))?;
    let mut reader = BufReader::new(stream);
    let mut request = Vec::new();
    loop {
        request.clear();
        let mut bounded = (&mut reader).take(LINE_BYTES_MAX as u64 + 1);
        bounded.read_until(b'\n', &mut request)?;
        if request.last() != Some(&b'\n') {
            if request.len() > LINE_BYTES_MAX {
                let why = format!("a request has at most {LINE_BYTES_MAX} bytes");
                write(stream, &refusal(&why))?;
            }
            return Ok(());
        }
        answer::answer(&request, &mut reader, stream, shared)?;
    }
}

/// Why a request was not carried out.
fn refusal(why: &str) -> Value {
    json!({ "ok": false, "error": why })
}

fn line(object: &Value) -> String {
    format!("{object}\n")
}

fn write(mut stream: &UnixStream, object: &Value) -> io::Result<()> {
    stream.write_all(line(object).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_keeps_privileges_listens_to_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let failed = Err(anyhow::anyhow!("it failed"));
        listen(listener, failed, |_| panic!("somebody was let in"));
        let refused = UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
