//! Readers copy buckets while a writer stores at full speed, or after a writer was killed.

use std::{
    io::{BufReader, Read},
    path::Path,
    process::Child,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use retroscope_ring::{
    Attached, AttachedState, Backing, Buffer, CopyError, RegionWriter, Ring, RingConfig,
};

use super::{
    pattern::{FRAME_BYTES_MAX, check, record},
    role::{line, small, start},
};

/// Writes while the process that `reader` starts reads. Returns the number of packets that this
/// process checked.
pub(super) fn overwrite_under_a_reader(
    backing: Backing,
    reader: impl FnOnce(&Path) -> Child,
) -> u64 {
    let config = RingConfig { backing, ..small() };
    let ring = Ring::new(&config, None).unwrap();
    let mut producer = ring.producer().unwrap();
    let mut child = reader(&ring.path().unwrap());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut frame = [0; FRAME_BYTES_MAX];
            let mut stamp = 0;
            while !done.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    producer.store(&record(stamp, &mut frame)).unwrap();
                    stamp += 1;
                }
                producer.publish();
            }
        });
        let mut said = String::new();
        let read = child.stdout.take().unwrap().read_to_string(&mut said);
        let status = child.wait();
        done.store(true, Ordering::Relaxed);
        // ThreadSanitizer sees joins, but not how a scope ends.
        writing.join().unwrap();
        read.unwrap();
        assert!(status.unwrap().success(), "the reader failed: {said}");
        let checked = said.lines().find_map(|line| line.strip_prefix("checked "));
        checked.expect("it says how many").parse().unwrap()
    })
}

fn this_crate(ring: &Path) -> Child {
    start("reader", ring)
}

#[test]
fn another_process_reads_a_memfd_under_a_writer() {
    assert!(overwrite_under_a_reader(Backing::Memfd, this_crate) >= 300_000);
}

#[test]
fn another_process_reads_a_file_under_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    assert!(overwrite_under_a_reader(Backing::File(path), this_crate) >= 300_000);
}

#[test]
fn a_killed_writer_leaves_what_it_had_published() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ring");
    let mut child = start("writer", &path);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    line(&mut out, "lapped");
    let attached = Attached::open(&path).unwrap();
    assert_eq!(attached.writer(), Ok(RegionWriter::Running));
    assert_eq!(attached.info().process, u64::from(child.id()));
    child.kill().unwrap();
    child.wait().unwrap();

    for attached in [attached, Attached::open(&path).unwrap()] {
        assert_eq!(attached.writer(), Ok(RegionWriter::Killed));
        let published = attached.producers().unwrap()[0].published;
        assert!(published >= 99_000);
        let mut buffer = Buffer::new();
        let mut readable = Vec::new();
        for bucket in attached.buckets().unwrap() {
            if bucket.packets > 0 {
                attached.copy_bucket(bucket.bucket, &mut buffer).unwrap();
                assert_eq!(buffer.len() as u64, bucket.packets);
                buffer.packets().for_each(|packet| check(&packet));
                readable.push((bucket.first, bucket.first + bucket.packets));
            }
        }
        readable.sort_unstable();
        assert!(readable.windows(2).all(|pair| pair[0].1 == pair[1].0));
        assert!(readable.len() >= 7, "{}", readable.len());
        let end = readable.last().unwrap().1;
        // The writer may have been killed inside a publication, which stores the bucket's mark
        // before the producer's count.
        assert!(
            (published..=published + 64).contains(&end),
            "{end} of {published}"
        );
    }

    let config = RingConfig {
        backing: Backing::File(path.clone()),
        ..small()
    };
    let ring = Ring::new(&config, None).unwrap();
    let attached = Attached::open(&path).unwrap();
    assert_eq!(attached.writer(), Ok(RegionWriter::Running));
    let free = |bucket: &retroscope_ring::AttachedBucket| bucket.state == AttachedState::Free;
    assert!(attached.buckets().unwrap().iter().all(free));
    drop(ring);
    assert_eq!(attached.writer(), Ok(RegionWriter::Ended));
}

