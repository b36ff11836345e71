//! The recorder as a service: reports to the service manager (systemd) during start, recording and
//! stop.

mod notify;
mod watchdog;

use std::time::{Duration, Instant};

use retroscope_recorder::Recorder;

use super::screen::StatusLine;
use crate::units::show_size;

pub(super) use notify::Notify;
use watchdog::{Judgement, Watchdog};

/// Minimum time between two messages that ask for more time, and between two status lines.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Time that each message asks the service manager to wait from then on, while memory is filled at
/// the start or commands of `--post` run at the stop.
const EXTENSION: Duration = Duration::from_secs(30);

/// Reports to the service manager. Does nothing without a service manager.
#[derive(Debug)]
pub(super) struct Service {
    notify: Notify,
    watchdog: Option<Watchdog>,
    line: StatusLine,
    /// Time of the last message that asked for more time.
    extended: Option<Instant>,
    /// Names of the hanging threads in the last report.
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

    /// Whether a service manager receives the state.
    pub(super) fn is_on(&self) -> bool {
        self.notify.is_on()
    }

    pub(super) fn notify(&self) -> &Notify {
        &self.notify
    }

    /// Reports that memory is being filled, and asks for more time to start, because filling has no
    /// time limit.
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

    /// Asks for more time and reports the reason.
    fn extend(&mut self, status: &str) {
        self.extended = Some(Instant::now());
        let time_us = EXTENSION.as_micros();
        (self.notify).send(&format!("EXTEND_TIMEOUT_USEC={time_us}\nSTATUS={status}"));
    }

    /// Reports that the recording started.
    pub(super) fn recording(&mut self) {
        self.line.begin();
        self.notify.send("READY=1\nSTATUS=recording");
    }

    /// Reports the state and feeds the watchdog if no thread hangs. Returns a message for the log
    /// if threads begin to hang or recover.
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

    /// Asks for more time to stop while commands of `--post` run or wait, because each command has
    /// its own time limit. Unfinished dumps get no extension, because a hanging disk has no time
    /// limit.
    fn wait_for_commands(&mut self, recorder: &Recorder) {
        if !self.is_extension_due() {
            return;
        }
        let left = recorder.status().post.map_or(0, |post| post.to_be_done);
        if left > 0 {
            self.extend(&format!("stopping: {left} commands of --post run or wait"));
        }
    }

    /// Reports that the recording stops and that dumps are being completed.
    pub(super) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            self.notify
                .send("STOPPING=1\nSTATUS=stopping: dumps are completed");
        }
    }
}
