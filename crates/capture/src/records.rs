//! A queue of the records of a pcap or pcapng reader, for the engines that read capture formats.

use std::{
    borrow::Cow,
    fmt::Debug,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use retroscope_pcapfile::{
    CaptureReader, ReadError, RecordMeta, TEXT_BYTES_MAX, TEXTS_BYTES_MAX, TextAllowance,
};

use crate::{
    Burst, Direction, FrameMeta, InterfaceInfo, LossCause, Probed, Queue, QueueStatus, SourceError,
    SourceEvent, SourceStatistics, TimeDomain, clock,
};

/// Opens the queue of a stream. `until_ns` is the deadline of a live stream on the monotonic clock;
/// `None`: a file, whose reads wait without limit. After another thread has set `stop`, an error
/// counts as the end of the stream. Error messages name the stream `path`.
///
/// # Errors
/// The errors of [`CaptureReader::with_texts`].
pub(crate) fn open<R: Read + Send + Debug + 'static>(
    path: &Path,
    stream: R,
    texts: TextAllowance,
    until_ns: Option<Arc<AtomicI64>>,
    stop: Arc<AtomicBool>,
) -> Result<Box<dyn Probed>, ReadError> {
    let mut queue = RecordsQueue {
        path: path.to_owned(),
        reader: CaptureReader::with_texts(stream, texts)?,
        interfaces: Vec::new(),
        reported: 0,
        is_cut_reported: false,
        frames: Vec::new(),
        until_ns,
        stop,
        ended: false,
    };
    queue.learn_interfaces();
    queue.reported = queue.interfaces.len();
    let queue: Box<dyn Queue> = Box::new(queue);
    Ok(Box::new(vec![queue]))
}

/// A queue that lends the bursts of a pcap or pcapng reader as frames. A record counts as received
/// when it is read, so a stopped queue ends at once.
#[derive(Debug)]
struct RecordsQueue<R: Read> {
    path: PathBuf,
    reader: CaptureReader<R>,
    interfaces: Vec<InterfaceInfo>,
    /// Number of interfaces that the caller knows from the opening or from an event:
    /// `<= interfaces.len()`.
    reported: usize,
    /// A notice has reported that names or descriptions were truncated.
    is_cut_reported: bool,
    frames: Vec<FrameMeta>,
    until_ns: Option<Arc<AtomicI64>>,
    stop: Arc<AtomicBool>,
    ended: bool,
}

impl<R: Read> RecordsQueue<R> {
    fn is_live(&self) -> bool {
        self.until_ns.is_some()
    }

    /// Returns the previous burst to the reader, and reads for a moment. Returns the number of new
    /// records, `Some(0)` at the end, or `None` if no record is complete yet.
    fn poll(&mut self) -> Result<Option<usize>, ReadError> {
        self.frames.clear();
        let polled = self.reader.poll();
        self.learn_interfaces();
        let count = polled?;
        self.frames.extend(self.reader.records().iter().map(frame));
        Ok(count)
    }

    /// Adds the interfaces that the reader has found since the last call. An interface of a live
    /// stream without a name gets the name of the stream.
    fn learn_interfaces(&mut self) {
        let (time_domain, unnamed) = match self.is_live() {
            true => (TimeDomain::Foreign, self.path.to_string_lossy()),
            false => (TimeDomain::File, Cow::Borrowed("")),
        };
        for interface in &self.reader.interfaces()[self.interfaces.len()..] {
            let name = match interface.name.as_str() {
                "" => &unnamed,
                name => name,
            };
            self.interfaces.push(InterfaceInfo {
                name: name.to_owned(),
                link_type: interface.link_type,
                snaplen: interface.snaplen,
                time_domain,
                time_resolution_ns: interface.resolution_ns,
            });
        }
    }
}

