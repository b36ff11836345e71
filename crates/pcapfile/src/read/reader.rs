//! The reader: input, buffer and parser joined.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use retroscope_packet::LinkType;

use super::{
    Fault, Item,
    buffer::Buffer,
    identify::identify,
    input::{Input, InputError},
    pcap::{self, Pcap},
    pcapng::{self, PcapNg},
    record::{Record, RecordMeta},
    texts::TextAllowance,
};
use crate::{Compression, Format, Interface, ReadError, block::SECTION_HEADER};

/// Records of one burst at most.
const BURST_RECORDS_MAX: usize = 256;

/// How far [`Reader::new`] looks for a packet once it knows an interface, in bytes of capture data.
const LOOK_BYTES: u64 = 1 << 20;

/// Reads a capture file of either format, compressed or not, from any stream.
///
/// [`Reader::fill`] lends a burst of records that lie in the reader's own buffer until the next call;
/// [`Reader::next`] is the simple way, one record at a time. Nothing is allocated per record.
///
/// Memory: half a MiB, and as much as the largest record or block read so far. A claimed length costs nothing before the
/// bytes are there, and at most 16 MiB then (128 MiB for D-Bus, whose messages are as long). Decompression adds
/// its own window, for zstd up to 128 MiB if the file asks for it. An interface takes some hundred bytes, and its name and
/// description what [`TextAllowance`] leaves them.
#[derive(Debug)]
pub struct Reader<R: Read> {
    input: Input<R>,
    buffer: Buffer,
    parser: Parser,
    format: Format,
    interfaces: Vec<Interface>,
    /// The burst.
    records: Vec<RecordMeta>,
    /// Records of the burst that are lent, the first of them `taken` by `next`. 0 where the burst was read in advance.
    lent: usize,
    /// `taken <= lent`.
    taken: usize,
    /// The burst was read by `new` and waits for the first `fill`.
    primed: bool,
    /// An error that waits until the records before it were lent.
    pending: Option<ReadError>,
    /// Nothing more is parsed: clean end, or an error.
    ended: bool,
    records_read: u64,
}

#[derive(Debug)]
enum Parser {
    Pcap(Pcap),
    PcapNg(PcapNg),
}

impl Reader<Box<dyn Read + Send>> {
    /// Opens a capture file, as [`Reader::new`].
    ///
    /// # Errors
    /// [`ReadError::Open`], or as [`Reader::new`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|error| ReadError::Open {
            path: PathBuf::from(path),
            error,
        })?;
        Self::new(Box::new(file))
    }
}

impl<R: Read> Reader<R> {
    /// Detects compression and format and reads on to the first packet, so that the first interfaces are known; where none comes
    /// behind the first interface, for a MiB. `inner` needs no buffering of its own.
    ///
    /// # Errors
    /// [`ReadError`] if no interface is found before the file turns out to be damaged or no capture. What is wrong further
    /// on comes from [`Reader::fill`].
    pub fn new(inner: R) -> Result<Self, ReadError> {
        Self::with_texts(inner, TextAllowance::default())
    }

