//! The time that a call into a script may take.
//!
//! A thread looks at a word a few times in that time. The word counts calls: odd while one runs. Where it is the same odd
//! number at each of some looks in a row, the call has run too long, and the script is stopped. So a call costs two stores and
//! no clock read, and a process that was itself stopped for a while (a debugger, an overloaded machine) ages a call by one
//! look only.
//!
//! Compiled code looks for hooks at the head of loops, if LuaJIT was built with `LUAJIT_ENABLE_CHECKHOOK`
//! (`.cargo/config.toml`); without that it would run for ever. [`crate::machine`] asks [`hooks_reach_compiled_code`] and has
//! scripts interpreted where it would.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use crate::sys::{self, Stopper};

/// Looks at a call within its budget. It is stopped after this many, so up to a quarter of the budget late.
const LOOKS: u32 = 4;
/// Set in the word once the call it counts is being stopped.
const STOPPED: u64 = 1 << 63;

/// See the module.
#[derive(Debug)]
pub(crate) struct ScriptWatchdog {
    watched: Arc<WatchdogState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct WatchdogState {
    /// Calls begun and ended; odd while one runs.
    calls: AtomicU64,
    /// Whether the thread shall end. Held while a script is being stopped.
    ended: Mutex<bool>,
    wake: Condvar,
    stopper: Mutex<Stopper>,
}

impl ScriptWatchdog {
    /// Watches the state that `stopper` stops.
    pub(crate) fn start(stopper: Stopper, budget: Duration) -> io::Result<Self> {
        let watched = Arc::new(WatchdogState {
            calls: AtomicU64::new(0),
            ended: Mutex::new(false),
            wake: Condvar::new(),
            stopper: Mutex::new(stopper),
        });
        let watching = Arc::clone(&watched);
        let thread = Builder::new()
            .name("script-watchdog".to_owned())
            .spawn(move || watching.watch(budget / LOOKS))?;
        Ok(Self {
            watched,
            thread: Some(thread),
        })
    }

    /// Runs a call that is stopped when it takes too long. The second value tells whether it was.
    pub(crate) fn watch<R>(&self, call: impl FnOnce() -> R) -> (R, bool) {
        // Relaxed: the word carries no data, and each change of it is seen soon enough.
        self.watched.calls.fetch_add(1, Ordering::Relaxed);
        let result = call();
        let before = self.watched.calls.fetch_add(1, Ordering::Relaxed);
        let stopped = before & STOPPED != 0;
        if stopped {
            self.watched.calls.fetch_and(!STOPPED, Ordering::Relaxed);
            // The thread may be about to stop this call once more: it looks at the word under this lock.
            let stopper = self.watched.stopper.lock();
            stopper.unwrap_or_else(PoisonError::into_inner).release();
        }
        (result, stopped)
    }
}

impl WatchdogState {
    fn watch(&self, look: Duration) {
        let (mut last, mut seen) = (0, 0);
        let mut raised = sys::raised();
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            let waited = self.wake.wait_timeout(ended, look);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            let now = self.calls.load(Ordering::Relaxed);
            if now & 1 == 0 || now & !STOPPED != last {
                (last, seen) = (now & !STOPPED, 1);
                continue;
            }
            seen += 1;
            // Once more only if it does not run into the hook: to set it then may break it.
            if seen == LOOKS + 1 || (seen > LOOKS && sys::raised() == raised) {
                self.stop(last);
            }
            raised = sys::raised();
        }
    }

    /// Stops a call, unless the call has just ended. The watchdog stops it again if the script goes
    /// on: setting a hook races with the script's thread (see `Stopper`). That thread may have
    /// overwritten the table of instructions that the hook needs.
    fn stop(&self, call: u64) {
        let stopper = self.stopper.lock().unwrap_or_else(PoisonError::into_inner);
        let marked =
            self.calls
                .compare_exchange(call, call | STOPPED, Ordering::Relaxed, Ordering::Relaxed);
        if matches!(marked, Ok(now) | Err(now) if now & !STOPPED == call) {
            stopper.stop();
        }
    }
}

impl Drop for ScriptWatchdog {
    fn drop(&mut self) {
        *self
            .watched
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.watched.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
