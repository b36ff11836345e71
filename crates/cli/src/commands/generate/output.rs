//! Writes generated packets to a capture file.

use std::path::Path;

use retroscope_capture::SourceError;
use retroscope_packet::LinkType;
use retroscope_pcapfile::{ByteOrder, FileInterface, PcapOptions, RecordMeta};

use super::generated::Generated;
use crate::{
    commands::{
        capture_file::{Capture, cannot_write},
        source_failure,
        target::{OutputTarget, is_broken_pipe},
    },
    failure::Failure,
};

/// The reason why generating ended early.
#[derive(Debug)]
pub(super) enum GenerateEnd {
    /// The output is a pipe, and its reader has closed it, which is no failure.
    ReaderGone,
    Failure(Failure),
}

impl From<SourceError> for GenerateEnd {
    fn from(error: SourceError) -> Self {
        Self::Failure(source_failure(&error))
    }
}

impl From<anyhow::Error> for GenerateEnd {
    fn from(error: anyhow::Error) -> Self {
        if is_broken_pipe(&error) {
            Self::ReaderGone
        } else {
            Self::Failure(Failure::failed(format_args!("{error:#}")))
        }
    }
}

/// Counts packets, and writes them to a file if there is one.
pub(super) struct GenerateOutput<'t> {
    pub(super) generated: &'t mut Generated,
    file: Option<(OutputTarget, Capture)>,
}

impl<'t> GenerateOutput<'t> {
    /// Opens the file of `-w`; `-` is stdout. `interface` is the interface name in pcapng.
    pub(super) fn open(
        path: Option<&Path>,
        interface: &str,
        generated: &'t mut Generated,
    ) -> Result<Self, GenerateEnd> {
        let Some(path) = path else {
            return Ok(Self {
                generated,
                file: None,
            });
        };
        let is_pcapng = path.extension().is_some_and(|it| it == "pcapng");
        let target = OutputTarget::new(path.to_owned());
        let file = target.open()?;
        let capture = if is_pcapng {
            let interface = FileInterface {
                name: interface.to_owned(),
                ..FileInterface::new(LinkType::ETHERNET)
            };
            Capture::pcapng(file, ByteOrder::default()).and_then(|mut capture| {
                capture.add_interfaces(&[interface])?;
                Ok(capture)
            })
        } else {
            Capture::pcap(file, PcapOptions::new(LinkType::ETHERNET))
        };
        let capture = capture.map_err(|error| cannot_write(&target, error))?;
        let file = Some((target, capture));
        Ok(Self { generated, file })
    }

    /// Counts and writes one whole frame. `time_ns` is in ns since the UNIX epoch.
    pub(super) fn record(&mut self, time_ns: i64, frame: &[u8]) -> Result<(), GenerateEnd> {
        self.generated.add(time_ns, frame);
        let Some((target, capture)) = &mut self.file else {
            return Ok(());
        };
        // A frame is at most 9014 bytes.
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let record = RecordMeta {
            time_ns,
            offset: 0,
            captured_len: length,
            wire_len: length,
            interface: 0,
            flags: None,
            id: None,
        };
        let written = capture.packet(&record, frame);
        Ok(written.map_err(|error| cannot_write(target, error))?)
    }

    /// Flushes the buffer.
    pub(super) fn finish(self) -> Result<(), GenerateEnd> {
        let Some((target, capture)) = self.file else {
            return Ok(());
        };
        let finished = capture.finish().map(drop);
        Ok(finished.map_err(|error| cannot_write(&target, error))?)
    }
}
