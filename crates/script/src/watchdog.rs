//! The time limit of a call into a script.
//!
//! A thread reads a word a few times within the limit. The word counts the starts and the ends of
//! calls, so it is odd while a call runs. If several reads in a row find the same odd number, the
//! call has taken too long, and the watchdog stops the script. So a call costs two atomic additions
//! and no clock read. If the whole process pauses (a debugger, an overloaded machine), the pause
//! adds only one read.
//!
//! Compiled code checks for hooks at the head of loops, if LuaJIT was built with
//! `LUAJIT_ENABLE_CHECKHOOK` (`.cargo/config.toml`). Without this option compiled code could run
//! for ever. [`crate::machine`] calls [`sys::hooks_reach_compiled_code`], and interprets scripts if
//! the option is missing.

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

/// Number of reads within the budget. A call is stopped by the read that comes this number of reads
/// after the first read of its number, so up to a quarter of the budget late.
const LOOKS: u32 = 4;
/// The watchdog's thread sets this bit of the word when it stops the counted call. The end of the
/// call clears the bit.
const STOPPED: u64 = 1 << 63;

/// The time limit of the calls into one Lua state: see the module documentation.
#[derive(Debug)]
pub(crate) struct ScriptWatchdog {
    watched: Arc<WatchdogState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct WatchdogState {
    /// Calls begun and ended. Odd while a call runs.
    calls: AtomicU64,
    /// True if the thread must end. The thread has the lock except while it sleeps.
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

    /// Runs a call, which is stopped if it takes too long. The second value is true if the watchdog
    /// stopped the call.
    pub(crate) fn watch<R>(&self, call: impl FnOnce() -> R) -> (R, bool) {
        // Relaxed: the word carries no data, and each change becomes visible soon enough.
        self.watched.calls.fetch_add(1, Ordering::Relaxed);
        let result = call();
        let before = self.watched.calls.fetch_add(1, Ordering::Relaxed);
        let stopped = before & STOPPED != 0;
        if stopped {
            self.watched.calls.fetch_and(!STOPPED, Ordering::Relaxed);
            // The watchdog's thread may be about to stop this call once more. It reads the word
            // under this lock, so after this it stops the call no more.
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
            // Stop again only if no script ran the hook since the last read: setting the hook while
            // a script is inside the hook may break the hook.
            if seen == LOOKS + 1 || (seen > LOOKS && sys::raised() == raised) {
                self.stop(last);
            }
            raised = sys::raised();
        }
    }

    /// Stops a call, unless the call has just ended. The watchdog stops the call again if the
    /// script continues: setting a hook races with the script's thread (see `Stopper`). That thread
    /// may have overwritten the table of instructions that the hook needs.
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
