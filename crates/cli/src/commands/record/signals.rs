//! Signals: USR1 triggers, USR2 prints statistics, INT, TERM and HUP stop, a second one stops now.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::Builder,
};

use retroscope_recorder::Handle;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals as Incoming,
    low_level::emulate_default_handler,
};

use crate::privileges::Privileges;

/// Signals on their way to a recorder. The flags carry no data; SeqCst, because they are rare.
#[derive(Debug)]
pub(crate) struct Signals {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    handle: OnceLock<Handle>,
    /// For sources that wait in a read.
    stop: Arc<AtomicBool>,
    statistics: AtomicBool,
    aborted: AtomicBool,
}

impl Signals {
    /// Takes over the signals. Until a recorder is connected, those that stop do what they always do, and the others
    /// nothing. The thread that waits for them has no privileges.
    ///
    /// # Errors
    /// What the system said about the handlers or the thread.
    pub(crate) fn install(privileges: Privileges) -> io::Result<Self> {
        let mut incoming = Incoming::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2])?;
        let shared = Arc::new(Shared::default());
        let signals = Self {
            shared: Arc::clone(&shared),
        };
        // The thread ends with the process.
        Builder::new().name("signals".to_owned()).spawn(move || {
            // Who cannot give them up is told by the thread that opens the sources.
            let _ = privileges.give_up_all();
            let mut stops = 0;
            for signal in &mut incoming {
                match (signal, shared.handle.get()) {
                    (SIGUSR1, Some(handle)) => handle.trigger(),
                    (SIGUSR2, Some(_)) => shared.statistics.store(true, Ordering::SeqCst),
                    (SIGUSR1 | SIGUSR2, None) => {}
                    (signal, None) => _ = emulate_default_handler(signal),
                    (_, Some(handle)) => {
                        stops += 1;
                        shared.stop.store(true, Ordering::SeqCst);
                        if stops == 1 {
                            handle.stop();
                        } else {
                            shared.aborted.store(true, Ordering::SeqCst);
                            handle.abort();
                        }
                    }
                }
            }
        })?;
        Ok(signals)
    }

    /// From now on the signals go to this recorder.
    pub(crate) fn connect(&self, handle: Handle) {
        // A second recorder in one process does not exist.
        let _ = self.shared.handle.set(handle);
    }

    /// Set once the recording is to stop.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.stop)
    }

    /// Whether USR2 came since the last call.
    pub(crate) fn take_statistics(&self) -> bool {
        self.shared.statistics.swap(false, Ordering::SeqCst)
    }

    /// Whether a second signal ended everything at once.
    pub(crate) fn aborted(&self) -> bool {
        self.shared.aborted.load(Ordering::SeqCst)
    }
}
