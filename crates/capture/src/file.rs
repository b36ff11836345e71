//! Capture files as a source: pcap and pcapng, compressed or not, also from a pipe or stdin.
//!
//! A file is one queue in file order. Its watermark promises nothing before the end, because the
//! times in a capture file may go backwards.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use retroscope_pcapfile::TextAllowance;

use crate::{
    Probed, Source, SourceError,
    poll::wait_for,
    records::{self, source_error},
};

/// A capture file that implements [`Source`].
#[derive(Debug)]
pub struct FileSource {
    /// The file, or a name for messages if the source is stdin.
    path: PathBuf,
    name: String,
    is_stdin: bool,
    stop: Arc<AtomicBool>,
    texts: TextAllowance,
}

impl FileSource {
    /// A source that will read `path`, a file or a pipe. Opens nothing yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.display().to_string();
        Self::named(path, name, false)
    }

    fn named(path: PathBuf, name: String, is_stdin: bool) -> Self {
        Self {
            path,
            name,
            is_stdin,
            stop: Arc::default(),
            texts: TextAllowance::default(),
        }
    }

    /// A source that will read standard input: a file, a pipe or a socket. Duplicates the
    /// descriptor, because opening `/dev/stdin` fails for a socket.
    #[must_use]
    pub fn stdin() -> Self {
        Self::named(PathBuf::from("stdin"), "-".to_owned(), true)
    }

    fn open_file(&self) -> io::Result<File> {
        if self.is_stdin {
            return Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?));
        }
        File::open(&self.path)
    }

    /// Shares the memory limit for names and descriptions of interfaces with other sources.
    #[must_use]
    pub fn sharing(self, texts: TextAllowance) -> Self {
        Self { texts, ..self }
    }

    /// Ends the reading when another thread sets `stop`: the next read then returns the end of the
    /// file. A read of a silent pipe ends within about 100 ms.
    #[must_use]
    pub fn stopped_by(self, stop: Arc<AtomicBool>) -> Self {
        Self { stop, ..self }
    }
}

impl Source for FileSource {
    fn name(&self) -> &str {
        &self.name
    }

    /// Usually waits for the first packet of a pipe.
    fn probe(self: Box<Self>, _queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let file = self.open_file().map_err(|error| SourceError::File {
            path: self.path.clone(),
            error,
        })?;
        let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let stream = FileStream {
            file,
            is_regular,
            stop: Arc::clone(&self.stop),
        };
        records::open(&self.path, stream, self.texts, None, self.stop)
            .map_err(|error| source_error(&self.path, error))
    }
}

#[derive(Debug)]
struct FileStream {
    file: File,
    is_regular: bool,
    stop: Arc<AtomicBool>,
}

/// How often the reader of a silent pipe checks the stop flag.
const PIPE_WAIT_NS: i64 = 100_000_000;

impl Read for FileStream {
    /// After a stop, returns 0, as at the end of the file.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Relaxed: the flag carries no data.
            if self.stop.load(Ordering::Relaxed) {
                return Ok(0);
            }
            if self.is_regular {
                return self.file.read(buffer);
            }
            if !wait_for(&self.file, PIPE_WAIT_NS)?.is_empty() {
                return self.file.read(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, path::Path, time::Duration};

    use retroscope_packet::LinkType;

    use super::*;
    use crate::{Direction, FrameMeta, Queue, QueueStatus};

    /// A pcap file (little-endian, microseconds, Ethernet) with packets of `lengths` bytes, one per
    /// second.
    fn pcap(lengths: &[u32]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
            file.extend(word.to_le_bytes());
        }
        for (second, length) in (1_u32..).zip(lengths) {
            for word in [second, 7, *length, length + 4] {
                file.extend(word.to_le_bytes());
            }
            file.extend((0..*length).map(|byte| byte.to_le_bytes()[0]));
        }
        file
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// An enhanced packet block for a packet of 4 bytes on `interface` with `epb_flags`.
    fn packet(interface: u32, flags: u32) -> Vec<u8> {
        block(
            6,
            &words(&[
                interface,
                0,
                1_000_000,
                4,
                4,
                0xdead_beef,
                0x0004_0002,
                flags,
                0,
            ]),
        )
    }

    fn open(bytes: &[u8]) -> (tempfile::NamedTempFile, Box<dyn Queue>) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let queue = Box::new(FileSource::new(file.path())).open(4).unwrap();
        let [queue] = <[_; 1]>::try_from(queue).unwrap();
        (file, queue)
    }

    /// Reads until the end or an error. Returns the frames, and the text of the error.
    fn drain(queue: &mut dyn Queue) -> (Vec<(FrameMeta, Vec<u8>)>, Option<String>) {
        let mut frames = Vec::new();
        let error = loop {
            match queue.next(Duration::ZERO) {
                Ok(QueueStatus::Frames) => {
                    assert!(!queue.burst().frames.is_empty());
                    assert_eq!(queue.watermark(), None);
                    frames.extend(
                        queue
                            .burst()
                            .iter()
                            .map(|frame| (frame.meta, frame.data.to_vec())),
                    );
                }
                Ok(QueueStatus::Idle) => assert!(queue.burst().frames.is_empty()),
                Ok(QueueStatus::End) => break None,
                Err(error) => break Some(error.to_string()),
            }
        };
        assert!(queue.burst().frames.is_empty());
        assert_eq!(queue.next(Duration::ZERO).unwrap(), QueueStatus::End);
        assert_eq!(queue.watermark(), Some(i64::MAX));
        assert_eq!(queue.statistics().received, Some(frames.len() as u64));
        (frames, error)
    }

