//! What the engines that read capture formats share: a queue of the records of a reader.

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
    Burst, Direction, Event, FrameMeta, InterfaceInfo, LossCause, Probed, Queue, SourceError,
    SourceStatistics, Status, TimeDomain, clock,
};

/// Opens the one queue of a stream. `until_ns`: until when a live stream waits, on the monotonic clock; `None`: a file, which waits for
/// ever. Records end when the stream does, or, live too, where another thread has set `stop`. Messages call it `path`.
///
/// # Errors
/// Those of [`CaptureReader::with_texts`].
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
        told: 0,
        is_cut_told: false,
        frames: Vec::new(),
        until_ns,
        stop,
        ended: false,
    };
    queue.learn_interfaces();
    queue.told = queue.interfaces.len();
    let queue: Box<dyn Queue> = Box::new(queue);
    Ok(Box::new(vec![queue]))
}

/// A reader of pcap or pcapng whose bursts are lent as frames. Records are received when they are read, so a stopped one ends at once.
#[derive(Debug)]
struct RecordsQueue<R: Read> {
    path: PathBuf,
    reader: CaptureReader<R>,
    interfaces: Vec<InterfaceInfo>,
    /// Interfaces that the caller knows: from the opening, or by an event. `<= interfaces.len()`.
    told: usize,
    /// A notice has said that names were cut.
    is_cut_told: bool,
    /// The burst.
    frames: Vec<FrameMeta>,
    until_ns: Option<Arc<AtomicI64>>,
    stop: Arc<AtomicBool>,
    ended: bool,
}

impl<R: Read> RecordsQueue<R> {
    fn is_live(&self) -> bool {
        self.until_ns.is_some()
    }

    /// Takes the previous burst back and reads on, for a moment: the records that came, or `None` where none is whole yet;
    /// `Some(0)` at the end. What the stream describes before an error is known, even if no packet follows.
    fn poll(&mut self) -> Result<Option<usize>, ReadError> {
        self.frames.clear();
        let polled = self.reader.poll();
        self.learn_interfaces();
        let count = polled?;
        self.frames.extend(self.reader.records().iter().map(frame));
        Ok(count)
    }

    /// Takes over the interfaces that the reader has met since the last call. Live, those without a name have that of the stream.
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

    /// Reads the next records, or on for a moment where there is something else. A live stream returns when `wait` is over, whatever comes;
    /// where that is no time at all, it reads once what is there. A pipe is waited for longer if it delivers nothing.
    fn next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        if self.ended {
            self.frames.clear();
            return Ok(Status::End);
        }
        let deadline_ns = self.until_ns.as_ref().map(|until_ns| {
            let deadline_ns = clock::monotonic_ns().saturating_add(clock::duration_ns(wait));
            // Relaxed: the same thread loads it.
            until_ns.store(deadline_ns, Ordering::Relaxed);
            deadline_ns
        });
        loop {
            match self.poll() {
                Ok(Some(0)) => self.ended = true,
                Ok(Some(_)) => return Ok(Status::Frames),
                Ok(None) if deadline_ns.is_some_and(|end_ns| clock::monotonic_ns() < end_ns) => {
                    continue;
                }
                Ok(None) => return Ok(Status::Idle),
                Err(error) if self.is_live() && error.is_would_block() => return Ok(Status::Idle),
                Err(error) => {
                    self.ended = true;
                    // What was stopped ends anywhere. The flag carries no data.
                    if !self.stop.load(Ordering::Relaxed) {
                        return Err(source_error(&self.path, error));
                    }
                }
            }
            return Ok(Status::End);
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

    /// The next interface that appeared after the opening, or, once, that names were cut.
    fn event(&mut self) -> Option<Event> {
        if self.reader.are_texts_cut() && !self.is_cut_told {
            self.is_cut_told = true;
            return Some(Event::Notice(format!(
                "{}: names or descriptions of interfaces are not kept whole: {TEXT_BYTES_MAX} bytes of each, and {} MiB in all, are",
                self.path.display(),
                TEXTS_BYTES_MAX >> 20
            )));
        }
        if self.told == self.interfaces.len() {
            return None;
        }
        let index = u16::try_from(self.told).ok()?;
        self.told += 1;
        Some(Event::InterfaceAdded(index))
    }

    /// What whoever captured a live stream has lost is unknown.
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

/// Tells the file's faults from the system's.
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
