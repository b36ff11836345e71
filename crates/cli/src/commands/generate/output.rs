//! The capture file that generated packets go to.

use std::{
    fs::File,
    io::{self, BufWriter, ErrorKind},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use retroscope_capture::SourceError;
use retroscope_packet::LinkType;
use retroscope_pcapfile::{
    InterfaceOptions, PcapNgWriter, PcapOptions, PcapWriter, SectionOptions, WriteError,
};
use retroscope_recorder::PROGRAM;

use crate::{commands::interface_names, failure::Failure};

/// Why generating ended early.
#[derive(Debug)]
pub(super) enum End {
    /// Whoever read our output has seen enough: no failure.
    ReaderGone,
    Failure(Failure),
}

impl From<SourceError> for End {
    fn from(error: SourceError) -> Self {
        Self::Failure(match error {
            SourceError::Usage { message } => Failure::usage(message),
            SourceError::NoInterface { .. } => {
                Failure::failed(format!("{error}; interfaces: {}", interface_names()))
            }
            other => Failure::failed(other),
        })
    }
}

/// Where packets are written to.
pub(super) enum Output {
    Nowhere,
    Pcap(PathBuf, PcapWriter<BufWriter<File>>),
    PcapNg(PathBuf, PcapNgWriter<BufWriter<File>>),
}

impl Output {
    /// Opens what `-w` names, `-` being stdout; pcapng calls the interface `interface`.
    pub(super) fn open(path: Option<&Path>, interface: &str) -> Result<Self, End> {
        let Some(path) = path.map(Path::to_owned) else {
            return Ok(Self::Nowhere);
        };
        let file = if path == Path::new("-") {
            io::stdout().as_fd().try_clone_to_owned().map(File::from)
        } else {
            File::create(&path)
        };
        let file = file.map_err(|error| cannot_write(&path, error))?;
        let buffer = BufWriter::with_capacity(1 << 20, file);
        if path
            .extension()
            .is_none_or(|extension| extension != "pcapng")
        {
            let writer = PcapWriter::new(buffer, PcapOptions::new(LinkType::ETHERNET));
            return Ok(Self::Pcap(
                path.clone(),
                writer.map_err(|error| write_failed(&path, error))?,
            ));
        }
        let section = SectionOptions {
            application: PROGRAM.to_owned(),
            ..SectionOptions::default()
        };
        let options = InterfaceOptions {
            name: interface.to_owned(),
            ..InterfaceOptions::new(LinkType::ETHERNET)
        };
        let writer = PcapNgWriter::new(buffer, &section).and_then(|mut writer| {
            writer.add_interface(&options)?;
            Ok(writer)
        });
        Ok(Self::PcapNg(
            path.clone(),
            writer.map_err(|error| write_failed(&path, error))?,
        ))
    }

    /// Writes one whole frame; the time is in ns since the UNIX epoch.
    pub(super) fn record(&mut self, time_ns: i64, frame: &[u8]) -> Result<(), End> {
        // A frame is at most 9014 bytes.
        let wire_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        match self {
            Self::Nowhere => Ok(()),
            Self::Pcap(path, writer) => writer
                .record(time_ns, wire_len, frame)
                .map_err(|error| write_failed(path, error)),
            Self::PcapNg(path, writer) => writer
                .record(0, time_ns, wire_len, frame)
                .map_err(|error| write_failed(path, error)),
        }
    }

    /// Writes what is still buffered.
    pub(super) fn finish(self) -> Result<(), End> {
        let (path, result) = match self {
            Self::Nowhere => return Ok(()),
            Self::Pcap(path, writer) => (path, writer.finish()),
            Self::PcapNg(path, writer) => (path, writer.finish()),
        };
        result.map(drop).map_err(|error| write_failed(&path, error))
    }
}

fn write_failed(path: &Path, error: WriteError) -> End {
    match error {
        WriteError::Io { error, .. } if error.kind() == ErrorKind::BrokenPipe => End::ReaderGone,
        WriteError::Io { error, .. } => cannot_write(path, error),
        other => End::Failure(Failure::failed(format!("{}: {other}", path.display()))),
    }
}

fn cannot_write(path: &Path, error: io::Error) -> End {
    let name = if path == Path::new("-") {
        Path::new("stdout")
    } else {
        path
    };
    End::Failure(Failure::failed(format!(
        "cannot write {}: {error}",
        name.display()
    )))
}
