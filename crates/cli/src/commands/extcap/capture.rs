//! Packets into the pipe that Wireshark made, until it has enough.
//!
//! What Wireshark reads on stderr it shows as an error: nothing is said about packets that are all
//! there. It stops by closing the pipe, and by SIGTERM behind that. One thread asks and writes,
//! others wait for signals, for the end of who reads and for that of Wireshark, and the main thread
//! ends the program, whatever the recorder and the pipe are waiting for then.

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

/// How long a recorder may take to end an answer with its verdict once a signal came.
const STOP_WAIT: Duration = Duration::from_millis(800);
/// How long Wireshark may take to open its end of the pipe, and …
const OPEN_WAIT: Duration = Duration::from_secs(30);
/// … where there is nothing to write.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// What happens.
enum News {
    Opening,
    Opened,
    Signal,
    /// Who reads, or who started us.
    Gone,
    Done(Result<QueryOutcome, Failure>),
}

/// Asks, and writes the packets into `pipe`.
pub(super) fn run(query: Query, pipe: &Path) -> Result<ExitCode, Failure> {
    let (tell, news) = channel();
    tell_signals(tell.clone())?;
    // Of a Wireshark that was killed dumpcap is left, which reads on while nothing comes. But
    // nobody reads stderr any more then, however early that was, …
    tell_of(io::stderr(), PollFlags::empty(), tell.clone());
    // … where it is a pipe, and no other process was given its other end. Who started us may be
    // gone already, and this be who took us in: it stays.
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
            // Who asked has enough.
            Ok(News::Signal | News::Gone) => return Ok(ExitCode::SUCCESS),
            Err(_) if cancel.is_cancelled() => return Ok(ExitCode::SUCCESS),
            Err(_) => return Err(Failure::failed("nobody reads the pipe of --fifo")),
        }
    }
}

/// Has Wireshark find the end of a pipe that was never written: without, it waits for a first byte.
pub(super) fn release_unused(pipe: &Path) {
    let (tell, news) = channel();
    release(pipe, tell, &news);
}

fn release(pipe: &Path, tell: Sender<News>, news: &Receiver<News>) {
    let pipe = pipe.to_owned();
    thread::spawn(move || {
        // It may have been removed: then nobody waits.
        let _ = File::options().write(true).open(pipe);
        let _ = tell.send(News::Opened);
    });
    // A signal ends it too.
    let _ = news.recv_timeout(RELEASE_WAIT);
}

/// Tells that Wireshark has gone, once something becomes of a descriptor. Errors are always waited
/// for: of a pipe that is written, that nobody reads it.
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

/// Opens the pipe, which is there: one that Wireshark removed is not made anew.
fn open(target: &OutputTarget, tell: &Sender<News>) -> Result<File, Failure> {
    let failed = |error| Failure::failed(format_args!("cannot write {target}: {error}"));
    // Who does not listen any more has ended the program.
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

/// Says what is missing, and gives the exit code.
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
