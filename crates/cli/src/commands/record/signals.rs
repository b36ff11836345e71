//! Signals: USR1 triggers, USR2 prints statistics, INT and TERM stop, and a second INT or TERM
//! stops at once. HUP stops a recorder whose stdin or stderr is a terminal. Without a terminal, HUP
//! reopens the EVE file, and reads the configuration and the files of the API again. If the parent
//! process ignores HUP, the recorder ignores HUP too.

use std::{
    fs,
    io::{self, IsTerminal},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::Builder,
};

use retroscope_recorder::RecorderHandle;
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    flag,
    iterator::Signals as Incoming,
    low_level::emulate_default_handler,
};

use crate::privileges::Privileges;

/// Forwards signals to a recorder. The flags guard no other data; SeqCst, because signals are rare.
#[derive(Debug)]
pub(crate) struct Signals {
    shared: Arc<SignalState>,
}

#[derive(Debug, Default)]
struct SignalState {
    phase: Mutex<Phase>,
    /// Stop flag that file sources check before each read, and while they wait for a pipe.
    stop: Arc<AtomicBool>,
    statistics: AtomicBool,
    /// HUP arrived and requests a reload.
    reload: AtomicBool,
    aborted: AtomicBool,
    hangup: Hangup,
}

/// Meaning of SIGHUP. The program decides this at the start, because after a hangup it cannot
/// recognize the terminal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// The parent process ignores SIGHUP, like nohup(1), so the signal stays ignored.
    #[default]
    Ignored,
    /// Stdin or stderr is a terminal: stop.
    Stop,
    /// Neither stdin nor stderr is a terminal, as in a service: reload the configuration.
    Reload,
}

impl Hangup {
    /// `status`: the content of /proc/self/status.
    fn of_this_process(status: &str) -> Self {
        if is_ignored(SIGHUP, status) {
            Self::Ignored
        } else if io::stdin().is_terminal() || io::stderr().is_terminal() {
            Self::Stop
        } else {
            Self::Reload
        }
    }
}

/// Whether a process ignores a signal, according to its `/proc/PID/status`: proc_pid_status(5).
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// State of the program, which decides what a signal does.
#[derive(Debug, Default)]
enum Phase {
    /// Sources are being opened: stop signals have their default effect, other signals no effect.
    #[default]
    Opening,
    /// A recorder is about to start: signals are queued in their order.
    Starting(Vec<i32>),
    /// A recorder runs and receives the signals.
    Running(ActiveRecording),
}

#[derive(Debug)]
struct ActiveRecording {
    handle: RecorderHandle,
    /// The recorder has a directory for dumps, so USR1 can trigger.
    dumps: bool,
    /// Number of stop signals that arrived.
    stops: u32,
}

impl Signals {
    /// Takes over the signals. Until [`Self::hold`], stop signals have their default effect and
    /// other signals have none. When `install` returns, the signal thread has dropped its
    /// privileges, or has failed to.
    ///
    /// # Errors
    /// The system's error about the handlers or the thread.
    pub(crate) fn install(privileges: Privileges) -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hangup = Hangup::of_this_process(&status);
        if is_ignored(SIGCHLD, &status) {
            // The kernel reaps the children of a process that ignores SIGCHLD, so the ends of
            // commands of --post would be unknown (wait(2)).
            flag::register(SIGCHLD, Arc::default())?;
        }
        let mut incoming = Incoming::new([SIGINT, SIGTERM, SIGUSR1, SIGUSR2])?;
        if hangup != Hangup::Ignored {
            incoming.add_signal(SIGHUP)?;
        }
        let shared = Arc::new(SignalState {
            hangup,
            ..SignalState::default()
        });
        let signals = Self {
            shared: Arc::clone(&shared),
        };
        let (giving_up, given_up) = mpsc::channel::<()>();
        // The thread ends with the process.
        Builder::new().name("signals".to_owned()).spawn(move || {
            // The thread that opens the sources drops its privileges too, and reports this error.
            let _ = privileges.give_up_all();
            drop(giving_up);
            for signal in &mut incoming {
                match &mut *shared.phase() {
                    Phase::Opening if shared.stops(signal) => {
                        _ = emulate_default_handler(signal);
                    }
                    Phase::Opening => {}
                    Phase::Starting(kept) => kept.push(signal),
                    Phase::Running(recording) => shared.tell(recording, signal),
                }
            }
        })?;
        // Nothing is sent. `recv` returns when the sender is dropped.
        let _ = given_up.recv();
        Ok(signals)
    }

    /// Queues signals until [`Self::connect`]. A recorder is about to start its threads, and a stop
    /// signal must not leave a partial dump.
    pub(crate) fn hold(&self) {
        *self.shared.phase() = Phase::Starting(Vec::new());
    }

    /// Forwards signals to this recorder, first the queued signals.
    pub(crate) fn connect(&self, handle: RecorderHandle, dumps: bool) {
        let mut phase = self.shared.phase();
        let mut recording = ActiveRecording {
            handle,
            dumps,
            stops: 0,
        };
        if let Phase::Starting(kept) = &*phase {
            for signal in kept {
                self.shared.tell(&mut recording, *signal);
            }
        }
        *phase = Phase::Running(recording);
    }

    /// Flag that a stop signal or a client's stop request sets. File sources check the flag before
    /// each read, and while they wait for a pipe.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.stop)
    }

    /// Whether USR2 arrived since the last call.
    pub(crate) fn take_statistics(&self) -> bool {
        self.shared.statistics.swap(false, Ordering::SeqCst)
    }

    /// Whether HUP requested a reload since the last call.
    pub(crate) fn take_reload(&self) -> bool {
        self.shared.reload.swap(false, Ordering::SeqCst)
    }

    /// Whether a second stop signal has arrived, which stops the recording at once.
    pub(crate) fn aborted(&self) -> bool {
        self.shared.aborted.load(Ordering::SeqCst)
    }
}

impl SignalState {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a signal requests a stop.
    fn stops(&self, signal: i32) -> bool {
        match signal {
            SIGUSR1 | SIGUSR2 => false,
            SIGHUP => self.hangup == Hangup::Stop,
            _ => true,
        }
    }

    /// Forwards a signal.
    fn tell(&self, recording: &mut ActiveRecording, signal: i32) {
        let handle = &recording.handle;
        match signal {
            SIGUSR1 if !recording.dumps => {}
            // If the queue of commands is full, the signal is lost: 64 commands already wait.
            SIGUSR1 => _ = handle.trigger_unanswered(),
            SIGUSR2 => self.statistics.store(true, Ordering::SeqCst),
            SIGHUP if !self.stops(signal) => self.reload.store(true, Ordering::SeqCst),
            _ => {
                recording.stops += 1;
                self.stop.store(true, Ordering::SeqCst);
                if recording.stops == 1 {
                    handle.stop();
                } else {
                    self.aborted.store(true, Ordering::SeqCst);
                    handle.abort();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inherited_ignore_is_seen() {
        let status = |mask| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(is_ignored(SIGHUP, &status("0000000000001001")));
        assert!(!is_ignored(SIGHUP, &status("0000000000001000")));
        assert!(is_ignored(13, &status("0000000000001000")));
        for unknown in ["", "SigIgn:", "SigIgn:\tx"] {
            assert!(!is_ignored(SIGHUP, unknown), "{unknown}");
        }
    }
}
