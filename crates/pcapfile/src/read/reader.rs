//! The reader, which joins input, buffer and parser.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use retroscope_packet::LinkType;

use super::{
    ParseFault, ParsedItem,
    buffer::SlidingBuffer,
    identify::identify,
    input::{DecompressedInput, InputError},
    pcap::{self, PcapParser},
    pcapng::{self, PcapNgParser},
    record::{CaptureRecord, RecordMeta},
    texts::TextAllowance,
};
use crate::{Compression, FileFormat, FileInterface, ReadError, block::SECTION_HEADER};

/// Maximum number of records in a burst.
const BURST_RECORDS_MAX: usize = 256;

/// [`CaptureReader::new`] stops its search for a packet after the block or step that reaches this
/// offset in the capture data, bytes, if an interface is known by then.
const LOOK_BYTES: u64 = 1 << 20;

/// Reads a capture file of either format, compressed or not, from any stream.
///
/// [`CaptureReader::fill`] lends a burst of records, which stay in the reader's buffer until the
/// next call. [`CaptureReader::next`] is simpler: one record at a time. The reader allocates
/// nothing per record.
///
/// The reader takes half a MiB of memory (see also [`CaptureReader::with_memory`]), or as much as
/// the largest record or block that it has read, if that is more. If a record claims a large
/// length, memory grows only as its bytes arrive, to about 16 MiB at most. For D-Bus, whose
/// messages may be longer, the maximum is about 128 MiB. A decompressor adds its window, for zstd
/// up to 128 MiB if the file requests it. An interface takes some hundred bytes, and the bytes of
/// its name and description that [`TextAllowance`] permits.
#[derive(Debug)]
pub struct CaptureReader<R: Read> {
    input: DecompressedInput<R>,
    buffer: SlidingBuffer,
    parser: FormatParser,
    format: FileFormat,
    interfaces: Vec<FileInterface>,
    /// The records of the burst.
    records: Vec<RecordMeta>,
    /// Number of records of the burst that are lent. 0 if the burst was read in advance.
    lent: usize,
    /// Number of lent records that `next` has returned. `taken <= lent`.
    taken: usize,
    /// A constructor has parsed the first burst, which waits for the first `fill` or `poll`.
    primed: bool,
    /// An error that is returned after the records before it were lent.
    pending: Option<ReadError>,
    /// Parsing has ended, at the end of the file or after an error.
    ended: bool,
    records_read: u64,
}

#[derive(Debug)]
enum FormatParser {
    Pcap(PcapParser),
    PcapNg(PcapNgParser),
}

impl CaptureReader<Box<dyn Read + Send>> {
    /// Opens a capture file, as [`CaptureReader::new`].
    ///
    /// # Errors
    /// [`ReadError::Open`], or as [`CaptureReader::new`].
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|error| ReadError::Open {
            path: PathBuf::from(path),
            error,
        })?;
        Self::new(Box::new(file))
    }
}

impl<R: Read> CaptureReader<R> {
    /// Detects compression and format, and reads on to the first packet, so that the first
    /// interfaces are known. If an interface is known but no packet is found, the search usually
    /// ends after about a MiB of capture data. `inner` needs no buffer.
    ///
    /// # Errors
    /// [`ReadError`] if no interface is found before the stream fails, or before the file turns out
    /// to be damaged or not a capture. If an interface is found first, [`CaptureReader::fill`]
    /// returns the error.
    pub fn new(inner: R) -> Result<Self, ReadError> {
        Self::with_texts(inner, TextAllowance::default())
    }

    /// As [`CaptureReader::new`], but the buffer begins with `bytes` (at least 4 KiB) instead of
    /// half a MiB. For programs that read hundreds of files at a time.
    ///
    /// # Errors
    /// As [`CaptureReader::new`].
    pub fn with_memory(inner: R, bytes: usize) -> Result<Self, ReadError> {
        Self::begin(
            inner,
            TextAllowance::default(),
            SlidingBuffer::with_bytes(bytes),
        )
    }

    /// As [`CaptureReader::new`], with an allowance for the names and descriptions of interfaces
    /// that other readers may share.
    ///
    /// # Errors
    /// As [`CaptureReader::new`].
    pub fn with_texts(inner: R, texts: TextAllowance) -> Result<Self, ReadError> {
        Self::begin(inner, texts, SlidingBuffer::new())
    }

