//! The threads that take alerts while packets are recorded.

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

/// Lines understood, or files looked at, between two looks at the other.
const TURN_LINES: usize = 1024;
/// How often files are read.
const FILES_EVERY: Duration = Duration::from_millis(20);
/// Between two tries to give alerts to an analyzer that has many to do.
const AGAIN: Duration = Duration::from_millis(1);

/// What is bound before privileges are given up.
#[derive(Debug, Default)]
pub(crate) struct BoundAlerts {
    sockets: Sockets,
    follower: Option<Follower>,
}

impl BoundAlerts {
    /// Opens the sockets, for `owner` and his group, and the files.
    ///
    /// # Errors
    /// A sentence: a socket is in use, or the system's word.
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

/// See the module.
#[derive(Debug)]
pub(crate) struct AlertThreads {
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    waker: Arc<OwnedFd>,
}

impl AlertThreads {
    /// # Errors
    /// What the system said about a thread.
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

    /// Ends them: what was not acted on is given up.
    pub(crate) fn end(self) {
        // Relaxed: nothing is handed over with it.
        self.stop.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&*self.waker, &1_u64.to_ne_bytes());
        for thread in self.threads {
            // It told its panic itself.
            let _ = thread.join();
        }
    }
}

/// Understands lines, and hands on what is an alert.
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
            // What is there already, and no more, so that one alert does not wait for another.
            wait = Duration::ZERO;
        }
        handle.count_alert_lines(&counts);
        if !hand_on(alerts, handle, stop) {
            return;
        }
    }
}

/// False: the recording has ended.
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
