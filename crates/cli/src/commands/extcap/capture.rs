//! Copies packets into Wireshark's pipe until Wireshark stops the capture or the query ends.
//!
//! Wireshark shows every line on stderr as an error, so a complete answer prints nothing. Wireshark
//! stops a capture by closing the pipe and by SIGTERM. One thread queries the recorder and writes.
//! Other threads wait for signals, for the end of the reader, and for the end of the parent
//! process. The main thread ends the program even if the recorder or the pipe still blocks the
//! writing thread.

use std::{
    fs::File,
    io,
    os::fd::AsFd,
    path::Path,
    process::ExitCode,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use retroscope_recorder::Cancel;
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{PidfdFlags, getppid, pidfd_open},
};
use serde_json::Value;
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    commands::{
        query::{self, Args as Query, QueryOutcome},
        remote::printable,
        target::OutputTarget,
    },
    failure::{Code, Failure, say},
};

/// After a signal, time for the recorder to end the answer with its verdict.
const STOP_WAIT: Duration = Duration::from_millis(800);
/// Time for Wireshark to open its end of the pipe for a capture.
const OPEN_WAIT: Duration = Duration::from_secs(30);
/// Time for Wireshark to open its end of a pipe into which nothing is written.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// Messages of the other threads to the main thread.
enum News {
    Opening,
    Opened,
    Signal,
    /// The reader of the pipe, the reader of stderr or the parent process ended.
    Gone,
    Done(Result<QueryOutcome, Failure>),
}

/// Runs the query and writes the packets into `pipe`.
pub(super) fn run(query: Query, pipe: &Path) -> Result<ExitCode, Failure> {
    let (tell, news) = channel();
    tell_signals(tell.clone())?;
    // If Wireshark is killed, dumpcap survives and keeps the pipe open while no packet arrives. But
    // the read end of stderr closes, and poll reports the error even if that end closed earlier.
    tell_of(io::stderr(), PollFlags::empty(), tell.clone());
    // The end of the parent process covers a stderr that is no pipe, or whose read end another
    // process inherited. If the parent died before this point, getppid(2) names the process that
    // adopted this one, and watching the adopter does not help.
    let parent = getppid().and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
    if let Some(parent) = parent {
        tell_of(parent, PollFlags::IN, tell.clone());
    }
    let cancel = Cancel::default();
    let mut is_opened = false;
    thread::spawn({
        let (cancel, tell) = (cancel.clone(), tell.clone());
        move || {
            let outcome = query::ask(&query, &cancel, |target| open(target, &tell));
            let _ = tell.send(News::Done(outcome));
        }
    });
    let mut end: Option<Instant> = None;
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let next = match left {
            Some(left) => news.recv_timeout(left),
            None => news.recv().map_err(RecvTimeoutError::from),
        };
        match next {
            Ok(News::Opening) => {
                is_opened = true;
                end = end.or(Some(Instant::now() + OPEN_WAIT));
            }
            Ok(News::Opened) => end = end.filter(|_| cancel.is_cancelled()),
            Ok(News::Signal) if !cancel.is_cancelled() => {
                cancel.cancel();
                end = Some(Instant::now() + STOP_WAIT);
            }
            Ok(News::Done(Err(failure))) if !is_opened => {
                let code = failure.report();
                release(pipe, tell, &news);
                return Ok(code);
            }
            Ok(News::Done(outcome)) => return tell_outcome(outcome?),
            // Usually Wireshark has stopped the capture or has ended.
            Ok(News::Signal | News::Gone) => return Ok(ExitCode::SUCCESS),
            Err(_) if cancel.is_cancelled() => return Ok(ExitCode::SUCCESS),
            Err(_) => return Err(Failure::failed("nobody reads the pipe of --fifo")),
        }
    }
}

/// Opens and closes the write end of an unused pipe. Without this Wireshark waits for the first
/// byte.
pub(super) fn release_unused(pipe: &Path) {
    let (tell, news) = channel();
    release(pipe, tell, &news);
}

fn release(pipe: &Path, tell: Sender<News>, news: &Receiver<News>) {
    let pipe = pipe.to_owned();
    thread::spawn(move || {
        // An error usually means that Wireshark removed the pipe and does not wait.
        let _ = File::options().write(true).open(pipe);
        let _ = tell.send(News::Opened);
    });
    // Any message ends this wait, for example a signal.
    let _ = news.recv_timeout(RELEASE_WAIT);
}

/// Reports [`News::Gone`] when poll(2) reports an event. poll(2) always reports errors, also if
/// `what` is empty: for the write end of a pipe, that no reader is left.
fn tell_of(watched: impl AsFd + Send + 'static, what: PollFlags, tell: Sender<News>) {
    thread::spawn(move || {
        let mut waited = [PollFd::new(&watched, what)];
        loop {
            match poll(&mut waited, None) {
                Err(Errno::INTR) => {}
                Err(_) => return,
                Ok(_) => break,
            }
        }
        let _ = tell.send(News::Gone);
    });
}

fn tell_signals(tell: Sender<News>) -> Result<(), Failure> {
    let signals = Signals::new([SIGINT, SIGTERM]);
    let mut signals =
        signals.map_err(|error| Failure::failed(format_args!("cannot handle signals: {error}")))?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if tell.send(News::Signal).is_err() {
                break;
            }
        }
    });
    Ok(())
}

/// Opens the existing pipe. If Wireshark has removed the pipe, creates no file in its place.
fn open(target: &OutputTarget, tell: &Sender<News>) -> Result<File, Failure> {
    let failed = |error| Failure::failed(format_args!("cannot write {target}: {error}"));
    // If the receiver is gone, the program is already ending.
    let _ = tell.send(News::Opening);
    let pipe = match target {
        OutputTarget::File(path) => File::options().write(true).open(path).map_err(failed)?,
        OutputTarget::Stdout => return Err(Failure::usage("--fifo takes the name of a pipe")),
    };
    let _ = tell.send(News::Opened);
    let watched = pipe.try_clone().map_err(failed)?;
    tell_of(watched, PollFlags::empty(), tell.clone());
    Ok(pipe)
}

/// Prints what is missing and returns the exit code.
fn tell_outcome(outcome: QueryOutcome) -> Result<ExitCode, Failure> {
    let QueryOutcome::Answered(told) = outcome else {
        return Ok(ExitCode::SUCCESS);
    };
    let text = |value: &Value| value.as_str().map(printable);
    let verdict = text(&told["report"]["verdict"]).unwrap_or_else(|| "unknown".to_owned());
    if verdict == "complete" {
        return Ok(ExitCode::SUCCESS);
    }
    say(&text(&told["reasons"]).unwrap_or(verdict));
    Ok(Code::Incomplete.into())
}
