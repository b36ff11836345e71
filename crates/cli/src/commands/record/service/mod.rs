//! The recorder as a service: what its manager (systemd) hears of it while it starts, records and stops.

mod notify;
mod watchdog;

use std::time::{Duration, Instant};

use retroscope_recorder::Recorder;

use super::screen::StatusLine;
use crate::units::show_size;

pub(super) use notify::Notify;
use watchdog::{Judgement, Watchdog};

/// Between two messages while memory is filled, and between two about the state.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How much longer the start may take, counted from each message while memory is filled.
const FILLING_EXTENSION: Duration = Duration::from_secs(30);

/// See the module. Without a service manager nothing happens.
#[derive(Debug)]
pub(super) struct Service {
    notify: Notify,
    watchdog: Option<Watchdog>,
    line: StatusLine,
    filling_told: Option<Instant>,
    /// Threads that hang, as they were last told.
    hanging: Vec<String>,
    is_stopping: bool,
}

impl Service {
    pub(super) fn from_environment() -> Self {
        let notify = Notify::from_environment();
        Self {
            watchdog: Watchdog::from_environment().filter(|_| notify.is_on()),
            notify,
            line: StatusLine::default(),
            filling_told: None,
            hanging: Vec::new(),
            is_stopping: false,
        }
    }

    /// Whether somebody is told the state.
    pub(super) fn is_on(&self) -> bool {
        self.notify.is_on()
    }

    pub(super) fn notify(&self) -> &Notify {
        &self.notify
    }

    /// Memory is being filled, which takes as long as it takes: the start is given more time.
    pub(super) fn filling(&mut self, done: u64, total: u64) {
        let told = self.filling_told;
        if self.is_on() && told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.filling_told = Some(Instant::now());
            let (time_us, done, total) = (
                FILLING_EXTENSION.as_micros(),
                show_size(done),
                show_size(total),
            );
            self.notify.send(&format!(
                "EXTEND_TIMEOUT_USEC={time_us}\nSTATUS=filling the ring: {done} of {total}"
            ));
        }
    }

    /// It records.
    pub(super) fn recording(&mut self) {
        self.line.begin();
        self.notify.send("READY=1\nSTATUS=recording");
    }

    /// Tells how the recording is, and that it goes on, if it does. Returns a sentence for the log, when threads begin to hang or no longer do.
    pub(super) fn tick(&mut self, recorder: &Recorder) -> Option<String> {
        if !self.is_on() || self.is_stopping {
            return None;
        }
        if recorder.is_stopping() {
            self.stopping();
            return None;
        }
        let mut sentence = None;
        if let Some(watchdog) = &mut self.watchdog {
            let hanging = match watchdog.judge(Instant::now(), recorder.turns()) {
                Judgement::Tell => {
                    self.notify.send("WATCHDOG=1");
                    Vec::new()
                }
                Judgement::Wait => Vec::new(),
                Judgement::Hanging(threads) => threads,
            };
            if hanging != self.hanging {
                let who = match hanging.join(", ") {
                    none if none.is_empty() => "all threads go on".to_owned(),
                    who => format!("hanging: {who}; the watchdog of the service is not fed"),
                };
                self.notify.send(&format!("STATUS={who}"));
                sentence = Some(who);
                self.hanging = hanging;
            }
        }
        if self.hanging.is_empty()
            && let Some(line) = self.line.due(TELL_EVERY, recorder)
        {
            self.notify.send(&format!("STATUS={line}"));
        }
        sentence
    }

    /// It records no more, and completes what it writes.
    pub(super) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            self.notify
                .send("STOPPING=1\nSTATUS=stopping: dumps are completed");
        }
    }
}
