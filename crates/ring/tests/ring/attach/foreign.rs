//! Files that are not rings, or damaged rings: the result is an error or sound data, never a crash.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use retroscope_ring::{
    AttachError, Attached, AttachedState, Backing, Buffer, CopyError, InterfaceEntry, Ring,
    RingConfig,
};
use tempfile::TempDir;

use super::{
    pattern::{FRAME_BYTES_MAX, record},
    role::small,
};

/// The file of a closed ring, with 40 packets in each of two buckets.
fn ring_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    let config = RingConfig {
        backing: Backing::File(path.clone()),
        producers: 2,
        readers: 0,
        ..small()
    };
    let ring = Ring::new(&config, None).unwrap();
    let entry = InterfaceEntry {
        name: "eth0".to_owned(),
        link_type: 1,
        snaplen: 0,
        time_domain: 0,
        clock: 0,
    };
    ring.add_interface(entry).unwrap();
    let mut frame = [0; FRAME_BYTES_MAX];
    for mut producer in [ring.producer().unwrap(), ring.producer().unwrap()] {
        for stamp in 0..40 {
            producer.store(&record(stamp, &mut frame)).unwrap();
        }
    }
    (directory, path)
}

/// Reads headers and all buckets of a file. Returns the number of copied packets that are not
/// empty, or `None` if the file is refused.
fn use_all(path: &Path, buffer: &mut Buffer) -> Option<usize> {
    let attached = Attached::open(path).ok()?;
    let info = attached.info();
    assert!(info.bytes <= fs::metadata(path).unwrap().len());
    attached.writer().unwrap();
    attached.interfaces().unwrap();
    attached.producers().unwrap();
    let mut packets = 0;
    for bucket in attached.buckets().unwrap() {
        if attached.copy_bucket(bucket.bucket, buffer).is_ok() {
            match bucket.state {
                AttachedState::Open | AttachedState::Closed => {
                    assert_eq!(buffer.len() as u64, bucket.packets);
                }
                AttachedState::Damaged => {} // wrong producer or times; the records are sound
                state => panic!("copied from a bucket that is {state:?}"),
            }
            packets += buffer
                .packets()
                .map(|packet| packet.data.len().min(1))
                .sum::<usize>();
        }
    }
    Some(packets)
}

#[test]
fn every_byte_of_the_headers_may_be_wrong() {
    let (_directory, path) = ring_file();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut buffer = Buffer::new();
    let good = use_all(&path, &mut buffer).unwrap();
    assert!(good > 60);
    let (mut refused, mut taken) = (0, 0);
    // Offsets of the region's header, its state, producers, buckets, and four slots for clock
    // steps.
    for offset in (0..256)
        .chain(1024..1152)
        .chain(4096..4096 + 10 * 128 + 128)
    {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        for flip in [0x01, 0x80, 0xff] {
            file.write_all_at(&[byte[0] ^ flip], offset).unwrap();
            match use_all(&path, &mut buffer) {
                None => refused += 1,
                Some(_) => taken += 1,
            }
        }
        file.write_all_at(&byte, offset).unwrap();
    }
    assert!(refused > 100 && taken > 1000, "{refused} {taken}");
    assert_eq!(use_all(&path, &mut buffer), Some(good), "all put back");
}

#[test]
fn every_byte_of_a_bucket_may_be_wrong() {
    let (_directory, path) = ring_file();
    let attached = Attached::open(&path).unwrap();
    let bucket = attached.buckets().unwrap()[0];
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut buffer = Buffer::new();
    // Bucket 0 starts at 2 MiB; its descriptors are its last bytes.
    let (start, end) = (2 << 20, (2 << 20) + (272 << 10));
    let mut damaged = 0;
    for offset in (start..start + 512).chain(end - 40 * 16..end) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 0xff], offset).unwrap();
        match attached.copy_bucket(bucket.bucket, &mut buffer) {
            Ok(()) => assert_eq!(buffer.packets().count(), 40),
            Err(CopyError::Damaged { .. }) => damaged += 1,
            Err(error) => panic!("{error}"),
        }
        file.write_all_at(&byte, offset).unwrap();
    }
    assert!(damaged > 40, "{damaged}");
}

#[test]
fn garbage_is_not_a_ring() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("garbage");
    let mut random = fastrand::Rng::with_seed(3);
    let mut buffer = Buffer::new();
    let mut known = 0;
    for round in 0..300 {
        let mut bytes: Vec<u8> = (0..random.usize(0..20_000))
            .map(|_| random.u8(..))
            .collect();
        // Nearly half of the files start like a ring.
        if round % 2 == 0 && bytes.len() > 2048 {
            bytes[..8].copy_from_slice(&u64::from_be_bytes(*b"retroQQ\x01").to_ne_bytes());
            bytes[8..16].copy_from_slice(&4_u64.to_ne_bytes());
            for word in 2..16 {
                let value = random.u64(..) >> random.u32(40..64);
                bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_ne_bytes());
            }
            known += 1;
        }
        fs::write(&path, &bytes).unwrap();
        assert_eq!(use_all(&path, &mut buffer), None, "round {round}");
    }
    assert!(known > 100);
}

#[test]
fn what_is_wrong_is_said() {
    let (directory, path) = ring_file();
    let error = |path: &Path| Attached::open(path).unwrap_err();
    let missing = directory.path().join("missing");
    assert!(matches!(
        error(&missing),
        AttachError::System { call: "open", .. }
    ));
    assert!(matches!(error(directory.path()), AttachError::NotAFile(_)));
    assert!(matches!(
        error(Path::new("/dev/zero")),
        AttachError::NotAFile(_)
    ));
    let length = fs::metadata(&path).unwrap().len();
    let file = File::options().write(true).open(&path).unwrap();
    for short in [length - 1, length / 2, 4096, 4095, 1, 0] {
        file.set_len(short).unwrap();
        assert!(
            matches!(error(&path), AttachError::Truncated { .. }),
            "{short}"
        );
    }
}

#[test]
fn a_file_that_shrinks_later_is_noticed() {
    let (_directory, path) = ring_file();
    let attached = Attached::open(&path).unwrap();
    let bucket = attached.buckets().unwrap()[0].bucket;
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(attached.buckets(), Err(CopyError::Shrunk));
    assert_eq!(attached.interfaces(), Err(CopyError::Shrunk));
    assert_eq!(attached.producers(), Err(CopyError::Shrunk));
    assert_eq!(attached.writer(), Err(CopyError::Shrunk));
    let copied = attached.copy_bucket(bucket, &mut Buffer::new());
    assert_eq!(copied, Err(CopyError::Shrunk));
}
