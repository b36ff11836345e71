//! The other process of a test: this program again, with its role and the path of the ring in
//! environment variables. A normal run ignores the test `other_process`.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use retroscope_ring::{
    Attached, AttachedState, Backing, Buffer, CopyError, RegionWriter, Ring, RingConfig,
};

use super::pattern::{FRAME_BYTES_MAX, check, record};

const ROLE: &str = "RETROSCOPE_ATTACH_ROLE";
const RING: &str = "RETROSCOPE_ATTACH_RING";
/// A role ends after about this time.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn start(role: &str, ring: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "attach::role::other_process",
            "--ignored",
            "--nocapture",
            "--quiet",
        ])
        .env(ROLE, role)
        .env(RING, ring)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads the output up to a line that starts with `word`, and returns the rest of that line.
pub(crate) fn line(out: &mut BufReader<ChildStdout>, word: &str) -> String {
    for line in out.lines() {
        if let Some(rest) = line.unwrap().strip_prefix(word) {
            return rest.trim().to_owned();
        }
    }
    panic!("the other process ended before it said {word}");
}

#[test]
#[ignore = "a part in other tests"]
fn other_process() {
    let Some(ring) = env::var_os(RING).map(PathBuf::from) else {
        panic!("started by other tests of this file only");
    };
    match env::var(ROLE).as_deref() {
        Ok("reader") => read(&ring),
        Ok("writer") => write(&ring),
        other => panic!("unknown role {other:?}"),
    }
}

/// Copies and checks buckets until it has copied 300,000 packets and 20 open buckets, and the
/// writer has overwritten 20 buckets before or while they were copied.
fn read(ring: &Path) {
    let attached = Attached::open(ring).unwrap();
    let mut buffer = Buffer::new();
    let (mut packets, mut overwritten, mut open) = (0_u64, 0_u64, 0_u64);
    let start = Instant::now();
    let mut last = 0;
    while packets < 300_000 || overwritten < 20 || open < 20 {
        assert!(
            start.elapsed() < DEADLINE,
            "only {packets} packets, {overwritten} overwritten, {open} open"
        );
        for bucket in attached.buckets().unwrap() {
            assert_ne!(bucket.state, AttachedState::Damaged);
            if bucket.packets == 0 {
                continue;
            }
            match attached.copy_bucket(bucket.bucket, &mut buffer) {
                Ok(()) => {
                    assert!(buffer.len() as u64 >= bucket.packets, "a mark never falls");
                    let (min_ns, max_ns) = bucket.span_ns.unwrap();
                    let stamps = (bucket.first.cast_signed()..).take(buffer.len());
                    for (packet, stamp) in buffer.packets().zip(stamps) {
                        assert_eq!(packet.time_ns, stamp);
                        check(&packet);
                    }
                    assert!(min_ns == bucket.first.cast_signed() && max_ns >= min_ns);
                    packets += buffer.len() as u64;
                    open += u64::from(bucket.state == AttachedState::Open);
                }
                Err(CopyError::Overwritten(gone)) => {
                    assert_eq!(gone, bucket.bucket);
                    assert!(buffer.is_empty() && buffer.bucket().is_none());
                    overwritten += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let published = attached.producers().unwrap()[0].published;
        assert!(published >= last);
        last = published;
    }
    assert_eq!(attached.writer(), Ok(RegionWriter::Running));
    println!("\nchecked {packets}");
}

/// Makes a ring file, and writes until this process is killed, the file is removed, or [`DEADLINE`]
/// has passed.
fn write(path: &Path) {
    let config = RingConfig {
        backing: Backing::File(path.to_owned()),
        ..small()
    };
    let ring = Ring::new(&config, None).unwrap();
    let mut producer = ring.producer().unwrap();
    let mut frame = [0; FRAME_BYTES_MAX];
    let start = Instant::now();
    for stamp in 0.. {
        producer.store(&record(stamp, &mut frame)).unwrap();
        if stamp % 64 == 63 {
            producer.publish();
        }
        if stamp == 100_000 {
            println!("\nlapped");
        }
        if stamp % 1024 == 0 && (start.elapsed() > DEADLINE || !path.exists()) {
            break;
        }
    }
    let _ = fs::remove_file(path);
}

/// A ring of eight buckets, which about 13,000 records of `pattern.rs` fill.
pub(crate) fn small() -> RingConfig {
    RingConfig {
        bucket_bytes: Some(272 << 10),
        created_ns: 1_700_000_000_000_000_000,
        ..RingConfig::new(8 * (272 << 10), 1, 1)
    }
}