    fn begin(inner: R, texts: TextAllowance, mut buffer: SlidingBuffer) -> Result<Self, ReadError> {
        let mut input = DecompressedInput::new(inner).map_err(|error| at_stream(error, 0, None))?;
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

    /// The encoding of the file.
    pub fn format(&self) -> FileFormat {
        self.format
    }

    /// The interfaces found so far, of all sections, in file order. After [`CaptureReader::new`]
    /// the list grows only inside [`CaptureReader::fill`], [`CaptureReader::poll`] and
    /// [`CaptureReader::next`], to at most 65,536. A pcap file has one interface; a pcapng file
    /// without packets may have no interface.
    pub fn interfaces(&self) -> &[FileInterface] {
        &self.interfaces
    }

    /// Takes the previous burst back and lends the next burst, at least one record. `Ok(0)` is the
    /// end of the file. It waits for the stream only until one record is complete.
    ///
    /// # Errors
    /// [`ReadError`] if the next record cannot be read, after all records before it were lent. The
    /// reader is then at its end: further calls return `Ok(0)`.
    ///
    /// The one exception is a stream that returns [`WouldBlock`](std::io::ErrorKind::WouldBlock).
    /// Then nothing is lost, and the next call continues at the same place
    /// ([`ReadError::is_would_block`]).
    pub fn fill(&mut self) -> Result<usize, ReadError> {
        loop {
            if let Some(count) = self.poll()? {
                return Ok(count);
            }
        }
    }

    /// As [`CaptureReader::fill`], in steps. A step reads at most 256 KiB of capture data
    /// (decompressed), and returns `Ok(None)` if the bytes complete no record. So the caller
    /// usually decides how long to read a stream that contains no packets.
    ///
    /// # Errors
    /// As [`CaptureReader::fill`].
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

    /// Whether some name or description of an interface is truncated or missing, because it was
    /// longer than [`TEXT_BYTES_MAX`](crate::TEXT_BYTES_MAX), or because too little of the
    /// allowance was left.
    pub fn are_texts_cut(&self) -> bool {
        match &self.parser {
            FormatParser::Pcap(_) => false,
            FormatParser::PcapNg(pcapng) => pcapng.texts.are_cut,
        }
    }

    /// The memory that contains the data of [`CaptureReader::records`].
    pub fn memory(&self) -> &[u8] {
        self.buffer.memory()
    }

    /// The lent burst, in file order.
    pub fn records(&self) -> &[RecordMeta] {
        &self.records[..self.lent]
    }

    /// The next record. `None` at the end of the file. After a call of [`CaptureReader::fill`],
    /// `next` returns the records of the lent burst first.
    ///
    /// # Errors
    /// As [`CaptureReader::fill`].
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Result<Option<CaptureRecord<'_>>, ReadError> {
        if self.taken == self.lent && self.fill()? == 0 {
            return Ok(None);
        }
        let meta = self.records[self.taken];
        self.taken += 1;
        let data = &self.buffer.memory()[meta.offset..meta.offset + meta.captured_len as usize];
        Ok(Some(CaptureRecord { meta, data }))
    }

    /// Number of records lent since the start, in whole bursts: `next` may not have returned all of
    /// them yet.
    pub fn records_read(&self) -> u64 {
        self.records_read
    }

    /// Bytes of capture data, after decompression, that were parsed so far. A burst that was read
    /// in advance counts.
    pub fn offset(&self) -> u64 {
        self.buffer.offset()
    }

    /// Offset of the captured bytes of a record in the capture data, decompressed if it is
    /// compressed. The record must be from the lent burst.
    pub fn data_offset(&self, record: &RecordMeta) -> u64 {
        self.offset() - self.buffer.position().start as u64 + record.offset as u64
    }

