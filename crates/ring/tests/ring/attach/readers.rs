//! The readers in C and Python (`readers/`) must show the records that the ring has. From a damaged
//! file they must copy the same records as this crate.
#![expect(clippy::print_stderr, reason = "says what was skipped")]

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use retroscope_ring::{
    Attached, AttachedState, Backing, Buffer, InterfaceEntry, Packet, Record, Ring, RingConfig,
    Step,
};
use tempfile::TempDir;

use super::{
    live::overwrite_under_a_reader,
    pattern::{FRAME_BYTES_MAX, check, record},
    role::small,
};

const DEADLINE: Duration = Duration::from_secs(120);
/// Minimum number of packets that a reader of a live ring must show.
const SHOWN: u64 = 20_000;

fn readers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("readers")
}

/// The folder of the C and Python programs of these tests.
fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ring/attach")
}

/// Compiles a C program, with sanitizers if the compiler has sanitizers. `None` after a line with
/// SKIP: no C compiler.
fn compiled(source: &Path, directory: &TempDir) -> Option<Command> {
    let out = directory.path().join("program");
    let compile = |sanitize: &[&str]| {
        Command::new("cc")
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
            .args(sanitize)
            .arg("-I")
            .arg(readers())
            .args([Path::new("-o"), &out, source])
            .output()
    };
    let sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    match compile(&sanitize) {
        Err(error) => {
            eprintln!("SKIP: the reader of rings in C: no cc: {error}");
            return None;
        }
        Ok(done) if done.status.success() => {}
        Ok(_) => {
            eprintln!("SKIP: the reader of rings in C has no sanitizers here");
            let done = compile(&[]).unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{said}");
        }
    }
    let mut program = Command::new(out);
    // The leak check needs ptrace(2), which not every environment permits.
    program.env("ASAN_OPTIONS", "detect_leaks=0");
    Some(program)
}

/// A Python program. `None` after a line with SKIP: no Python.
fn python(source: &Path) -> Option<Command> {
    let mut program = Command::new("python3");
    if let Err(error) = program.arg("--version").output() {
        eprintln!("SKIP: the reader of rings in Python: no python3: {error}");
        return None;
    }
    let mut program = Command::new("python3");
    program.arg("-B").arg(source);
    Some(program)
}

/// The programs that show packets, if this machine has a C compiler and Python.
fn shows(directory: &TempDir) -> impl Iterator<Item = Command> {
    let c = compiled(&readers().join("ring_show.c"), directory);
    c.into_iter()
        .chain(python(&readers().join("retroscope_ring.py")))
}

/// The line that the readers in C and Python print for a packet.
fn line(producer: usize, number: u64, stamp_ns: i64, packet: &Packet<'_>) -> String {
    use std::fmt::Write as _;
    let mut line = format!(
        "{producer} {number} {stamp_ns} {} {} {} {} {} ",
        packet.wire_len,
        packet.interface,
        packet.direction,
        u8::from(packet.tag_restored),
        packet.shard
    );
    for byte in packet.data {
        write!(line, "{byte:02x}").unwrap();
    }
    line
}

/// Checks a line about a packet of [`record`]. Returns the packet's number, which is its stamp.
fn check_line(text: &str) -> u64 {
    let fields: Vec<&str> = text.split(' ').collect();
    let [
        _,
        number,
        stamp_ns,
        wire_len,
        interface,
        direction,
        tag,
        shard,
        hex,
    ] = fields[..]
    else {
        panic!("{text}");
    };
    assert_eq!(number, stamp_ns);
    let data: Vec<u8> = (0..hex.len() / 2)
        .map(|byte| u8::from_str_radix(&hex[byte * 2..byte * 2 + 2], 16).unwrap())
        .collect();
    check(&Packet {
        time_ns: stamp_ns.parse().unwrap(),
        wire_len: wire_len.parse().unwrap(),
        interface: interface.parse().unwrap(),
        direction: direction.parse().unwrap(),
        tag_restored: tag != "0",
        shard: shard.parse().unwrap(),
        data: &data,
    });
    number.parse().unwrap()
}

/// Lets a reader follow a ring that is overwritten meanwhile. The reader must count the packets of
/// every gap as missed.
fn follow_a_live_ring(mut show: Command, backing: Backing) {
    let config = RingConfig { backing, ..small() };
    let ring = Ring::new(&config, None).unwrap();
    let mut producer = ring.producer().unwrap();
    let path = ring.path().unwrap();
    let child = show
        .arg("--follow")
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_over = AtomicBool::new(false);
    let (mut next, mut shown, mut missed) = (None, 0, 0);
    let mut take = |text: String| {
        let number = check_line(&text);
        missed += number - next.unwrap_or(number);
        next = Some(number + 1);
        shown += 1;
        (shown, missed)
    };
    let stored = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut frame = [0; FRAME_BYTES_MAX];
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    let stamp = producer.stored().cast_signed();
                    producer.store(&record(stamp, &mut frame)).unwrap();
                }
                producer.publish();
            }
            let stored = producer.stored();
            drop(producer);
            stored
        });
        let start = Instant::now();
        for text in lines.by_ref() {
            let (shown, missed) = take(text.unwrap());
            if shown >= SHOWN && missed > 0 || start.elapsed() > DEADLINE {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        // ThreadSanitizer sees joins, but not how a scope ends.
        writing.join().unwrap()
    });
    drop(ring);
    lines.for_each(|text| {
        take(text.unwrap());
    });
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(
        said.trim(),
        format!("{shown} packets, {missed} missed, 0 damaged; the writer ended")
    );
    assert!(shown >= SHOWN && missed > 0, "{said}");
    assert_eq!(next, Some(stored), "the last packets");
}