    /// As [`Reader::new`], but the buffer begins with `bytes` (4 KiB at least) instead of half a
    /// MiB. For programs that read hundreds of files at a time.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn with_memory(inner: R, bytes: usize) -> Result<Self, ReadError> {
        Self::begin(inner, TextAllowance::default(), Buffer::with_bytes(bytes))
    }

    /// As [`Reader::new`], with an allowance for the names of interfaces that is shared with other readers.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn with_texts(inner: R, texts: TextAllowance) -> Result<Self, ReadError> {
        Self::begin(inner, texts, Buffer::new())
    }

    fn begin(inner: R, texts: TextAllowance, mut buffer: Buffer) -> Result<Self, ReadError> {
        let mut input = Input::new(inner).map_err(|error| at_stream(error, 0, None))?;
        let compression = input.compression();
        while buffer.unread().len() < pcap::FILE_HEADER_BYTES
            && read_more(&mut input, &mut buffer, pcap::FILE_HEADER_BYTES)? > 0
        {}
        let head = buffer.unread();
        let found = recognise(head, texts).map_err(|fault| locate(fault, 0, compression))?;
        let (parser, mut format, interface) = found.ok_or_else(|| ReadError::NotACapture {
            what: identify(head),
        })?;
        format.compression = compression;
        if format.pcap.is_some() {
            buffer.consume(pcap::FILE_HEADER_BYTES);
        }
        let mut reader = Self {
            input,
            buffer,
            parser,
            format,
            interfaces: Vec::from_iter(interface),
            records: Vec::with_capacity(BURST_RECORDS_MAX),
            lent: 0,
            taken: 0,
            primed: true,
            pending: None,
            ended: false,
            records_read: 0,
        };
        while !reader.parse_burst()
            && (reader.interfaces.is_empty() || reader.offset() < LOOK_BYTES)
        {}
        match reader.pending.take() {
            Some(error) if reader.interfaces.is_empty() => Err(error),
            pending => Ok(Self { pending, ..reader }),
        }
    }

    /// How the file is encoded.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The interfaces found so far, of all sections, in file order. Grows only inside [`Reader::fill`] and
    /// [`Reader::next`], to 65,536 at most. A pcap file has one; a pcapng file without packets may have none.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Takes the previous burst back and lends the next, at least one record; `Ok(0)` is the end of the file. It waits for
    /// the stream only until one record is wholly there.
    ///
    /// # Errors
    /// [`ReadError`] when the next record cannot be read, after all records before it were lent. The reader is then at its
    /// end: further calls return `Ok(0)`. The one exception is a stream that says [`WouldBlock`](std::io::ErrorKind::WouldBlock): nothing is
    /// lost then, and the next call goes on where this one was ([`ReadError::is_would_block`]).
    pub fn fill(&mut self) -> Result<usize, ReadError> {
        loop {
            if let Some(count) = self.poll()? {
                return Ok(count);
            }
        }
    }

    /// As [`Reader::fill`], in steps of a bounded length: it asks the stream at most once, for 256 KiB, and returns `Ok(None)`
    /// where that completes no record. However much of a stream is no packets, the caller decides how long to go on.
    ///
    /// # Errors
    /// As [`Reader::fill`].
    pub fn poll(&mut self) -> Result<Option<usize>, ReadError> {
        (self.lent, self.taken) = (0, 0);
        if !std::mem::take(&mut self.primed) {
            self.records.clear();
            self.parse_burst();
        }
        if self.records.is_empty() {
            return match self.pending.take() {
                Some(error) => Err(error),
                None => Ok(self.ended.then_some(0)),
            };
        }
        self.lent = self.records.len();
        self.records_read += self.lent as u64;
        Ok(Some(self.lent))
    }

    /// Whether a name or description of an interface was longer than [`TEXT_BYTES_MAX`](crate::TEXT_BYTES_MAX), or found nothing left
    /// of the allowance, and is not whole.
    pub fn are_texts_cut(&self) -> bool {
        match &self.parser {
            Parser::Pcap(_) => false,
            Parser::PcapNg(pcapng) => pcapng.texts.are_cut,
        }
    }

    /// The memory that [`Reader::records`] point into.
    pub fn memory(&self) -> &[u8] {
        self.buffer.memory()
    }

    /// The burst that the last [`Reader::fill`] lent, in file order.
    pub fn records(&self) -> &[RecordMeta] {
        &self.records[..self.lent]
    }

    /// The next record; `None` at the end of the file. After a `fill`, its burst comes first.
    ///
    /// # Errors
    /// As [`Reader::fill`].
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        if self.taken == self.lent && self.fill()? == 0 {
            return Ok(None);
        }
        let meta = self.records[self.taken];
        self.taken += 1;
        let data = &self.buffer.memory()[meta.offset..meta.offset + meta.captured_len as usize];
        Ok(Some(Record { meta, data }))
    }

    /// Records lent since the start, whole bursts: `next` may have some of them still to give.
    pub fn records_read(&self) -> u64 {
        self.records_read
    }

    /// Bytes of capture data, decompressed if it is compressed, that were parsed so far; it is ahead of a burst read in
    /// advance.
    pub fn offset(&self) -> u64 {
        self.buffer.offset()
    }

    /// Offset of the captured bytes of a record in the capture data, decompressed if it is
    /// compressed. The record is from the last [`Reader::fill`] or [`Reader::next`].
    pub fn data_offset(&self, record: &RecordMeta) -> u64 {
        self.offset() - self.buffer.position().start as u64 + record.offset as u64
    }

    /// Parses the run of records that is in the buffer, reading only if there is none, and once. `records` must be empty. False:
    /// there is still none, and no reason why.
    fn parse_burst(&mut self) -> bool {
        assert!(self.records.is_empty());
        let mut has_read = false;
        while !self.ended && self.records.len() < BURST_RECORDS_MAX {
            let item = match &mut self.parser {
                Parser::Pcap(pcap) => pcap.parse(self.buffer.unread()),
                Parser::PcapNg(pcapng) => pcapng.parse(self.buffer.unread(), &mut self.interfaces),
            };
            match item {
                Ok(Item::Record { mut meta, size }) => {
                    meta.offset += self.buffer.position().start;
                    self.records.push(meta);
                    self.buffer.consume(size);
                }
                Ok(Item::Other { size }) => self.buffer.consume(size),
                // Reading moves memory, so the records found so far are lent first.
                Ok(Item::Short { .. }) if !self.records.is_empty() => return true,
                Ok(Item::Short { .. }) if has_read => return false,
                Ok(Item::Short { need, what }) => {
                    match read_more(&mut self.input, &mut self.buffer, need) {
                        Ok(0) => {
                            let there = self.buffer.unread().len();
                            let cut = cut_short(there, need, what);
                            self.end((there > 0).then(|| self.locate(cut)));
                        }
                        Ok(_) => has_read = true,
                        Err(error) if error.is_would_block() => {
                            self.pending = Some(error);
                            return true;
                        }
                        Err(error) => self.end(Some(error)),
                    }
                }
                Err(fault) => self.end(Some(self.locate(fault))),
            }
        }
        true
    }

    fn end(&mut self, error: Option<ReadError>) {
        self.ended = true;
        self.pending = error;
    }

    fn locate(&self, fault: Fault) -> ReadError {
        locate(fault, self.buffer.offset(), self.format.compression)
    }
}

