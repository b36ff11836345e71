//! Output of the matching packets.

use std::io::Write;

use anyhow::Context;
use retroscope_pcapfile::{FileFormat, FileInterface, RecordMeta};

use super::lines::PacketLines;
use crate::commands::{
    capture_file::{Capture, cannot_write},
    target::OutputTarget,
};

/// Receives the matching packets. The first call of [`MatchOutput::interfaces`] opens the target of
/// lines and capture files; `finish` opens the target of a count.
#[derive(Debug)]
pub(super) struct MatchOutput {
    target: OutputTarget,
    matches: u64,
    sink: Sink,
}

#[derive(Debug)]
pub(super) enum Sink {
    /// Only the number of packets and a newline, at the end.
    Count,
    /// One line for each packet. `None` until it is opened.
    Lines(Option<PacketLines>),
    /// A capture file in the format of the input. `None` until it is opened.
    Capture(Option<Capture>),
}

impl MatchOutput {
    pub(super) fn new(target: OutputTarget, sink: Sink) -> Self {
        Self {
            target,
            matches: 0,
            sink,
        }
    }

    /// Registers all interfaces known so far, in file order. The call must precede the packets of
    /// new interfaces. The first call opens the target, except for a count.
    ///
    /// # Errors
    /// The target cannot be opened or written.
    pub(super) fn interfaces(
        &mut self,
        format: FileFormat,
        interfaces: &[FileInterface],
    ) -> anyhow::Result<()> {
        let target = &self.target;
        match &mut self.sink {
            Sink::Count | Sink::Lines(Some(_)) => {}
            Sink::Lines(lines) => *lines = Some(PacketLines::new(target.open()?)),
            Sink::Capture(capture) => {
                let capture = match capture {
                    Some(capture) => capture,
                    None => {
                        let file = target.open()?;
                        let started = Capture::start(file, format);
                        capture.insert(started.map_err(|error| cannot_write(target, error))?)
                    }
                };
                capture
                    .add_interfaces(interfaces)
                    .map_err(|error| cannot_write(target, error))?;
            }
        }
        Ok(())
    }

    /// Receives a packet of a registered interface. `data` contains the captured bytes.
    ///
    /// # Errors
    /// The target cannot be written.
    #[inline]
    pub(super) fn packet(
        &mut self,
        interface: &FileInterface,
        record: &RecordMeta,
        data: &[u8],
    ) -> anyhow::Result<()> {
        self.matches += 1;
        let target = &self.target;
        match &mut self.sink {
            Sink::Lines(Some(lines)) => lines
                .packet(interface, record, data)
                .with_context(|| format!("cannot write {target}")),
            Sink::Capture(Some(capture)) => capture
                .packet(record, data)
                .map_err(|error| cannot_write(target, error)),
            Sink::Count | Sink::Lines(None) | Sink::Capture(None) => Ok(()),
        }
    }

    /// Flushes lines on a terminal, because the input may pause now.
    ///
    /// # Errors
    /// The target cannot be written.
    pub(super) fn burst_end(&mut self) -> anyhow::Result<()> {
        match &mut self.sink {
            Sink::Lines(Some(lines)) => lines
                .burst_end()
                .with_context(|| format!("cannot write {}", self.target)),
            _ => Ok(()),
        }
    }

    /// Flushes the output, and writes the number for a count. If the input's format was unreadable,
    /// the target of lines or of a capture file was never opened and is not created. Returns the
    /// number of packets in a capture file whose time was clamped or is `i64::MAX`.
    ///
    /// # Errors
    /// The target cannot be opened or written.
    pub(super) fn finish(self) -> anyhow::Result<u64> {
        let Self {
            target,
            matches,
            sink,
        } = self;
        let context = || format!("cannot write {target}");
        match sink {
            Sink::Count => writeln!(target.open()?, "{matches}").with_context(context)?,
            Sink::Lines(Some(lines)) => lines.finish().with_context(context)?,
            Sink::Lines(None) | Sink::Capture(None) => {}
            Sink::Capture(Some(capture)) => {
                return capture
                    .finish()
                    .map_err(|error| cannot_write(&target, error));
            }
        }
        Ok(0)
    }
}
