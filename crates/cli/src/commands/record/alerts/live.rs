//! The threads that receive alerts during a recording.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::RecvTimeoutError,
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use retroscope_recorder::{Alert, AlertLines, CommandError, RecorderHandle};
use retroscope_unix::Owner;

use super::{
    AlertSource, count,
    follow::Follower,
    line_queue::{LineReceiver, line_queue},
    socket::{Sockets, drain, waker},
};
use crate::commands::record::config::Alerts;

/// Maximum number of queued lines that are parsed between two reads of the files.
const TURN_LINES: usize = 1024;
/// Maximum wait for a line from a socket before the files are read again.
const FILES_EVERY: Duration = Duration::from_millis(20);
/// Interval between two attempts to pass alerts to a busy analyzer.
const AGAIN: Duration = Duration::from_millis(1);

/// Sockets and files that are opened before privileges are dropped.
#[derive(Debug, Default)]
pub(crate) struct BoundAlerts {
    sockets: Sockets,
    follower: Option<Follower>,
}

impl BoundAlerts {
    /// Opens the files, and binds the sockets, to which `owner` and the owner's group may write.
    ///
    /// # Errors
    /// A message, for example: a socket is in use, or another file has the name of a socket.
    pub(crate) fn new(args: &Alerts, owner: Owner) -> Result<Self, String> {
        let mut bound = Self::default();
        let mut patterns = Vec::new();
        for source in args.from.values() {
            let (path, is_stream) = match source {
                AlertSource::Stream(path) => (path, true),
                AlertSource::Datagrams(path) => (path, false),
                AlertSource::Files(pattern) => {
                    patterns.push(pattern.clone());
                    continue;
                }
            };
            let bind = bound.sockets.bind(path, is_stream, owner);
            bind.map_err(|why| format!("--alerts: {why}"))?;
        }
        bound.follower = Some(Follower::new(patterns, Instant::now()));
        Ok(bound)
    }
}

/// Handle of the threads that receive alerts.
#[derive(Debug)]
pub(crate) struct AlertThreads {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Arc<OwnedFd>,
}

impl AlertThreads {
    /// # Errors
    /// The system's error about a thread or about the event that ends a thread.
    pub(crate) fn start(bound: BoundAlerts, handle: RecorderHandle) -> io::Result<Self> {
        let (lines_tx, lines) = line_queue();
        let (stop, waker) = (Arc::new(AtomicBool::new(false)), waker()?);
        let mut threads = Vec::new();
        let BoundAlerts { sockets, follower } = bound;
        if !sockets.is_empty() {
            let (handle, waker) = (handle.clone(), Arc::clone(&waker));
            let thread = Builder::new().name("alert-sockets".to_owned());
            threads.push(thread.spawn(move || drain(&sockets, &waker, &lines_tx, &handle))?);
        }
        let follower = follower.filter(|it| !it.is_empty());
        let is_over = Arc::clone(&stop);
        let thread = Builder::new().name("alert-reader".to_owned());
        threads.push(thread.spawn(move || read(&lines, follower, &handle, &is_over))?);
        Ok(Self {
            threads,
            stop,
            waker,
        })
    }

    /// Ends the threads. Pending alerts are dropped.
    pub(crate) fn end(self) {
        // Relaxed: the flag guards no data.
        self.stop.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&*self.waker, &1_u64.to_ne_bytes());
        for thread in self.threads {
            // A panic has printed its own message.
            let _ = thread.join();
        }
    }
}

/// Parses lines and passes alerts to the recorder.
fn read(
    lines: &LineReceiver,
    mut follower: Option<Follower>,
    handle: &RecorderHandle,
    stop: &AtomicBool,
) {
    let mut buffer = vec![0; 64 << 10];
    let mut is_open = true;
    while !stop.load(Ordering::Relaxed) {
        let (mut counts, mut alerts) = (AlertLines::default(), Vec::new());
        let mut is_more = false;
        if let Some(follower) = &mut follower {
            is_more = follower.read(Instant::now(), &mut buffer, &mut counts, |line, counts| {
                alerts.extend(count(counts, line));
            });
        }
        let mut wait = if is_more { Duration::ZERO } else { FILES_EVERY };
        for _ in 0..TURN_LINES {
            if !is_open {
                std::thread::park_timeout(wait);
                break;
            }
            match lines.receive(wait) {
                Ok(line) => alerts.extend(count(&mut counts, &line)),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => is_open = false,
            }
            // Collect only lines that already wait, so that no alert waits for a later alert.
            wait = Duration::ZERO;
        }
        handle.count_alert_lines(&counts);
        if !hand_on(alerts, handle, stop) {
            return;
        }
    }
}

/// Passes alerts to the analyzer. Returns `false` if the recorder takes no alerts any more.
fn hand_on(mut alerts: Vec<Arc<Alert>>, handle: &RecorderHandle, stop: &AtomicBool) -> bool {
    while !alerts.is_empty() && !stop.load(Ordering::Relaxed) {
        match handle.alerts(alerts.clone()) {
            Ok(()) => alerts.clear(),
            Err(CommandError::Busy) => std::thread::park_timeout(AGAIN),
            Err(_) => return false,
        }
    }
    true
}