/// All link types of a file's interfaces, in order of first appearance. A pcapng file is read to its end, because
/// interfaces may be described anywhere.
///
/// # Errors
/// [`ReadError`] if the file cannot be opened or read, or no interface is found before it turns out to be damaged or no
/// capture. Damage further on is left to the reader that wants the packets.
pub fn scan_link_types(path: &Path) -> Result<Vec<LinkType>, ReadError> {
    let mut reader = Reader::open(path)?;
    while reader.format().pcap.is_none() {
        match reader.fill() {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.is_damage() => break,
            Err(error) => return Err(error),
        }
    }
    let mut link_types = Vec::new();
    for interface in reader.interfaces() {
        if !link_types.contains(&interface.link_type) {
            link_types.push(interface.link_type);
        }
    }
    Ok(link_types)
}

/// Finds the format of a file that starts with `head`; the interface is a pcap file's one. `None`: neither.
fn recognise(
    head: &[u8],
    texts: TextAllowance,
) -> Result<Option<(Parser, Format, Option<Interface>)>, Fault> {
    let whole = |need: usize, what: &str| match head.len() {
        there if there < need => Err(cut_short(there, need, what)),
        _ => Ok(()),
    };
    if head.len() >= 4
        && let Some(byte_order) = pcap::recognise(head)
    {
        whole(pcap::FILE_HEADER_BYTES, "the pcap file header")?;
        let (pcap, format, interface) = Pcap::new(head, byte_order)?;
        return Ok(Some((Parser::Pcap(pcap), format, Some(interface))));
    }
    if !head.starts_with(&SECTION_HEADER.to_be_bytes()) {
        return Ok(None);
    }
    whole(12, "the first section header block")?;
    let format = Format {
        byte_order: pcapng::section_byte_order(head)?,
        compression: None,
        pcap: None,
    };
    Ok(Some((Parser::PcapNg(PcapNg::new(texts)), format, None)))
}

