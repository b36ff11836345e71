//! A closing word for a file that is finished already.

use std::{
    fs::{File, OpenOptions},
    path::Path,
};

use super::{InterfaceStatistics, PcapNgWriter, pcapng::WrittenInterface};
use crate::{Kind, ReadError, Reader, WriteError, format::effective_snaplen};

/// Appends interface statistics, with comments, to a pcapng file: what became known only after it was written.
///
/// The file must be sound to its end and not compressed. Interfaces are those of its last section.
#[derive(Debug)]
pub struct PcapNgAppender {
    writer: PcapNgWriter<File>,
}

impl PcapNgAppender {
    /// Reads the file through, to know its interfaces and that it ends cleanly, and opens it for appending.
    ///
    /// # Errors
    /// [`WriteError::Open`]; [`WriteError::Unappendable`] for a file that is damaged, compressed or not pcapng.
    pub fn open(path: &Path) -> Result<Self, WriteError> {
        let open = |error| WriteError::Open {
            path: path.to_owned(),
            error,
        };
        let unappendable = |message: String| WriteError::Unappendable {
            path: path.to_owned(),
            message,
        };
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(path)
            .map_err(open)?;
        let mut reader =
            Reader::new(&file).map_err(|error: ReadError| unappendable(error.to_string()))?;
        if reader.format().kind != Kind::PcapNg || reader.format().compression.is_some() {
            return Err(unappendable("it is not a plain pcapng file".into()));
        }
        while reader
            .fill()
            .map_err(|error| unappendable(error.to_string()))?
            > 0
        {}
        let Some((byte_order, section)) = reader.last_section() else {
            return Err(unappendable("it has no section".into()));
        };
        let interfaces = reader
            .interfaces()
            .iter()
            .filter(|interface| interface.section == section)
            .map(|interface| WrittenInterface {
                scale: interface.scale,
                captured_len_max: effective_snaplen(interface.snaplen, interface.link_type),
            })
            .collect();
        Ok(Self {
            writer: PcapNgWriter::resume(file, byte_order, interfaces),
        })
    }

    /// Appends an interface statistics block; `interface` counts from 0 in the last section.
    ///
    /// # Errors
    /// As [`PcapNgWriter::statistics`].
    pub fn statistics(
        &mut self,
        interface: u32,
        statistics: &InterfaceStatistics<'_>,
    ) -> Result<(), WriteError> {
        self.writer.statistics(interface, statistics)
    }

    /// Gives the file back, to be synced.
    ///
    /// # Errors
    /// [`WriteError::Io`] and [`WriteError::Failed`].
    pub fn finish(self) -> Result<File, WriteError> {
        self.writer.finish()
    }
}
