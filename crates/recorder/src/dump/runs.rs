//! Merges the runs of a capture file.
//!
//! A run is a range of the file in which packets are in order, by ring time and source.
//!
//! The recorder keeps no list of runs while it writes the file. [`Runs`] finds the runs by reading
//! the file, and merges [`FAN_IN`] runs at a time. So memory does not grow with the number of runs.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    io::{self, Read},
    ops::Range,
};

use retroscope_pcapfile::{CaptureReader, PACKET_HEADER_BYTES, RecordMeta};

use super::{
    disk::{DiskFile, sequential},
    encode::DumpFormat,
};

const FAN_IN: usize = 256;
/// Memory for the read buffers of all open runs together, bytes.
const BUFFERS_BYTES: usize = 8 << 20;

/// Length of a record header of a pcap file, bytes.
const PCAP_RECORD_HEADER_BYTES: usize = 16;

/// Where a packet belongs in a sorted file: ring time, ns, and source. Packets with equal keys keep
/// their order.
pub(super) type SortKey = (i64, usize);

pub(super) struct Runs<'f, P> {
    file: &'f dyn DiskFile,
    format: DumpFormat,
    /// The file header, with the blocks of all interfaces.
    header: &'f [u8],
    /// Returns the sort key of a packet, from its record and its number in the file.
    place: P,
    scan: FileReader<'f>,
    scanned: u64,
    /// Sort key of the last packet that `scan` has read.
    last: Option<SortKey>,
    /// Offset and packet number at which the run that `scan` is in begins.
    start: Option<(u64, u64)>,
    /// The open runs.
    cursors: Vec<RunCursor<'f>>,
    /// Sort key of the next packet of each open run, and the run's position in `cursors`. If sort
    /// keys are equal, the earlier run is first.
    next: BinaryHeap<Reverse<(SortKey, usize)>>,
    /// The run whose packet was returned last.
    taken: Option<usize>,
}

type FileReader<'f> = CaptureReader<Box<dyn Read + 'f>>;

struct RunCursor<'f> {
    reader: FileReader<'f>,
    /// Number of records of the reader's present burst that were returned.
    taken: usize,
    /// The number that the next packet has in the file.
    packet: u64,
}

impl<'f, P: Fn(&RecordMeta, u64) -> io::Result<SortKey>> Runs<'f, P> {
    /// `header`: a file header of this format, with the blocks of all interfaces in the order of
    /// their indices.
    pub(super) fn new(
        file: &'f dyn DiskFile,
        format: DumpFormat,
        header: &'f [u8],
        place: P,
    ) -> io::Result<Self> {
        let scan: Box<dyn Read> = Box::new(file.reader());
        Ok(Self {
            file,
            format,
            header,
            place,
            scan: CaptureReader::new(scan).map_err(io::Error::other)?,
            scanned: 0,
            last: None,
            start: None,
            cursors: Vec::new(),
            next: BinaryHeap::new(),
            taken: None,
        })
    }

    /// Returns the next packet, its bytes and its number in the file. Packets are in order only
    /// within each [`FAN_IN`] runs.
    pub(super) fn next(&mut self) -> io::Result<Option<(RecordMeta, &[u8], u64)>> {
        if let Some(run) = self.taken.take() {
            self.cursors[run].step();
            self.list(run)?;
        }
        if self.next.is_empty() {
            self.open_runs()?;
        }
        let Some(Reverse((_, run))) = self.next.pop() else {
            return Ok(None);
        };
        self.taken = Some(run);
        let cursor = &mut self.cursors[run];
        let packet = cursor.packet;
        let record = cursor.peek()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let data = &self.cursors[run].reader.memory()[record.offset..];
        Ok(Some((
            record,
            &data[..record.captured_len as usize],
            packet,
        )))
    }

    fn list(&mut self, run: usize) -> io::Result<()> {
        let cursor = &mut self.cursors[run];
        if let Some(record) = cursor.peek()? {
            let place = (self.place)(&record, cursor.packet)?;
            self.next.push(Reverse((place, run)));
        }
        Ok(())
    }

    fn open_runs(&mut self) -> io::Result<()> {
        let found = self.find_runs()?;
        let memory = BUFFERS_BYTES / found.len().max(1);
        self.cursors.clear();
        for (run, (bytes, packet)) in found.into_iter().enumerate() {
            let file = self.file;
            let read_at = move |buffer: &mut [u8], at| file.read_at(buffer, bytes.start + at);
            let run_bytes = sequential(read_at).take(bytes.end - bytes.start);
            let reader: Box<dyn Read> = Box::new(self.header.chain(run_bytes));
            let reader = CaptureReader::with_memory(reader, memory).map_err(io::Error::other)?;
            self.cursors.push(RunCursor {
                reader,
                taken: 0,
                packet,
            });
            self.list(run)?;
        }
        Ok(())
    }

    /// Returns the next [`FAN_IN`] runs: the range of each in the file, and the number of its first
    /// packet.
    fn find_runs(&mut self) -> io::Result<Vec<(Range<u64>, u64)>> {
        let header_bytes = match self.format {
            DumpFormat::PcapNg => PACKET_HEADER_BYTES,
            DumpFormat::Pcap => PCAP_RECORD_HEADER_BYTES,
        };
        let mut found = Vec::new();
        while found.len() < FAN_IN {
            let record = self.scan.next().map_err(io::Error::other)?;
            let Some(record) = record.map(|record| record.meta) else {
                let last = self.start.take();
                found.extend(last.map(|(start, packet)| (start..u64::MAX, packet)));
                break;
            };
            let place = (self.place)(&record, self.scanned)?;
            if self.last.is_none_or(|last| place < last) {
                let start = self.scan.data_offset(&record) - header_bytes as u64;
                let before = self.start.replace((start, self.scanned));
                found.extend(before.map(|(before, packet)| (before..start, packet)));
            }
            self.last = Some(place);
            self.scanned += 1;
        }
        Ok(found)
    }
}

impl RunCursor<'_> {
    fn peek(&mut self) -> io::Result<Option<RecordMeta>> {
        if self.taken == self.reader.records().len() {
            self.taken = 0;
            self.reader.fill().map_err(io::Error::other)?;
        }
        Ok(self.reader.records().get(self.taken).copied())
    }

    fn step(&mut self) {
        self.taken += 1;
        self.packet += 1;
    }
}