/// A file that ends too early.
fn cut_short(there: usize, need: usize, what: &str) -> Fault {
    Fault::damage(format!(
        "the file ends after {there} of the {need} bytes of {what}"
    ))
}

fn read_more<R: Read>(
    input: &mut Input<R>,
    buffer: &mut Buffer,
    need: usize,
) -> Result<usize, ReadError> {
    let read = buffer.read_with(need, |room| input.read(room));
    let there = buffer.offset() + buffer.unread().len() as u64;
    read.map_err(|error| at_stream(error, there, input.compression()))
}

/// Gives a parser's fault its place in the file; what the parser was shown starts at `offset`.
fn locate(fault: Fault, offset: u64, compression: Option<Compression>) -> ReadError {
    ReadError::Faulty {
        blame: fault.blame,
        offset: offset + fault.at as u64,
        compression,
        message: fault.message,
    }
}

/// Gives an error of the stream its place: `offset` bytes came out before.
fn at_stream(error: InputError, offset: u64, compression: Option<Compression>) -> ReadError {
    match error {
        InputError::Io(error) => ReadError::Io {
            offset,
            compression,
            error,
        },
        InputError::Compressed(message) => locate(Fault::damage(message), offset, compression),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::{
        ByteOrder, Interface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter, SectionOptions,
    };

    #[test]
    fn flags_and_ids_are_read_as_written() {
        for byte_order in [ByteOrder::Little, ByteOrder::Big] {
            let section = SectionOptions {
                byte_order,
                ..SectionOptions::default()
            };
            let mut writer = PcapNgWriter::new(Vec::new(), &section).unwrap();
            writer
                .add_interface(&Interface::new(LinkType::ETHERNET))
                .unwrap();
            let (flags, id) = (Some(2), Some((7 << 48) + 5));
            let given = [(None, None), (flags, id), (None, id), (flags, None)];
            for (flags, id) in given {
                let options = PacketOptions {
                    flags,
                    id,
                    dropped: Some(3),
                    comments: &["one"],
                };
                writer.packet(0, 0, 3, b"abc", &options).unwrap();
            }
            let file = writer.finish().unwrap();
            let mut reader = Reader::new(&file[..]).unwrap();
            assert_eq!(reader.fill().unwrap(), 4);
            let read: Vec<_> = reader
                .records()
                .iter()
                .map(|it| (it.flags, it.id))
                .collect();
            assert_eq!(read, given);
        }
    }

    /// How a file of `header`, `lengths` and `there` zero bytes ends, and the memory that it took.
    fn memory_of_absurd(header: &[u8], claim: &[u8], there: usize) -> (String, usize) {
        let file = [header, claim, &vec![0; there]].concat();
        let mut reader = Reader::new(&file[..]).unwrap();
        let error = reader.fill().unwrap_err();
        assert!(error.is_damage());
        (error.to_string(), reader.buffer.capacity())
    }

    /// A stream of which, behind the first bytes, one byte is there at a time, and nothing between.
    struct Hesitant {
        bytes: Vec<u8>,
        /// Bytes that come without a pause.
        steady: usize,
        given: usize,
        ready: bool,
    }

    impl Read for Hesitant {
        fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
            self.ready = !self.ready || self.given < self.steady;
            if !self.ready {
                return Err(std::io::ErrorKind::WouldBlock.into());
            }
            let there = &self.bytes[self.given..];
            let count = there.len().min(room.len()).min(1);
            room[..count].copy_from_slice(&there[..count]);
            self.given += count;
            Ok(count)
        }
    }

    #[test]
    fn a_stream_that_would_block_loses_nothing() {
        let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
        for length in 0..200_u8 {
            let data = vec![length; usize::from(length)];
            writer.record(i64::from(length), 500, &data).unwrap();
        }
        let plain = writer.finish().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, &plain).unwrap();
        // Two frames, because one comes out as a whole.
        let pack = |bytes: &[u8]| zstd::stream::encode_all(bytes, 1).unwrap();
        let first = pack(&plain[..5000]);
        let zstd = [&first[..], &pack(&plain[5000..])].concat();
        let gzip = gzip.finish().unwrap();
        // `Reader::new` wants to see a header.
        let half = gzip.len() / 2;
        for (bytes, steady) in [(plain, 24), (gzip, half), (zstd, first.len())] {
            let mut reader = Reader::new(Hesitant {
                bytes,
                steady,
                given: 0,
                ready: false,
            })
            .unwrap();
            let (mut lengths, mut blocked) = (Vec::new(), 0);
            loop {
                match reader.fill() {
                    Ok(0) => break,
                    Ok(_) => lengths.extend(reader.records().iter().map(|one| one.captured_len)),
                    Err(error) => {
                        assert!(error.is_would_block(), "{error}");
                        blocked += 1;
                    }
                }
            }
            assert!(blocked > 100, "{blocked}");
            assert!(lengths.into_iter().eq(0..200));
        }
    }

    #[test]
    fn a_claimed_length_takes_no_memory_that_the_file_does_not_fill() {
        let dbus = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType(231)))
            .unwrap()
            .finish()
            .unwrap();
        let claim = [[0; 8], [0, 0, 0, 8, 0, 0, 0, 8]].concat();
        for there in [0, 1_000, 3 << 20] {
            let (error, memory) = memory_of_absurd(&dbus, &claim, there);
            assert!(error.contains("134217744"), "{error}");
            assert!(
                memory <= (1 << 20) + 2 * there,
                "{memory} bytes for {there}"
            );
        }

        let mut writer = PcapNgWriter::new(Vec::new(), &SectionOptions::default()).unwrap();
        writer
            .add_interface(&Interface::new(LinkType::ETHERNET))
            .unwrap();
        let section = writer.finish().unwrap();
        // An unknown block of the largest length that is believed.
        let (error, memory) = memory_of_absurd(&section, &[9, 0, 0, 0, 0, 0, 0, 1], 100);
        assert!(
            error.contains("108 of") && error.contains("16777216"),
            "{error}"
        );
        assert!(memory <= 1 << 20);
        let (error, memory) = memory_of_absurd(&section, &[9, 0, 0, 0, 4, 0, 0, 1], 20 << 20);
        assert!(error.contains("16777220"), "{error}");
        assert!(memory <= 1 << 20);
    }

    #[test]
    fn memory_grows_to_the_largest_record_and_no_further() {
        let mut writer = PcapWriter::new(Vec::new(), PcapOptions::new(LinkType::ETHERNET)).unwrap();
        for _ in 0..20 {
            writer.record(0, 0, &vec![0; 262_144]).unwrap();
        }
        let file = writer.finish().unwrap();
        let mut reader = Reader::new(&file[..]).unwrap();
        while reader.fill().unwrap() > 0 {}
        assert!(
            reader.buffer.capacity() <= 1 << 20,
            "{}",
            reader.buffer.capacity()
        );
    }
}
