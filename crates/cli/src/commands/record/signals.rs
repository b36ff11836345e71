//! Signals: USR1 triggers, USR2 prints statistics, INT and TERM stop, a second one stops now. HUP
//! stops where there is a terminal that may hang up; a service it asks to open its event file anew
//! and to read its configuration again.

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
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals as Incoming,
    low_level::emulate_default_handler,
};

use crate::privileges::Privileges;

/// Signals on their way to a recorder. The flags carry no data; SeqCst, because they are rare.
#[derive(Debug)]
pub(crate) struct Signals {
    shared: Arc<SignalState>,
}

#[derive(Debug, Default)]
struct SignalState {
    phase: Mutex<Phase>,
    /// The flag that sources look at while they wait in a read.
    stop: Arc<AtomicBool>,
    statistics: AtomicBool,
    /// HUP came, and is no wish to stop.
    reload: AtomicBool,
    aborted: AtomicBool,
    hangup: Hangup,
}

/// What SIGHUP means. Decided at the start: a terminal that has hung up is none any more.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Hangup {
    /// Whoever started the program does not want it to end by that, as nohup(1) does: the signal
    /// stays ignored.
    #[default]
    Ignored,
    /// There is a terminal: the end.
    Stop,
    /// A service: to read the configuration again.
    Reload,
}

impl Hangup {
    fn of_this_process() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if is_ignored(SIGHUP, &status) {
            Self::Ignored
        } else if io::stdin().is_terminal() || io::stderr().is_terminal() {
            Self::Stop
        } else {
            Self::Reload
        }
    }
}

/// Whether a process ignores a signal, by its `/proc/PID/status`: proc_pid_status(5).
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// How far the program is, and so what a signal means.
#[derive(Debug, Default)]
enum Phase {
    /// Sources are being opened: signals that stop do what they always do, and the others nothing.
    #[default]
    Opening,
    /// A recorder is about to start: until then signals are kept, in their order.
    Starting(Vec<i32>),
    /// A recorder runs: signals go to it.
    Running(ActiveRecording),
}

#[derive(Debug)]
struct ActiveRecording {
    handle: RecorderHandle,
    /// Whether USR1 triggers: there is where to dump to.
    dumps: bool,
    /// Signals to stop so far.
    stops: u32,
}

impl Signals {
    /// Takes over the signals. Until a recorder is about to start ([`Self::hold`]), those that stop
    /// do what they always do, and the others nothing. The thread that waits for them has no
    /// privileges any more when this returns.
    ///
    /// # Errors
    /// What the system said about the handlers or the thread.
    pub(crate) fn install(privileges: Privileges) -> io::Result<Self> {
        let hangup = Hangup::of_this_process();
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
            // Who cannot give them up is told by the thread that opens the sources.
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
        // Nothing is ever sent: it returns when the sender is dropped.
        let _ = given_up.recv();
        Ok(signals)
    }

    /// A recorder is about to start its threads: from now on a signal to stop must not leave half a
    /// dump behind. Those that come wait for [`Self::connect`].
    pub(crate) fn hold(&self) {
        *self.shared.phase() = Phase::Starting(Vec::new());
    }

    /// From now on the signals go to this recorder, the ones that were kept first.
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

    /// Set once the recording is to stop.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.stop)
    }

    /// Whether USR2 came since the last call.
    pub(crate) fn take_statistics(&self) -> bool {
        self.shared.statistics.swap(false, Ordering::SeqCst)
    }

    /// Whether a service was asked to read its configuration again since the last call.
    pub(crate) fn take_reload(&self) -> bool {
        self.shared.reload.swap(false, Ordering::SeqCst)
    }

    /// Whether a second signal ended everything at once.
    pub(crate) fn aborted(&self) -> bool {
        self.shared.aborted.load(Ordering::SeqCst)
    }
}

impl SignalState {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a signal is a wish to stop.
    fn stops(&self, signal: i32) -> bool {
        match signal {
            SIGUSR1 | SIGUSR2 => false,
            SIGHUP => self.hangup == Hangup::Stop,
            _ => true,
        }
    }

    /// Passes a signal on.
    fn tell(&self, recording: &mut ActiveRecording, signal: i32) {
        let handle = &recording.handle;
        match signal {
            // One that finds no room is one of dozens that wait.
            SIGUSR1 if !recording.dumps => {}
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
