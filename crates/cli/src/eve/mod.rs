//! Lines of EVE JSON on their way out: to a file, stdout, or a socket that another program listens
//! at.
//!
//! Lines are collected, and go out whole. An output may take a part of a line and no more for now,
//! a full disk or a slow reader: then the rest of that line goes first when there is room again,
//! and lines that found none are lost and counted. Where an output begins anew, a reader that comes
//! back or a file that is opened again, it begins with a whole line. What Suricata does otherwise:
//! it drops silently, and may tear lines.

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

/// Bytes of lines that are collected before they go out by themselves.
const COLLECTED_BYTES: usize = 64 * 1024;
/// Between two sentences about lost lines.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// How lines are written.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Seed of Community IDs.
    pub(crate) community_id_seed: u16,
    /// How long lines may wait for a slow reader, each time that they go out; live 100 ms. `None`:
    /// as long as it takes.
    pub(crate) patience: Option<Duration>,
    /// The user and group of a new file: see [`crate::privileges::Privileges::owner`].
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

/// What became of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Counters {
    /// Lines that the output took.
    pub(crate) lines: u64,
    /// Lines that it had no room for, or that had no output.
    pub(crate) lost: u64,
    /// Flows that are not IP, which have no line.
    pub(crate) not_ip: u64,
}

/// Writes lines. For one thread at a time; whoever calls it waits as long as [`Options::patience`]
/// says, and for disks.
pub(crate) struct EveWriter {
    target: EveTarget,
    options: Options,
    output: Box<dyn LineOutput>,
    /// Names of live interfaces by their numbers.
    interfaces: HashMap<u16, String>,
    /// Whole lines, …
    collected: Vec<u8>,
    /// … of which the output has so many bytes, of the first line only between two calls.
    sent: usize,
    /// The output took less than all when it was tried last.
    is_stalled: bool,
    has_left: bool,
    counters: Counters,
    /// Who is told that lines are lost.
    tell: Box<dyn FnMut(&str) + Send>,
    told: Option<ReportedLosses>,
}

/// What was said about lost lines.
#[derive(Debug, Clone, Copy)]
struct ReportedLosses {
    at: Instant,
    /// Lines that were lost before.
    lost_before: u64,
    /// Lines go out again, and that was said.
    is_over: bool,
}

impl EveWriter {
    /// Opens the output; this is before privileges are given up. `tell` gets a sentence when lines
    /// begin to be lost and when they go out again, at most once a minute.
    ///
    /// # Errors
    /// A sentence: there is no such output, or it may not be written.
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

    /// Flows of this number came by this live interface: lines name it from now on.
    pub(crate) fn interface(&mut self, number: u16, name: &str) {
        self.interfaces.insert(number, name.to_owned());
    }

    /// Writes flows. Some lines may wait for [`Self::flush`].
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

    /// Writes an event of ours: see [`retroscope_eve::event`]. One that is no JSON is lost. It may
    /// wait for [`Self::flush`].
    pub(crate) fn event(&mut self, time_ns: i64, kind: &str, fields: &impl Serialize) {
        if retroscope_eve::event(&mut self.collected, time_ns, kind, fields).is_err() {
            self.counters.lost += 1;
        }
        self.flush_if_full();
    }

    /// Opens a file again by its name, which another program may have renamed: SIGHUP. Other
    /// outputs go on. Where it cannot be opened, lines go on into the one that was open.
    pub(crate) fn rotate(&mut self) {
        self.flush();
        match self.output.reopen() {
            // Begins with a whole line.
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

    /// Lets all lines go out.
    pub(crate) fn flush(&mut self) {
        self.deliver(Instant::now());
    }

    /// What became of lines so far. Those that wait for [`Self::flush`] are not counted.
    #[cfg(test)]
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether nobody reads stdout any more: all further lines are lost, which is no fault.
    pub(crate) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Lets all lines go out, and counts those lost that could not.
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

    /// As [`Self::flush`], at a time of a monotonic clock.
    fn deliver(&mut self, now: Instant) {
        // Who did not read in time is not waited for again until it reads.
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
                    // Who comes next has seen nothing of the line.
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

    /// Loses all lines that did not go out.
    fn lose_all(&mut self) {
        self.counters.lost += lines(&self.collected[self.sent..]);
        self.collected.clear();
        self.sent = 0;
    }

    /// Loses all lines but the one that the output has a part of.
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
            // Said too often it helps nobody: the next sentence counts these, too.
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

/// How many lines end in these bytes.
fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Where the line begins that the byte at `at` is of.
fn line_start(bytes: &[u8], at: usize) -> usize {
    let newline = bytes[..at].iter().rposition(|byte| *byte == b'\n');
    newline.map_or(0, |newline| newline + 1)
}