#[test]
fn readers_in_other_languages_follow_a_live_ring() {
    let directory = tempfile::tempdir().unwrap();
    let file = Backing::File(directory.path().join("ring"));
    for (show, backing) in shows(&directory).zip([Backing::Memfd, file]) {
        follow_a_live_ring(show, backing);
    }
}

#[test]
fn a_reader_in_c_copies_no_bucket_that_is_overwritten_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    if let Some(mut race) = compiled(&here().join("race.c"), &directory) {
        let reader = |ring: &Path| race.arg(ring).stdout(Stdio::piped()).spawn().unwrap();
        assert!(overwrite_under_a_reader(Backing::Memfd, reader) >= 300_000);
    }
}

/// The file of a closed ring with two producers, two interfaces, steps of a clock, and every form
/// of descriptor.
fn varied_file(directory: &TempDir, records: i64) -> PathBuf {
    let path = directory.path().join("varied");
    let config = RingConfig {
        backing: Backing::File(path.clone()),
        producers: 2,
        readers: 0,
        ..small()
    };
    let ring = Ring::new(&config, None).unwrap();
    for (name, clock) in [("eth0".to_owned(), 0), ("x".repeat(60), 7)] {
        let entry = InterfaceEntry {
            name,
            link_type: 1,
            snaplen: 96,
            time_domain: 3,
            clock,
        };
        ring.add_interface(entry).unwrap();
    }
    let mut frame = [0; FRAME_BYTES_MAX];
    let large = vec![7; 150_000];
    for mut producer in [ring.producer().unwrap(), ring.producer().unwrap()] {
        for stamp in 0..records {
            if stamp == 60 || stamp == 80 {
                assert!(producer.step(7, -5 * stamp));
            }
            let mut record = record(stamp, &mut frame);
            // A time that is far off, and a large number of an interface, need the extended form.
            match stamp {
                50 => record.time_ns = i64::MIN,
                51 => record.interface = 300,
                52 => record.tag_restored = true,
                53 => record = Record::whole(-1, 0, &[]),
                // The first record is large, so that the offsets of later records are large.
                0 => record.parts[1] = &large,
                _ => {}
            }
            producer.store(&record).unwrap();
        }
    }
    path
}

#[test]
fn readers_in_other_languages_agree_with_this_crate() {
    let directory = tempfile::tempdir().unwrap();
    let path = varied_file(&directory, 4000);
    let attached = Attached::open(&path).unwrap();
    let (interfaces, _) = attached.interfaces().unwrap();
    let mut buffer = Buffer::new();
    let mut expected = Vec::new();
    for bucket in attached.buckets().unwrap() {
        if bucket.packets > 0 {
            attached.copy_bucket(bucket.bucket, &mut buffer).unwrap();
            let steps = attached.steps().unwrap();
            assert_eq!(steps.len(), 4);
            for (packet, number) in buffer.packets().zip(bucket.first..) {
                let clock = interfaces
                    .get(usize::from(packet.interface))
                    .map_or(0, |it| it.clock);
                let stamp_ns =
                    Step::stamp_ns(&steps, bucket.producer, clock, number, packet.time_ns);
                expected.push(line(bucket.producer, number, stamp_ns, &packet));
            }
        }
    }
    assert_eq!(expected.len(), 8000);
    assert!(
        expected.iter().any(|line| line.starts_with("1 64 -236 ")),
        "64 minus 300"
    );
    for mut show in shows(&directory) {
        let done = show.arg(&path).output().unwrap();
        let shown = String::from_utf8(done.stdout).unwrap();
        let mut shown: Vec<&str> = shown.lines().collect();
        // The readers show a bucket of each producer in turn. `expected` is ordered by producer.
        shown.sort_by_key(|line| line.as_bytes()[0]);
        assert!(shown.iter().eq(&expected), "{show:?}");
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(
            said.trim(),
            "8000 packets, 0 missed, 0 damaged; the writer ended"
        );
    }
    fs::write(&path, "no ring").unwrap();
    for mut show in shows(&directory) {
        let done = show.arg(&path).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert!(done.stdout.is_empty());
    }
}

