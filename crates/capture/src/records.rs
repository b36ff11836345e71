//! What the engines that read capture formats share: records of a reader as lent frames.

use std::{
    fmt::Debug,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use retroscope_pcapfile::{ReadError, Reader, RecordMeta, TEXT_BYTES_MAX, TEXTS_BYTES_MAX};

use crate::{
    Burst, Direction, Event, FrameMeta, InterfaceInfo, LossCause, Queue, SourceError,
    SourceStatistics, Status, TimeDomain, clock,
};

/// A reader of pcap or pcapng whose bursts are lent as frames.
#[derive(Debug)]
pub(crate) struct Records<R: Read> {
    reader: Reader<R>,
    time_domain: TimeDomain,
    /// Name of interfaces that have none.
    name: String,
    interfaces: Vec<InterfaceInfo>,
    /// Interfaces that were told: known at the opening, or reported by an event. `<= interfaces.len()`.
    told: usize,
    /// It was told that names were cut.
    is_cut_told: bool,
    frames: Vec<FrameMeta>,
}

impl<R: Read> Records<R> {
    /// Takes over a reader, with the interfaces that it knows. `name` is given to interfaces that have none.
    pub(crate) fn new(reader: Reader<R>, time_domain: TimeDomain, name: &str) -> Self {
        let mut records = Self {
            reader,
            time_domain,
            name: name.to_owned(),
            interfaces: Vec::new(),
            told: 0,
            is_cut_told: false,
            frames: Vec::new(),
        };
        records.learn_interfaces();
        records.told = records.interfaces.len();
        records
    }

    /// Takes the previous burst back and reads on, for a moment: the records that came, or `None` where none is whole yet;
    /// `Some(0)` at the end. What the stream describes before an error is known, even if no packet follows.
    pub(crate) fn poll(&mut self) -> Result<Option<usize>, ReadError> {
        self.frames.clear();
        let polled = self.reader.poll();
        self.learn_interfaces();
        let count = polled?;
        self.frames.extend(self.reader.records().iter().map(frame));
        Ok(count)
    }

    /// Gives the burst back.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
    }

    /// The burst that was read last.
    pub(crate) fn burst(&self) -> Burst<'_> {
        Burst {
            memory: self.reader.memory(),
            frames: &self.frames,
        }
    }

    /// The interfaces met so far.
    pub(crate) fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    /// Records lent so far.
    pub(crate) fn read(&self) -> u64 {
        self.reader.records_read()
    }

    /// The next interface that appeared after the opening, or, once, that names of `source` were cut.
    pub(crate) fn event(&mut self, source: &str) -> Option<Event> {
        if self.reader.are_texts_cut() && !self.is_cut_told {
            self.is_cut_told = true;
            return Some(Event::Notice(format!(
                "{source}: names or descriptions of interfaces are not kept whole: {TEXT_BYTES_MAX} bytes of each, and {} MiB in all, are",
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

    /// Takes over the interfaces that the reader has met since the last call.
    fn learn_interfaces(&mut self) {
        for interface in &self.reader.interfaces()[self.interfaces.len()..] {
            let name = if interface.name.is_empty() {
                &self.name
            } else {
                &interface.name
            };
            self.interfaces.push(InterfaceInfo {
                name: name.clone(),
                link_type: interface.link_type,
                snaplen: interface.snaplen,
                time_domain: self.time_domain,
                time_resolution_ns: interface.resolution_ns,
            });
        }
    }
}

/// A reader as a queue: records are received when they are read, so a stopped one ends at once.
#[derive(Debug)]
pub(crate) struct RecordsQueue<R: Read> {
    /// What messages call it.
    path: PathBuf,
    records: Records<R>,
    /// Until when the stream waits for more, on the monotonic clock; `None`: for ever.
    until_ns: Option<Arc<AtomicI64>>,
    /// Set by another thread to end a stream that waits.
    stop: Arc<AtomicBool>,
    ended: bool,
}

impl<R: Read> RecordsQueue<R> {
    /// A queue of records that end when `stop` is set, or, read in time, when the stream does. `until_ns`: what the stream looks at.
    pub(crate) fn new(
        path: PathBuf,
        records: Records<R>,
        until_ns: Option<Arc<AtomicI64>>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self {
            path,
            records,
            until_ns,
            stop,
            ended: false,
        }
    }

    fn is_live(&self) -> bool {
        self.until_ns.is_some()
    }
}

impl<R: Read + Send + Debug> Queue for RecordsQueue<R> {
    fn interfaces(&self) -> &[InterfaceInfo] {
        self.records.interfaces()
    }

    /// Reads the next records, or on for a moment where there is something else. A live stream returns when `wait` is over, whatever comes;
    /// where that is no time at all, it reads once what is there. A pipe is waited for longer if it delivers nothing.
    fn next(&mut self, wait: Duration) -> Result<Status, SourceError> {
        if self.ended {
            self.records.clear();
            return Ok(Status::End);
        }
        let deadline_ns = self.until_ns.as_ref().map(|until_ns| {
            let deadline_ns = clock::monotonic_ns().saturating_add(clock::duration_ns(wait));
            // Relaxed: the same thread loads it.
            until_ns.store(deadline_ns, Ordering::Relaxed);
            deadline_ns
        });
        loop {
            match self.records.poll() {
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
        self.records.burst()
    }

    fn watermark(&self) -> Option<i64> {
        self.ended.then_some(i64::MAX)
    }

    fn promises_watermark(&self) -> bool {
        !self.is_live()
    }

    fn event(&mut self) -> Option<Event> {
        self.records.event(&self.path.to_string_lossy())
    }

    /// What whoever captured a live stream has lost is unknown.
    fn statistics(&mut self) -> SourceStatistics {
        SourceStatistics {
            received: Some(self.records.read()),
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
        self.records.clear();
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
