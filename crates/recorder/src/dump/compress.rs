//! Compresses a complete capture file with zstd, in frames that can be read separately.
//!
//! Each frame has [`FRAME_BYTES`] of the file (the last frame may have less). After the frames
//! comes a table of their lengths (Zstandard Seekable Format), in a skippable frame that other
//! programs ignore. So a reader can read a part of the file from the frames that have the part.
//!
//! Compression starts when the dump is complete on disk, with its sidecar. So a dump is complete
//! without a wait for compression.

use std::{
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

use sha2::{Digest, Sha256};
use zstd::{bulk::Compressor, zstd_safe::CParameter};

use super::{
    disk::{DiskFile, file_changed_error, is_same_file},
    names::Directory,
    stream::{DigestTime, FinishedFile, hexadecimal},
};

/// Time that compression may take after a request to stop the recording: enough for some GB at
/// level 3, for some ten MB at level 19.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// Bytes of the file in a frame. A reader decompresses a whole frame for one packet.
const FRAME_BYTES: usize = 2 << 20;
/// After this many frames, the recorder lets the kernel drop the read pages from the page cache.
const FRAMES_KEPT: usize = 4;
/// Magic number of the skippable frame that has the table.
const TABLE_MAGIC: u32 = 0x184d_2a5e;
/// Magic number at the end of the table.
const TABLE_END_MAGIC: u32 = 0x8f92_eab1;

/// Compression level of zstd, from 1 to 19.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZstdLevel(i32);

impl ZstdLevel {
    /// `None`: outside of 1 to 19. Higher levels take more memory than a recorder should.
    #[must_use]
    pub fn new(level: i32) -> Option<Self> {
        (1..=19).contains(&level).then_some(Self(level))
    }
}

/// A compressed file that is being written.
struct ZstdFrames<'d> {
    file: &'d dyn DiskFile,
    bytes: u64,
    digest: Option<Sha256>,
    /// Compressed and plain bytes of each frame.
    table: Vec<[u32; 2]>,
}

/// Writes the finished file, compressed with zstd, to the new file `path`, and syncs `path`. The
/// finished file stays.
///
/// Deletes no dumps to make room for the copy. `tell` is called after each frame with the length of
/// the new file, bytes.
///
/// # Errors
/// An error of the system or of zstd; the finished file was changed or deleted; the recording is
/// aborted, or was asked to stop at least [`STOP_GRACE`] ago. A begun copy is removed if possible.
pub(super) fn compress(
    directory: &Directory,
    plain: &FinishedFile,
    path: PathBuf,
    level: ZstdLevel,
    tell: &mut dyn FnMut(u64),
) -> io::Result<FinishedFile> {
    check_urgency(directory)?;
    let disk = directory.disk();
    let file = disk.create(&path)?;
    let made = make(directory, plain, &*file, level, tell).and_then(|frames| {
        file.sync()?;
        Ok((frames, file.identity()?))
    });
    match made {
        Ok(((bytes, sha256), identity)) => Ok(FinishedFile {
            path,
            bytes,
            sha256,
            identity,
        }),
        Err(error) => {
            let _ = disk.remove(&path);
            Err(error)
        }
    }
}

fn check_urgency(directory: &Directory) -> io::Result<()> {
    if directory.is_urgent(STOP_GRACE) {
        return Err(io::Error::other("the recording ends"));
    }
    Ok(())
}

/// Compresses `plain` into `file`. Returns the length of `file` in bytes, and its digest.
fn make(
    directory: &Directory,
    plain: &FinishedFile,
    file: &dyn DiskFile,
    ZstdLevel(level): ZstdLevel,
    tell: &mut dyn FnMut(u64),
) -> io::Result<(u64, Option<String>)> {
    let from = directory.disk().open_to_read(&plain.path)?;
    if from.identity()? != plain.identity {
        return Err(file_changed_error());
    }
    let mut reader = from.reader();
    // Shows whether another process changed the file in place.
    let mut plain_digest = plain.sha256.is_some().then(Sha256::new);
    let mut frames = ZstdFrames {
        file,
        bytes: 0,
        digest: (directory.digests != DigestTime::Never).then(Sha256::new),
        table: Vec::new(),
    };
    let mut buffer = Vec::with_capacity(FRAME_BYTES);
    let mut compressor = Compressor::new(level)?;
    compressor.set_parameter(CParameter::ChecksumFlag(true))?;
    let mut compressed = Vec::new();
    for read in 1_usize.. {
        buffer.clear();
        (&mut reader)
            .take(FRAME_BYTES as u64)
            .read_to_end(&mut buffer)?;
        check_urgency(directory)?;
        if buffer.is_empty() {
            break;
        }
        // The open descriptor would keep the disk space of a deleted dump, so a deletion ends
        // compression.
        if !is_same_file(directory.disk(), &plain.path, plain.identity)? {
            return Err(file_changed_error());
        }
        plain_digest.iter_mut().for_each(|it| it.update(&buffer));
        compressed.clear();
        compressed.reserve(zstd::zstd_safe::compress_bound(buffer.len()));
        compressor.compress_to_buffer(&buffer, &mut compressed)?;
        frames.push(&compressed, buffer.len())?;
        tell(frames.bytes);
        if read.is_multiple_of(FRAMES_KEPT) {
            from.drop_cached_pages();
        }
    }
    from.drop_cached_pages();
    let content = frames.table.iter().map(|[_, content]| u64::from(*content));
    if content.sum::<u64>() != plain.bytes || plain_digest.map(hexadecimal) != plain.sha256 {
        return Err(file_changed_error());
    }
    frames.end()
}