#[test]
fn readers_in_other_languages_pass_many_damaged_buckets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged");
    let bucket_bytes = 272 << 10;
    let config = RingConfig {
        backing: Backing::File(path.clone()),
        bucket_bytes: Some(bucket_bytes),
        ..RingConfig::new(100 * bucket_bytes as u64, 1, 0)
    };
    let ring = Ring::new(&config, None).unwrap();
    let mut producer = ring.producer().unwrap();
    // One record fills more than half a bucket.
    let large = vec![7; 150_000];
    for stamp in 0..82 {
        producer.store(&Record::whole(stamp, 0, &large)).unwrap();
    }
    drop(producer);
    drop(ring);
    let file = File::options().write(true).open(&path).unwrap();
    for bucket in Attached::open(&path).unwrap().buckets().unwrap() {
        if bucket.packets > 0 && bucket.first < 80 {
            let end = (2 << 20) + (u64::from(bucket.bucket.index) + 1) * bucket_bytes as u64;
            file.write_all_at(&[0xff; 16], end - 16).unwrap();
        }
    }
    for mut show in shows(&directory) {
        let done = show.arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(
            said.trim(),
            "2 packets, 0 missed, 80 damaged; the writer ended"
        );
    }
}

/// The number of copied packets of a ring file and a sum over their fields, or `refused`, as in
/// `flip.c` and `flip.py`.
fn copied(path: &Path, buffer: &mut Buffer) -> String {
    let Ok(attached) = Attached::open(path) else {
        return "refused".to_owned();
    };
    let (mut packets, mut sum) = (0, 0_u64);
    for bucket in attached.buckets().unwrap() {
        let is_used = matches!(bucket.state, AttachedState::Open | AttachedState::Closed);
        if !is_used || attached.copy_bucket(bucket.bucket, buffer).is_err() {
            continue;
        }
        for (packet, number) in buffer.packets().zip(bucket.first..) {
            packets += 1;
            let fields = [
                number,
                packet.time_ns.cast_unsigned(),
                packet.wire_len.into(),
                packet.interface.into(),
                packet.direction.into(),
                packet.tag_restored.into(),
                packet.shard.into(),
                packet.data.len() as u64,
                packet.data.first().copied().unwrap_or(0).into(),
                packet.data.last().copied().unwrap_or(0).into(),
            ];
            sum = fields.into_iter().fold(sum, u64::wrapping_add);
        }
    }
    format!("{packets} {sum}")
}

/// Changes bytes of a ring file, one at a time. Returns for each change the line that `flip.c` must
/// print.
fn copied_with_flips(path: &Path, areas: &[(u64, u64)]) -> HashSet<String> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut buffer = Buffer::new();
    let mut lines = HashSet::new();
    for offset in areas
        .iter()
        .flat_map(|(offset, length)| *offset..offset + length)
    {
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        for flip in [0x01, 0x10, 0x20, 0xff] {
            file.write_all_at(&[byte[0] ^ flip], offset).unwrap();
            lines.insert(format!("{offset} {flip} {}", copied(path, &mut buffer)));
        }
        file.write_all_at(&byte, offset).unwrap();
    }
    lines
}

#[test]
fn readers_in_other_languages_believe_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = varied_file(&directory, 103);
    let (headers, steps) = (4096 + 2 * 128, 4096 + (2 + 8) * 128);
    let (bucket, bucket_end) = (2 << 20, (2 << 20) + (272 << 10));
    // The offset of the last record, which begins with an extension.
    let mut word = [0; 8];
    let file = File::open(&path).unwrap();
    file.read_exact_at(&mut word, bucket_end - 103 * 16 + 8)
        .unwrap();
    let last = u64::from_ne_bytes(word) & 0xfff_ffff;
    // Of bucket headers, bytes 16 to 47 are left out: the readers in C and Python do not read these
    // fields.
    let areas = [
        (0, 160),
        (1024, 32),
        (headers, 16),
        (headers + 48, 80),
        (headers + 128, 16),
        (headers + 128 + 48, 80),
        (steps, 64),
        (steps + 1024 * 32, 128),
        (bucket, 64),
        (bucket_end - 103 * 16, 8 * 16),
        (bucket_end - 55 * 16, 7 * 16),
        (bucket_end - 4 * 16, 4 * 16),
        (bucket + last, 16),
    ];
    let expected = copied_with_flips(&path, &areas);
    let refused = expected
        .iter()
        .filter(|line| line.ends_with("refused"))
        .count();
    assert!(refused > 200, "{refused}");
    let c = compiled(&here().join("flip.c"), &directory).map(|program| (program, 1));
    let python = python(&here().join("flip.py")).map(|mut python| {
        python.arg(readers());
        (python, 8)
    });
    for (mut flip, divisor) in c.into_iter().chain(python) {
        let copy = directory.path().join("copy");
        fs::copy(&path, &copy).unwrap();
        let areas = areas.map(|(offset, length)| format!("{offset}:{length}"));
        let done = flip.arg(&copy).args(areas).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let said = String::from_utf8(done.stdout).unwrap();
        let (lines, error) = said.trim_end().rsplit_once('\n').unwrap();
        let wrong = lines.lines().find(|line| !expected.contains(*line));
        assert_eq!(wrong, None, "{flip:?}");
        assert!(lines.lines().count() >= expected.len() / divisor);
        assert!(
            ["became shorter", "cut short"]
                .iter()
                .any(|text| error.contains(text)),
            "{error}"
        );
    }
}
