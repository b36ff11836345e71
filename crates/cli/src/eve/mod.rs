//! Writes lines of EVE JSON to a file, to stdout, or to a socket at which another program listens.
//!
//! A full disk or a slow reader may accept a part of a line. The rest of that line goes out first
//! when there is room again. Meanwhile, complete lines that find no room are lost and counted.

mod file;
mod output;
mod socket;
mod stdout;
mod target;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use retroscope_eve::FlowContext;
use retroscope_flow::EndedFlow;
use retroscope_unix::Owner;
use serde::Serialize;

use output::{LineOutput, Trouble};
pub(crate) use target::EveTarget;

/// Collected bytes that start a write.
const COLLECTED_BYTES: usize = 64 * 1024;
/// Minimum time between two messages that lines are being lost.
const TELL_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Seed of Community IDs.
    pub(crate) community_id_seed: u16,
    /// Maximum time for which a flush waits for a slow reader: 100 ms live. `None`: no limit.
    pub(crate) patience: Option<Duration>,
    /// User and group of a new file.
    pub(crate) owner: Owner,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            community_id_seed: 0,
            patience: Some(Duration::from_millis(100)),
            owner: (None, None),
        }
    }
}

/// Counts of written and lost lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Counters {
    /// Lines that were written completely.
    pub(crate) lines: u64,
    /// Lines that were not completely written because the output had no room or was gone, and
    /// events that cannot be serialized.
    pub(crate) lost: u64,
    /// Flows that are not IP. EVE has no line for such flows.
    pub(crate) not_ip: u64,
}

pub(crate) struct EveWriter {
    target: EveTarget,
    options: Options,
    output: Box<dyn LineOutput>,
    /// Names of live interfaces by their numbers.
    interfaces: HashMap<u16, String>,
    /// Lines that are not completely written yet.
    collected: Vec<u8>,
    /// Bytes of `collected` that are written. Between two calls these bytes belong to the first
    /// line.
    sent: usize,
    /// Whether the last flush failed to write all lines; `false` after a reopening.
    is_stalled: bool,
    has_left: bool,
    counters: Counters,
    tell: Box<dyn FnMut(&str) + Send>,
    told: Option<ReportedLosses>,
}

#[derive(Debug, Clone, Copy)]
struct ReportedLosses {
    at: Instant,
    /// Lost lines before the first line that the current message counts.
    lost_before: u64,
    /// Whether the message was sent that lines are written again.
    is_over: bool,
}

impl EveWriter {
    /// Opens the output. `tell` receives a message when lines begin to be lost, at most once a
    /// minute, and when lines are written again.
    ///
    /// # Errors
    /// A message that says why the output cannot be opened.
    pub(crate) fn open(
        target: EveTarget,
        options: Options,
        tell: Box<dyn FnMut(&str) + Send>,
    ) -> Result<Self, String> {
        let output: Result<Box<dyn LineOutput>, String> = match &target {
            EveTarget::Stdout => stdout::Stdout::open().map(|output| Box::new(output) as _),
            EveTarget::File(path) => {
                file::File::open(path, options.owner).map(|output| Box::new(output) as _)
            }
            EveTarget::Unix(path) => {
                socket::Socket::open(path, Instant::now()).map(|output| Box::new(output) as _)
            }
        };
        let output = output.map_err(|why| format!("cannot write EVE to {target}: {why}"))?;
        Ok(Self::new(target, options, output, tell))
    }

    fn new(
        target: EveTarget,
        options: Options,
        output: Box<dyn LineOutput>,
        tell: Box<dyn FnMut(&str) + Send>,
    ) -> Self {
        Self {
            target,
            options,
            output,
            interfaces: HashMap::new(),
            collected: Vec::with_capacity(2 * COLLECTED_BYTES),
            sent: 0,
            is_stalled: false,
            has_left: false,
            counters: Counters::default(),
            tell,
            told: None,
        }
    }

    /// Sets the name of a live interface for later lines.
    pub(crate) fn interface(&mut self, number: u16, name: &str) {
        self.interfaces.insert(number, name.to_owned());
    }

    /// Collects the lines of flows until [`Self::flush`], or until there are [`COLLECTED_BYTES`].
    pub(crate) fn flows(&mut self, ended: &[EndedFlow]) {
        for ended in ended {
            let interface = self.interfaces.get(&ended.flow.interface());
            let about = FlowContext {
                interface: interface.map(String::as_str),
                community_id_seed: self.options.community_id_seed,
            };
            if !retroscope_eve::flow(&mut self.collected, ended, &about) {
                self.counters.not_ip += 1;
            }
            self.flush_if_full();
        }
    }

    /// Collects the line of a recorder event, like [`Self::flows`].
    pub(crate) fn event(&mut self, time_ns: i64, body: &impl Serialize) {
        if retroscope_eve::event(&mut self.collected, time_ns, body).is_err() {
            self.counters.lost += 1;
        }
        self.flush_if_full();
    }