    /// Parses the run of records in the buffer, and reads once if there is no complete record.
    /// `records` must be empty. Returns false if there is still no record, and neither the end nor
    /// an error.
    fn parse_burst(&mut self) -> bool {
        assert!(self.records.is_empty());
        let mut has_read = false;
        while !self.ended && self.records.len() < BURST_RECORDS_MAX {
            let item = match &mut self.parser {
                FormatParser::Pcap(pcap) => pcap.parse(self.buffer.unread()),
                FormatParser::PcapNg(pcapng) => {
                    pcapng.parse(self.buffer.unread(), &mut self.interfaces)
                }
            };
            match item {
                Ok(ParsedItem::Record { mut meta, size }) => {
                    meta.offset += self.buffer.position().start;
                    self.records.push(meta);
                    self.buffer.consume(size);
                }
                Ok(ParsedItem::Other { size }) => self.buffer.consume(size),
                // Reading moves the memory, so the records found so far are lent first.
                Ok(ParsedItem::Short { .. }) if !self.records.is_empty() => return true,
                Ok(ParsedItem::Short { .. }) if has_read => return false,
                Ok(ParsedItem::Short { need, what }) => {
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

    fn locate(&self, fault: ParseFault) -> ReadError {
        locate(fault, self.buffer.offset(), self.format.compression)
    }
}

/// All link types of a file's interfaces, in order of first appearance. A pcapng file is read to
/// its end, because any block may describe an interface.
///
/// # Errors
/// [`ReadError`] if the file cannot be opened or read, or if no interface is found before the file
/// turns out to be damaged or not a capture. Later damage is no error here: a [`CaptureReader`]
/// that reads the packets reports the damage.
pub fn scan_link_types(path: &Path) -> Result<Vec<LinkType>, ReadError> {
    let mut reader = CaptureReader::open(path)?;
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

/// Finds the format of a file that starts with `head`. The third value is the interface of a pcap
/// file, and `None` for pcapng. The result is `None` if the file has neither format.
fn recognise(
    head: &[u8],
    texts: TextAllowance,
) -> Result<Option<(FormatParser, FileFormat, Option<FileInterface>)>, ParseFault> {
    let whole = |need: usize, what: &str| match head.len() {
        there if there < need => Err(cut_short(there, need, what)),
        _ => Ok(()),
    };
    if head.len() >= 4
        && let Some(byte_order) = pcap::recognise(head)
    {
        whole(pcap::FILE_HEADER_BYTES, "the pcap file header")?;
        let (pcap, format, interface) = PcapParser::new(head, byte_order)?;
        return Ok(Some((FormatParser::Pcap(pcap), format, Some(interface))));
    }
    if !head.starts_with(&SECTION_HEADER.to_be_bytes()) {
        return Ok(None);
    }
    whole(12, "the first section header block")?;
    let format = FileFormat {
        byte_order: pcapng::section_byte_order(head)?,
        compression: None,
        pcap: None,
    };
    Ok(Some((
        FormatParser::PcapNg(PcapNgParser::new(texts)),
        format,
        None,
    )))
}

/// The fault of a file that ends too early.
fn cut_short(there: usize, need: usize, what: &str) -> ParseFault {
    ParseFault::damage(format!(
        "the file ends after {there} of the {need} bytes of {what}"
    ))
}

fn read_more<R: Read>(
    input: &mut DecompressedInput<R>,
    buffer: &mut SlidingBuffer,
    need: usize,
) -> Result<usize, ReadError> {
    let read = buffer.read_with(need, |room| input.read(room));
    let there = buffer.offset() + buffer.unread().len() as u64;
    read.map_err(|error| at_stream(error, there, input.compression()))
}

/// Adds the position in the file to a parser's fault. The parsed bytes start at `offset`.
fn locate(fault: ParseFault, offset: u64, compression: Option<Compression>) -> ReadError {
    ReadError::Faulty {
        blame: fault.blame,
        offset: offset + fault.at as u64,
        compression,
        message: fault.message,
    }
}

/// Adds the position `offset` to an error of the stream.
fn at_stream(error: InputError, offset: u64, compression: Option<Compression>) -> ReadError {
    match error {
        InputError::Io(error) => ReadError::Io {
            offset,
            compression,
            error,
        },
        InputError::Compressed(message) => locate(ParseFault::damage(message), offset, compression),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::{
        ByteOrder, FileInterface, PacketOptions, PcapNgWriter, PcapOptions, PcapWriter,
        SectionOptions,
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
                .add_interface(&FileInterface::new(LinkType::ETHERNET))
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
            let mut reader = CaptureReader::new(&file[..]).unwrap();
            assert_eq!(reader.fill().unwrap(), 4);
            let read: Vec<_> = reader
                .records()
                .iter()
                .map(|it| (it.flags, it.id))
                .collect();
            assert_eq!(read, given);
        }
    }

    /// The error of a file that consists of `header`, `claim` and `there` zero bytes, and the
    /// size of the reader's buffer.
    fn memory_of_absurd(header: &[u8], claim: &[u8], there: usize) -> (String, usize) {
        let file = [header, claim, &vec![0; there]].concat();
        let mut reader = CaptureReader::new(&file[..]).unwrap();
        let error = reader.fill().unwrap_err();
        assert!(error.is_damage());
        (error.to_string(), reader.buffer.capacity())
    }

    /// A stream that returns one byte at a time. After its first `steady` bytes it would block
    /// before each byte.
    struct Hesitant {
        bytes: Vec<u8>,
        /// Bytes that arrive without a pause.
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
        // Two frames, because the decoder returns nothing of a frame of this size before the frame
        // is complete.
        let pack = |bytes: &[u8]| zstd::stream::encode_all(bytes, 1).unwrap();
        let first = pack(&plain[..5000]);
        let zstd = [&first[..], &pack(&plain[5000..])].concat();
        let gzip = gzip.finish().unwrap();
        // `CaptureReader::new` needs a complete header.
        let half = gzip.len() / 2;
        for (bytes, steady) in [(plain, 24), (gzip, half), (zstd, first.len())] {
            let mut reader = CaptureReader::new(Hesitant {
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
            .add_interface(&FileInterface::new(LinkType::ETHERNET))
            .unwrap();
        let section = writer.finish().unwrap();
        // An unknown block of the maximum accepted length.
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
        let mut reader = CaptureReader::new(&file[..]).unwrap();
        while reader.fill().unwrap() > 0 {}
        assert!(
            reader.buffer.capacity() <= 1 << 20,
            "{}",
            reader.buffer.capacity()
        );
    }
}
