//! What the engines that read capture formats share: records of a reader as lent frames.

use std::io::Read;

use retroscope_pcapfile::{ReadError, Reader, RecordMeta, TEXT_BYTES_MAX, TEXTS_BYTES_MAX};

use crate::{Burst, Direction, Event, FrameMeta, InterfaceInfo, TimeDomain};

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