    /// Writes the collected lines, and reopens a file by its name: another program has renamed the
    /// file. If the file cannot be opened, lines continue in the old file.
    pub(crate) fn rotate(&mut self) {
        self.flush();
        match self.output.reopen() {
            // The new file begins with a whole line.
            Ok(true) => (self.sent, self.is_stalled) = (0, false),
            Ok(false) => {}
            Err(why) => {
                let target = &self.target;
                (self.tell)(&format!(
                    "cannot open {target} again: {why}; EVE lines go on into the file that was open"
                ));
            }
        }
    }

    /// Writes the collected lines. Lines that find no room are lost, except the rest of a partly
    /// written line. If the output is gone and cannot be connected again, all lines are lost.
    pub(crate) fn flush(&mut self) {
        self.deliver(Instant::now());
    }

    #[cfg(test)]
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the reader of stdout closed its end, which is no error.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Writes the collected lines and counts the rest as lost.
    pub(crate) fn close(mut self) -> Counters {
        self.flush();
        self.counters.lost += lines(&self.collected);
        self.counters
    }

    fn flush_if_full(&mut self) {
        if self.collected.len() >= COLLECTED_BYTES {
            self.flush();
        }
    }

    /// Does the work of [`Self::flush`] at `now`.
    fn deliver(&mut self, now: Instant) {
        // After a wait in vain for a slow reader, do not wait again until a flush has written all
        // lines.
        let stalled = Some(Duration::ZERO).filter(|_| self.is_stalled);
        let mut patience = match self.options.patience {
            None => None,
            patience => stalled.or(patience),
        };
        let lost_before = self.counters.lost;
        let trouble = loop {
            let rest = &self.collected[self.sent..];
            if rest.is_empty() {
                self.collected.clear();
                self.sent = 0;
                break None;
            }
            match self.output.write(rest, &mut patience) {
                Ok(taken) => {
                    self.counters.lines += lines(&rest[..taken]);
                    self.sent += taken;
                }
                Err(Trouble::Full(why)) => {
                    self.keep_torn_line();
                    break Some(why);
                }
                Err(Trouble::Gone(why)) => {
                    // A new reader has not seen the start of this line, so repeat the line.
                    self.sent = line_start(&self.collected, self.sent);
                    if !self.output.renew(now) {
                        self.lose_all();
                        break Some(why);
                    }
                }
                Err(Trouble::Left) => {
                    self.has_left = true;
                    self.lose_all();
                    return;
                }
            }
        };
        self.is_stalled = trouble.is_some();
        match trouble {
            Some(why) => self.tell_of_trouble(&why, lost_before, now),
            None => self.tell_that_it_is_over(),
        }
    }

    fn lose_all(&mut self) {
        self.counters.lost += lines(&self.collected[self.sent..]);
        self.collected.clear();
        self.sent = 0;
    }

    fn keep_torn_line(&mut self) {
        let start = line_start(&self.collected, self.sent);
        let mut end = start;
        if start < self.sent {
            let rest = &self.collected[self.sent..];
            end = self.sent
                + rest
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(rest.len(), |at| at + 1);
        }
        self.counters.lost += lines(&self.collected[end..]);
        self.collected.truncate(end);
        self.collected.drain(..start);
        self.sent -= start;
    }

    fn tell_of_trouble(&mut self, why: &str, lost_before: u64, now: Instant) {
        if self.counters.lost == lost_before {
            return;
        }
        match &mut self.told {
            Some(told) if !told.is_over => return,
            // Messages are rare on purpose. A later message counts these lines too.
            Some(told) if now.saturating_duration_since(told.at) < TELL_EVERY => return,
            _ => {}
        }
        let lost_before = match self.told {
            Some(told) => told.lost_before,
            None => lost_before,
        };
        self.told = Some(ReportedLosses {
            at: now,
            lost_before,
            is_over: false,
        });
        let target = &self.target;
        (self.tell)(&format!("EVE lines for {target} are being lost: {why}"));
    }

    fn tell_that_it_is_over(&mut self) {
        let Some(told) = self.told.as_mut().filter(|told| !told.is_over) else {
            return;
        };
        told.is_over = true;
        let lost = self.counters.lost - told.lost_before;
        told.lost_before = self.counters.lost;
        let target = &self.target;
        let lost = crate::units::counted(lost, "line");
        (self.tell)(&format!("EVE goes on to {target}: {lost} lost"));
    }
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Start of the line that contains the byte at `at`.
fn line_start(bytes: &[u8], at: usize) -> usize {
    let newline = bytes[..at].iter().rposition(|byte| *byte == b'\n');
    newline.map_or(0, |newline| newline + 1)
}