impl<R: Read + Send + Debug> Queue for RecordsQueue<R> {
    fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    /// Reads the next records, or skips other data for a moment. For a live stream the call returns
    /// soon after `wait`. For a pipe that delivers nothing, the call may block for longer.
    fn next(&mut self, wait: Duration) -> Result<QueueStatus, SourceError> {
        if self.ended {
            self.frames.clear();
            return Ok(QueueStatus::End);
        }
        let deadline_ns = self.until_ns.as_ref().map(|until_ns| {
            let deadline_ns = clock::monotonic_ns().saturating_add(clock::duration_ns(wait));
            // Relaxed: the same thread loads the value.
            until_ns.store(deadline_ns, Ordering::Relaxed);
            deadline_ns
        });
        loop {
            match self.poll() {
                Ok(Some(0)) => self.ended = true,
                Ok(Some(_)) => return Ok(QueueStatus::Frames),
                Ok(None) if deadline_ns.is_some_and(|end_ns| clock::monotonic_ns() < end_ns) => {
                    continue;
                }
                Ok(None) => return Ok(QueueStatus::Idle),
                Err(error) if self.is_live() && error.is_would_block() => {
                    return Ok(QueueStatus::Idle);
                }
                Err(error) => {
                    self.ended = true;
                    // A stopped stream may end anywhere. Relaxed: the flag carries no data.
                    if !self.stop.load(Ordering::Relaxed) {
                        return Err(source_error(&self.path, error));
                    }
                }
            }
            return Ok(QueueStatus::End);
        }
    }

    fn burst(&self) -> Burst<'_> {
        Burst {
            memory: self.reader.memory(),
            frames: &self.frames,
        }
    }

    fn watermark(&self) -> Option<i64> {
        self.ended.then_some(i64::MAX)
    }

    fn promises_watermark(&self) -> bool {
        !self.is_live()
    }

    /// The next interface that appeared after the opening, or, once, a notice that names or
    /// descriptions of interfaces were truncated.
    fn event(&mut self) -> Option<SourceEvent> {
        if self.reader.are_texts_cut() && !self.is_cut_reported {
            self.is_cut_reported = true;
            return Some(SourceEvent::Notice(format!(
                "{}: names or descriptions of interfaces are truncated: at most {TEXT_BYTES_MAX} bytes each, and {} MiB in all, are kept",
                self.path.display(),
                TEXTS_BYTES_MAX >> 20
            )));
        }
        if self.reported == self.interfaces.len() {
            return None;
        }
        let index = u16::try_from(self.reported).ok()?;
        self.reported += 1;
        Some(SourceEvent::InterfaceAdded(index))
    }

    /// The losses of the program that captured a live stream are unknown.
    fn statistics(&mut self) -> SourceStatistics {
        SourceStatistics {
            received: Some(self.reader.records_read()),
            lost: self
                .is_live()
                .then_some((LossCause::Upstream, None))
                .into_iter()
                .collect(),
            as_of_ns: self.watermark(),
        }
    }

    fn stop(&mut self) {
        self.ended = true;
        self.frames.clear();
    }
}

fn frame(record: &RecordMeta) -> FrameMeta {
    FrameMeta {
        time_ns: record.time_ns,
        offset: record.offset,
        captured_len: record.captured_len,
        wire_len: record.wire_len,
        interface: record.interface,
        // Bits 0 and 1 of pcapng's `epb_flags`.
        direction: Direction::from_bits(record.flags.map_or(0, |flags| flags.to_le_bytes()[0] & 3)),
        vlan: None,
    }
}

pub(crate) fn source_error(path: &Path, error: ReadError) -> SourceError {
    let path = path.to_owned();
    match error {
        ReadError::Open { error, .. }
        | ReadError::Io {
            offset: 0, error, ..
        } => SourceError::File { path, error },
        ReadError::Io { offset, error, .. } => {
            let error = io::Error::new(error.kind(), format!("{error}, after byte {offset}"));
            SourceError::File { path, error }
        }
        error => SourceError::Damaged {
            path,
            message: error.to_string(),
        },
    }
}