    #[test]
    fn a_pcap_file_comes_out_whole() {
        let (_file, mut queue) = open(&pcap(&[60, 0, 1514]));
        assert_eq!(queue.interfaces().len(), 1);
        assert_eq!(queue.interfaces()[0].link_type, LinkType::ETHERNET);
        assert_eq!(queue.interfaces()[0].time_resolution_ns, 1000);
        assert_eq!(queue.interfaces()[0].name, "");
        assert_eq!(queue.event(), None);
        let (frames, error) = drain(queue.as_mut());
        assert_eq!(error, None);
        let lengths: Vec<_> = frames
            .iter()
            .map(|(meta, data)| (data.len(), meta.wire_len, meta.time_ns))
            .collect();
        assert_eq!(
            lengths,
            [
                (60, 64, 1_000_007_000),
                (0, 4, 2_000_007_000),
                (1514, 1518, 3_000_007_000)
            ]
        );
    }

    #[test]
    fn damage_ends_it_after_the_good_records() {
        let mut bytes = pcap(&[60, 60, 60]);
        bytes.truncate(bytes.len() - 10);
        let (file, mut queue) = open(&bytes);
        let (frames, error) = drain(queue.as_mut());
        assert_eq!(frames.len(), 2);
        let error = error.unwrap();
        let path = format!("{}: ", file.path().display());
        let place = format!(" {}", 24 + 2 * 76);
        assert!(
            error.starts_with(&path) && error.contains(&place),
            "{error}"
        );
    }

    #[test]
    fn interfaces_and_directions_of_pcapng() {
        let section = block(
            0x0a0d_0d0a,
            &words(&[0x1a2b_3c4d, 0x0000_0001, u32::MAX, u32::MAX]),
        );
        let ethernet = block(
            1,
            &words(&[1, 0, 0x0004_0002, u32::from_le_bytes(*b"eth0"), 0]),
        );
        let raw = block(1, &words(&[101, 96]));
        let (_file, mut queue) = open(
            &[
                section,
                ethernet,
                packet(0, 1),
                raw,
                packet(1, 2),
                packet(1, 0),
                packet(0, 3),
            ]
            .concat(),
        );
        assert_eq!(queue.interfaces()[0].name, "eth0");
        let known = queue.interfaces().len();
        let (frames, error) = drain(queue.as_mut());
        assert_eq!(error, None);
        let told: Vec<_> = frames
            .iter()
            .map(|(meta, _)| (meta.interface, meta.direction))
            .collect();
        assert_eq!(
            told,
            [
                (0, Direction::Inbound),
                (1, Direction::Outbound),
                (1, Direction::Unknown),
                (0, Direction::Unknown)
            ]
        );
        assert_eq!(queue.interfaces()[1].link_type, LinkType::RAW);
        assert_eq!(queue.interfaces()[1].snaplen, 96);
        let added = std::iter::from_fn(|| queue.event()).count();
        assert_eq!(
            known + added,
            2,
            "each interface is known at the opening or told by an event"
        );
    }

    #[test]
    fn what_is_no_file_is_told() {
        let open = |path: &Path| Box::new(FileSource::new(path)).open(1).unwrap_err();
        let directory = tempfile::tempdir().unwrap();
        let missing = open(&directory.path().join("missing.pcap"));
        assert!(
            matches!(&missing, SourceError::File { error, .. } if error.kind() == io::ErrorKind::NotFound)
        );
        assert!(matches!(open(directory.path()), SourceError::File { .. }));
        let text = directory.path().join("text");
        std::fs::write(&text, "no packets here, only words").unwrap();
        assert!(matches!(open(&text), SourceError::Damaged { .. }));
    }

    #[test]
    fn a_pipe_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        let writer = std::thread::spawn({
            let path = path.clone();
            move || std::fs::write(path, pcap(&[60; 1000])).unwrap()
        });
        let mut queue = Box::new(FileSource::new(&path)).open(1).unwrap().remove(0);
        let (frames, error) = drain(queue.as_mut());
        writer.join().unwrap();
        assert_eq!((frames.len(), error), (1000, None));
    }

    #[test]
    fn stop_ends_it() {
        let (_file, mut queue) = open(&pcap(&[60; 10_000]));
        assert_eq!(queue.next(Duration::ZERO).unwrap(), QueueStatus::Frames);
        let lent = queue.burst().frames.len() as u64;
        queue.stop();
        assert_eq!(queue.next(Duration::ZERO).unwrap(), QueueStatus::End);
        assert_eq!(queue.statistics().received, Some(lent));
    }
}