/// ThreadSanitizer reports a copy that loads bytes of new records, which a producer stores without
/// atomics.
#[test]
fn an_open_bucket_is_copied_while_it_is_written() {
    let ring = Ring::new(&small(), None).unwrap();
    let mut producer = ring.producer().unwrap();
    let attached = ring.attached();
    let done = AtomicBool::new(false);
    let mut copied = 0;
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut frame = [0; FRAME_BYTES_MAX];
            let mut stamp = 0;
            while !done.load(Ordering::Relaxed) {
                producer.store(&record(stamp, &mut frame)).unwrap();
                producer.publish();
                stamp += 1;
            }
        });
        let mut buffer = Buffer::new();
        while copied < 2_000 {
            for bucket in attached.buckets().unwrap() {
                if bucket.state == AttachedState::Open
                    && attached.copy_bucket(bucket.bucket, &mut buffer).is_ok()
                {
                    buffer.packets().for_each(|packet| check(&packet));
                    copied += 1;
                }
            }
        }
        done.store(true, Ordering::Relaxed);
        // ThreadSanitizer sees joins, but not how a scope ends.
        writing.join().unwrap();
    });
}

#[test]
fn a_name_of_a_bucket_dies_with_its_contents() {
    let ring = Ring::new(
        &RingConfig {
            backing: Backing::Memfd,
            ..small()
        },
        None,
    )
    .unwrap();
    let attached = Attached::open(&ring.path().unwrap()).unwrap();
    let mut producer = ring.producer().unwrap();
    let mut frame = [0; FRAME_BYTES_MAX];
    let mut buffer = Buffer::new();
    producer.store(&record(0, &mut frame)).unwrap();
    assert_eq!(attached.buckets().unwrap()[0].packets, 0, "not published");
    producer.publish();
    let first = attached.buckets().unwrap()[0];
    assert_eq!((first.state, first.packets), (AttachedState::Open, 1));
    attached.copy_bucket(first.bucket, &mut buffer).unwrap();
    assert_eq!(buffer.bucket(), Some(first.bucket));
    let mut stamp = 1;
    while ring.statistics().evicted_packets == 0 {
        producer.store(&record(stamp, &mut frame)).unwrap();
        stamp += 1;
    }
    let gone = Err(CopyError::Overwritten(first.bucket));
    assert_eq!(attached.copy_bucket(first.bucket, &mut buffer), gone);
    assert!(buffer.is_empty() && buffer.bucket().is_none());
    let second = attached.buckets().unwrap()[1];
    assert_eq!((second.state, second.sequence), (AttachedState::Closed, 1));
    attached.copy_bucket(second.bucket, &mut buffer).unwrap();
    buffer.packets().for_each(|packet| check(&packet));
}

/// [`Ring::attached`] also works with anonymous memory, which no other process can open.
#[test]
#[cfg_attr(
    retroscope_sanitize = "thread",
    ignore = "who copies a bucket that is overwritten reads what is being written, and finds out behind it"
)]
fn a_ring_of_this_process_is_read_while_it_goes_around() {
    let config = RingConfig {
        backing: Backing::Anonymous,
        producers: 1,
        readers: 0,
        ..small()
    };
    let ring = Ring::new(&config, None).unwrap();
    let attached = ring.attached();
    assert_eq!(attached.info().buckets, ring.buckets());
    assert_eq!(attached.writer().unwrap(), RegionWriter::Running);
    let mut producer = ring.producer().unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut frame = [0; FRAME_BYTES_MAX];
            for stamp in 0..if cfg!(debug_assertions) {
                100_000
            } else {
                1_000_000
            } {
                producer.store(&record(stamp, &mut frame)).unwrap();
            }
            is_over.store(true, Ordering::SeqCst);
        });
        let mut buffer = Buffer::new();
        while !is_over.load(Ordering::SeqCst) {
            for bucket in attached.buckets().unwrap() {
                match attached.copy_bucket(bucket.bucket, &mut buffer) {
                    Ok(()) => {
                        for packet in buffer.packets() {
                            check(&packet);
                        }
                    }
                    Err(CopyError::Overwritten(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    drop(ring);
    assert!(attached.buckets().is_ok(), "it keeps the memory");
}
