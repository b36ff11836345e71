//! The recorder as a service: what its manager (systemd) hears of it while it starts, records and
//! stops.

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
/// How much longer a start or a stop may take, counted from each message while memory is filled or
/// commands of `--post` run.
const EXTENSION: Duration = Duration::from_secs(30);

/// See the module. Without a service manager nothing happens.
#[derive(Debug)]
pub(super) struct Service {
    notify: Notify,
    watchdog: Option<Watchdog>,
    line: StatusLine,
    /// When it was last given more time.
    extended: Option<Instant>,
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
            extended: None,
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
        if self.is_extension_due() {
            let (done, total) = (show_size(done), show_size(total));
            self.extend(&format!("filling the ring: {done} of {total}"));
        }
    }

    fn is_extension_due(&self) -> bool {
        let told = self.extended;
        self.is_on() && told.is_none_or(|told| told.elapsed() >= TELL_EVERY)
    }

    /// Asks for more time, and says what for.
    fn extend(&mut self, status: &str) {
        self.extended = Some(Instant::now());
        let time_us = EXTENSION.as_micros();
        (self.notify).send(&format!("EXTEND_TIMEOUT_USEC={time_us}\nSTATUS={status}"));
    }

    /// It records.
    pub(super) fn recording(&mut self) {
        self.line.begin();
        self.notify.send("READY=1\nSTATUS=recording");
    }

    /// Tells how the recording is, and that it goes on, if it does. Returns a sentence for the log,
    /// when threads begin to hang or no longer do.
    pub(super) fn tick(&mut self, recorder: &Recorder) -> Option<String> {
        if !self.is_on() {
            return None;
        }
        if self.is_stopping || recorder.is_stopping() {
            self.stopping();
            self.wait_for_commands(recorder);
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

    /// While commands of `--post` run or wait the stop is given more time: each has a limit of its
    /// own. Dumps are not waited for so, because a disk that hangs has none.
    fn wait_for_commands(&mut self, recorder: &Recorder) {
        if !self.is_extension_due() {
            return;
        }
        let left = recorder.status().post.map_or(0, |post| post.to_be_done);
        if left > 0 {
            self.extend(&format!("stopping: {left} commands of --post run or wait"));
        }
    }

    /// It records no more, and completes what it writes.
    pub(super) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            self.notify
                .send("STOPPING=1\nSTATUS=stopping: dumps are completed");
        }
    }
}