impl ZstdFrames<'_> {
    /// Writes a frame that holds `content` bytes of the plain file.
    fn push(&mut self, frame: &[u8], content: usize) -> io::Result<()> {
        let bytes = [frame.len(), content].map(|it| u32::try_from(it).map_err(io::Error::other));
        let [frame_bytes, content_bytes] = bytes;
        self.table.push([frame_bytes?, content_bytes?]);
        self.write(frame)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.bytes)?;
        self.bytes += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        Ok(())
    }

    fn end(mut self) -> io::Result<(u64, Option<String>)> {
        let count = u32::try_from(self.table.len()).map_err(io::Error::other)?;
        let entries = self.table.iter().flatten();
        let entries = entries.flat_map(|bytes| bytes.to_le_bytes());
        // The table has no checksums: each frame has its own.
        let end = (count.to_le_bytes().into_iter())
            .chain([0])
            .chain(TABLE_END_MAGIC.to_le_bytes());
        let content: Vec<u8> = entries.chain(end).collect();
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let header = [TABLE_MAGIC, length].map(u32::to_le_bytes).concat();
        self.write(&[header, content].concat())?;
        Ok((self.bytes, self.digest.map(hexadecimal)))
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, path::Path, sync::Arc};

    use retroscope_packet::LinkType;

    use super::*;
    use crate::{
        control::progress::StopControl,
        dump::{
            block::Block,
            disk::Disk,
            encode::DumpFormat,
            output::CaptureOutput,
            stream::{CaptureStream, FileDigests, Heading},
        },
        tests::fake_disk::FakeDisk,
    };

    const PART: &str = "dumps/it.pcapng.part";
    const ZST: &str = "dumps/it.pcapng.zst.part";

    /// A file with `bytes` random bytes from 0 to 3 after its header.
    fn finished(directory: &Directory, bytes: usize) -> FinishedFile {
        let heading = Heading {
            headline: "a dump".to_owned(),
            recording: None,
            expected: "verdict: complete".to_owned(),
        };
        let mut output =
            CaptureOutput::new(DumpFormat::PcapNg, LinkType::ETHERNET, &heading).unwrap();
        let first = output.take(Block::default());
        let expected = &heading.expected;
        let mut stream = CaptureStream::create(directory, PART.into(), &first).unwrap();
        let body: Vec<u8> = (0..bytes)
            .map(|_| fastrand::u8(..) & fastrand::u8(..) & 3)
            .collect();
        let mut piece = output.take(Block::default());
        piece.block.write_all(&body).unwrap();
        stream.write(directory, &piece).unwrap();
        let mut digests = FileDigests::new(directory.digests, expected);
        digests.update(&first);
        digests.update(&piece);
        stream
            .finish(directory, "verdict: complete", &mut digests)
            .unwrap()
    }

    /// The plain bytes of each frame of the table. Each frame is decompressed alone.
    fn by_frames(file: &[u8]) -> Vec<Vec<u8>> {
        let number = |from: usize| u32::from_le_bytes(*file[from..].first_chunk().unwrap());
        let end = file.len();
        assert_eq!(number(end - 4), TABLE_END_MAGIC);
        let count = number(end - 9) as usize;
        let table = end - 9 - 8 * count;
        assert_eq!(number(table - 8), TABLE_MAGIC);
        assert_eq!(number(table - 4) as usize, end - table);
        let mut from = 0;
        let frames = (0..count).map(|frame| {
            let [bytes, content] = [0, 4].map(|at| number(table + 8 * frame + at) as usize);
            let decoded = zstd::stream::decode_all(&file[from..from + bytes]).unwrap();
            assert_eq!(decoded.len(), content);
            from += bytes;
            decoded
        });
        let frames = frames.collect();
        assert_eq!(from, table - 8);
        frames
    }

    #[test]
    fn frames_have_the_file_whole_and_one_by_one() {
        for bytes in [0, 1, 5000, FRAME_BYTES, 2 * FRAME_BYTES + 17] {
            let disk = FakeDisk::default();
            let directory = Directory::on(
                Arc::new(disk.clone()),
                Path::new("dumps"),
                DumpFormat::PcapNg,
            )
            .with_digests(DigestTime::AsWritten);
            let plain = finished(&directory, bytes);
            let expected = disk.read(Path::new(PART)).unwrap();
            let level = ZstdLevel::new(3).unwrap();
            let mut made = compress(&directory, &plain, ZST.into(), level, &mut |_| ()).unwrap();
            assert_eq!(disk.names(), [PART, ZST].map(Path::new));
            made.digest(&directory);
            let file = disk.read(Path::new(ZST)).unwrap();
            assert!(zstd::stream::decode_all(&file[..]).unwrap() == expected);
            let frames = by_frames(&file);
            assert!(frames.concat() == expected);
            assert!(frames.iter().all(|frame| frame.len() <= FRAME_BYTES));
            assert_eq!(made.bytes, file.len() as u64);
            let digest = hexadecimal(Sha256::new_with_prefix(&file));
            assert_eq!(made.sha256.as_ref(), Some(&digest));
        }
    }

    #[test]
    fn what_is_not_as_it_was_written_is_not_compressed() {
        let disk = FakeDisk::default();
        let directory = Directory::on(
            Arc::new(disk.clone()),
            Path::new("dumps"),
            DumpFormat::PcapNg,
        );
        let plain = finished(&directory, 5000);
        let level = ZstdLevel::new(3).unwrap();
        let file = disk.open(Path::new(PART)).unwrap();
        file.set_len(3000).unwrap();
        let error = compress(&directory, &plain, ZST.into(), level, &mut |_| ()).unwrap_err();
        assert_eq!(error.to_string(), file_changed_error().to_string());
        disk.remove(Path::new(PART)).unwrap();
        disk.create(Path::new(PART)).unwrap();
        assert!(compress(&directory, &plain, ZST.into(), level, &mut |_| ()).is_err());
        assert_eq!(disk.names(), [Path::new(PART)]);
    }

    /// The length and the inode stay, so only the digest shows the change.
    #[test]
    fn a_file_that_is_changed_in_place_is_not_compressed() {
        for offset in [40, 5000] {
            let disk = FakeDisk::default();
            let directory = Directory::on(
                Arc::new(disk.clone()),
                Path::new("dumps"),
                DumpFormat::PcapNg,
            )
            .with_digests(DigestTime::AsWritten);
            let plain = finished(&directory, 5000);
            let file = disk.open(Path::new(PART)).unwrap();
            file.write_all_at(&[0xff], offset).unwrap();
            let level = ZstdLevel::new(3).unwrap();
            let made = compress(&directory, &plain, ZST.into(), level, &mut |_| ());
            let error = made.unwrap_err().to_string();
            assert_eq!(error, file_changed_error().to_string(), "{offset}");
            assert_eq!(disk.names(), [Path::new(PART)]);
        }
    }

    #[test]
    fn compression_ends_when_its_file_is_deleted() {
        let disk = FakeDisk::default();
        let directory = Directory::on(
            Arc::new(disk.clone()),
            Path::new("dumps"),
            DumpFormat::PcapNg,
        );
        let plain = finished(&directory, 5 * FRAME_BYTES);
        let level = ZstdLevel::new(1).unwrap();
        let mut frames = 0;
        let made = compress(&directory, &plain, ZST.into(), level, &mut |_| {
            frames += 1;
            if frames == 2 {
                disk.remove(Path::new(PART)).unwrap();
            }
        });
        assert!(made.is_err());
        assert_eq!((frames, disk.names()), (2, Vec::new()));
    }

    #[test]
    fn without_room_the_file_stays_as_it_is() {
        let disk = FakeDisk::default();
        let directory = Directory::on(
            Arc::new(disk.clone()),
            Path::new("dumps"),
            DumpFormat::PcapNg,
        );
        let plain = finished(&directory, 3 * FRAME_BYTES);
        let expected = disk.read(Path::new(PART)).unwrap();
        disk.set_capacity(expected.len() + 5000);
        let level = ZstdLevel::new(1).unwrap();
        let error = compress(&directory, &plain, ZST.into(), level, &mut |_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.names(), [Path::new(PART)]);
        assert!(disk.read(&plain.path).unwrap() == expected);
    }

    #[test]
    fn who_ends_the_recording_does_not_wait_for_compression() {
        let disk = FakeDisk::default();
        let control = Arc::<StopControl>::default();
        let directory = Directory::on(
            Arc::new(disk.clone()),
            Path::new("dumps"),
            DumpFormat::PcapNg,
        )
        .ended_by(&control);
        let plain = finished(&directory, 5 * FRAME_BYTES);
        let expected = disk.read(Path::new(PART)).unwrap();
        let level = ZstdLevel::new(1).unwrap();
        control.ask_to_stop();
        assert!(!control.is_urgent(STOP_GRACE) && control.is_urgent(Duration::ZERO));
        let mut frames = 0;
        let error = compress(&directory, &plain, ZST.into(), level, &mut |_| {
            frames += 1;
            if frames == 2 {
                control.abort();
            }
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("recording ends"), "{error}");
        assert_eq!((frames, disk.names()), (2, vec![PART.into()]));
        assert!(disk.read(&plain.path).unwrap() == expected);
    }

    #[test]
    fn levels() {
        let levels = [0, 1, 19, 20, -1].map(|level| ZstdLevel::new(level).is_some());
        assert_eq!(levels, [false, true, true, false, false]);
    }
}
