//! Tests of `record -r` over real and generated captures. Many tests compare dumps with those of an
//! oracle (`oracle.rs`).

mod alerts;
mod bounded;
mod clock_steps;
mod combinations;
mod cutoff;
mod fragments;
pub(crate) mod generated;
mod history;
mod kept;
mod names;
mod options;
mod oracle;
mod over_ip;
mod payload;
mod shards;
mod stdin;
mod storms;
mod verdicts;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use self::oracle::{Packet, Question, dumps, lateness_ns, merge, read};
use retroscope_packet::LinkType;
use retroscope_pcapfile::{PcapOptions, PcapWriter};
use serde_json::Value;

use crate::support::{PROGRAM, shared, skip, stderr};

const S: i64 = 1_000_000_000;

/// Runs `record --json`. Returns its output, and the summary if the program printed one.
fn record(args: &[&str]) -> (Output, Option<Value>) {
    let output = Command::new(PROGRAM)
        .arg("record")
        .arg("--json")
        .args(args)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = text
        .lines()
        .last()
        .map(|line| serde_json::from_str(line).expect("the last line is JSON"));
    (output, json)
}

/// Arguments of `record` that ask a question about files and write the dumps into `dir`.
fn args(files: &[&Path], question: &Question, dir: &Path) -> Vec<String> {
    let mut args = Vec::new();
    for file in files {
        args.extend(["-r".to_owned(), file.display().to_string()]);
    }
    for trigger in &question.triggers {
        args.extend(["--trigger".to_owned(), trigger.clone()]);
    }
    let ns = |ns: i64| format!("{ns}ns");
    args.extend([
        "--dump".to_owned(),
        question.dump.clone(),
        "--past".to_owned(),
        ns(question.past_ns),
    ]);
    args.extend([
        "--future".to_owned(),
        ns(question.future_ns),
        "-w".to_owned(),
        dir.display().to_string(),
    ]);
    args.extend([
        "--set".to_owned(),
        "max-dumps=65536".to_owned(),
        "--set".to_owned(),
        "dumps-per-minute=0".to_owned(),
        "-q".to_owned(),
        "--reproducible".to_owned(),
    ]);
    args
}

fn run(args: &[String], more: &[&str]) -> (Output, Option<Value>) {
    let args: Vec<&str> = args
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    record(&args)
}

/// Compares every dump of a run with the oracle's.
fn assert_dumps(expected: &[oracle::Dump], json: &Value, what: &str) {
    let found = json["dumps"].as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}: number of dumps");
    for (dump, expected) in found.iter().zip(expected) {
        let file = Path::new(dump["file"].as_str().unwrap());
        let (packets, complete) = read(file);
        assert!(complete, "{what}: {} is damaged", file.display());
        assert_eq!(dump["rule"], expected.rule.as_str(), "{what}");
        assert_eq!(
            dump["trigger_time"],
            retroscope_recorder::rfc3339(expected.trigger_ns),
            "{what}"
        );
        assert_eq!(
            dump["from"],
            retroscope_recorder::rfc3339(expected.from_ns),
            "{what}"
        );
        assert_eq!(
            dump["to"],
            retroscope_recorder::rfc3339(expected.to_ns),
            "{what}"
        );
        assert_eq!(dump["verdict"], "complete", "{what}: {dump}");
        assert_eq!(dump["packets"], expected.packets.len(), "{what}: {dump}");
        assert_same(
            &packets,
            &expected.packets,
            &format!("{what}: {}", file.display()),
        );
        let name = file.to_str().unwrap().trim_end_matches(".zst");
        assert!(
            Path::new(name).with_extension("json").exists(),
            "{what}: a sidecar beside {}",
            file.display()
        );
    }
}

fn assert_same(found: &[Packet], expected: &[Packet], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: packets");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{what}: packet {index}");
    }
}

/// Checks that every received packet was stored or filtered, and that every stored packet was
/// analyzed.
fn assert_ledgers(json: &Value, received: usize, what: &str) {
    let sum = |field: &str| {
        json["sources"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s[field].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(sum("received"), received as u64, "{what}: received");
    assert_eq!(
        sum("received"),
        sum("stored") + sum("filtered"),
        "{what}: intake"
    );
    let analyzers = &json["analyzers"];
    assert_eq!(
        analyzers["analyzed"], analyzers["stored"],
        "{what}: reading"
    );
    assert_eq!(
        (&analyzers["missed"], &analyzers["unread"]),
        (&0.into(), &0.into()),
        "{what}: reading"
    );
}

fn question(triggers: &[&str], dump: &str, past_ns: i64, future_ns: i64) -> Question {
    Question {
        triggers: triggers.iter().map(|t| (*t).to_owned()).collect(),
        dump: dump.to_owned(),
        past_ns,
        future_ns,
    }
}

/// All captures that the manifest lists, damaged captures included.
fn captures(shared: &Path) -> Vec<PathBuf> {
    let manifest = fs::read_to_string(shared.join("traces/MANIFEST.tsv")).unwrap();
    let names = manifest
        .lines()
        .skip(1)
        .filter_map(|line| line.split('\t').next());
    names.map(|name| shared.join(name)).collect()
}

/// Runs the program on a capture with these packets and compares the dumps with the oracle's.
/// Returns the number of dumps. `None` if a trigger compiles for no link type of the capture, or if
/// the oracle has more than 60 dumps.
fn compare(path: &Path, packets: &[Packet], question: &Question) -> Option<usize> {
    let expected = dumps(packets, question).filter(|dumps| dumps.len() <= 60)?;
    let dir = tempfile::tempdir().unwrap();
    let what = format!("{} {question:?}", path.display());
    let (output, json) = run(&args(&[path], question, dir.path()), &["--ring", "16MiB"]);
    assert_eq!(output.status.code(), Some(0), "{what}: {}", stderr(&output));
    let json = json.unwrap();
    assert_dumps(&expected, &json, &what);
    assert_ledgers(&json, packets.len(), &what);
    Some(expected.len())
}

#[test]
fn dumps_of_real_captures_hold_what_the_oracle_finds() {
    let Some(shared) = shared("") else { return };
    let captures = captures(&shared);
    let questions = [
        question(
            &[
                "tcp[tcpflags] & tcp-syn != 0",
                "udp",
                "icmp or icmp6 or arp",
            ],
            "$flow",
            2 * S,
            S,
        ),
        question(&["greater 200"], "", S / 2, S / 4),
        question(&["ip", "vlan and ip"], "host $srcIP", S, 3 * S),
    ];
    let next = AtomicUsize::new(0);
    let (tried, dumped) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(path) = captures.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (packets, complete) = read(path);
                    if !complete
                        || packets.is_empty()
                        || packets.len() > 3000
                        || lateness_ns(&packets) > S
                    {
                        continue;
                    }
                    for question in &questions {
                        let Some(compared) = compare(path, &packets, question) else {
                            continue;
                        };
                        tried.fetch_add(1, Ordering::Relaxed);
                        dumped.fetch_add(compared, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    eprintln!(
        "{tried:?} runs, {dumped:?} dumps compared in {:?}",
        start.elapsed()
    );
    assert!(
        tried.into_inner() > 300 && dumped.into_inner() > 1000,
        "most captures were tried"
    );
}

#[test]
fn several_files_are_merged_by_time() {
    let Some(shared) = shared("") else { return };
    let files = [
        "traces/apps/ix-mixed.pcap",
        "traces/formats/dv-mixed-ns-be.pcap",
        "traces/apps/ix-mixed.pcap",
    ];
    let files: Vec<PathBuf> = files
        .iter()
        .map(|f| shared.join(f))
        .filter(|f| f.exists())
        .collect();
    assert!(files.len() >= 2);
    let packets = merge(files.iter().map(|f| read(f).0).collect());
    let question = question(&["udp"], "", S, S);
    let expected = dumps(&packets, &question).unwrap();
    assert!(!expected.is_empty());
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let (output, json) = run(&args(&paths, &question, dir.path()), &["--ring", "16MiB"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_dumps(&expected, &json.unwrap(), "merged");
}

/// Damaged captures give a message and exit code 1. Earlier packets count, and some are dumped.
#[test]
fn damaged_captures_keep_what_was_read() {
    let Some(shared) = shared("") else { return };
    let mut tried = 0;
    for path in captures(&shared) {
        let (packets, complete) = read(&path);
        if complete {
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let everything = question(&["greater 0"], "", 100 * 365 * 86_400 * S / 10, 100 * S);
        let (output, json) = run(
            &args(&[&path], &everything, dir.path()),
            &["--ring", "16MiB"],
        );
        let what = format!("{}: {}", path.display(), stderr(&output));
        assert_eq!(output.status.code(), Some(1), "{what}");
        assert!(!stderr(&output).trim().is_empty(), "{what}");
        if !packets.is_empty() {
            let json = json.unwrap();
            assert_ledgers(&json, packets.len(), &what);
            let first = &json["dumps"][0];
            assert!(
                first["packets"].as_u64().unwrap() >= 1,
                "{what}: earlier packets are dumped"
            );
        }
        tried += 1;
    }
    assert!(tried > 25, "the corpus has damaged files: {tried}");
}

/// Writes a capture of `count` frames of `len` bytes, `step_ns` apart. The destination port cycles
/// from 1 to 100, but one in 10,000 frames goes to port 60000. With `jitter`, a random seed, each
/// timestamp is up to 0.5 s earlier.
pub(crate) fn write_capture(
    path: &Path,
    count: u32,
    len: usize,
    step_ns: i64,
    jitter: Option<u64>,
) {
    let mut random = jitter.map(fastrand::Rng::with_seed);
    let file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut writer = PcapWriter::new(file, PcapOptions::new(LinkType::ETHERNET)).unwrap();
    let mut frame = vec![0; len];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&u16::try_from(len - 14).unwrap().to_be_bytes());
    frame[23] = 17;
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    for i in 0..count {
        let port = if i % 10_000 == 5_000 {
            60_000
        } else {
            u16::try_from(i % 100 + 1).unwrap()
        };
        frame[34..36].copy_from_slice(&7_u16.to_be_bytes());
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame[42..46].copy_from_slice(&i.to_be_bytes());
        let late = random.as_mut().map_or(0, |r| r.i64(0..500_000_000));
        writer
            .record(
                1_700_000_000 * S + i64::from(i) * step_ns - late,
                u32::try_from(len).unwrap(),
                &frame,
            )
            .unwrap();
    }
    writer.finish().unwrap();
}

/// Names and contents of files.
type Contents = Vec<(String, Vec<u8>)>;

/// The bytes of all files of a directory, by name.
fn contents(dir: &Path) -> Contents {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

/// Eight runs of each of two questions under random CPU load give the same files. `rx-threads` is 1
/// to 4 and has no effect, because one thread reads the file. The ring is smaller than the file.
#[test]
fn runs_repeat_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    // 60,000 frames of 600 bytes, 36 MB, up to half a second out of order, pass through a ring of
    // 16 MiB.
    write_capture(&capture, 60_000, 600, 1_000_000, Some(seed));
    let question = question(
        &["udp port 60000", "udp port 13"],
        "udp port 60000 or udp port 1",
        3 * S,
        2 * S,
    );
    // The windows of later triggers exceed the ring. The set of overwritten packets must also be
    // the same in every run.
    let outgrown = Question {
        triggers: vec!["udp port 60000".to_owned()],
        dump: "udp portrange 1-3".to_owned(),
        past_ns: 40 * S,
        future_ns: S / 20,
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut first: [Option<Contents>; 2] = [None, None];
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed + worker);
                while !stop.load(Ordering::Relaxed) {
                    if random.u8(..) < 64 {
                        std::thread::park_timeout(std::time::Duration::from_micros(
                            random.u64(1..3000),
                        ));
                    } else {
                        (0..random.u32(1..200_000)).for_each(|i| _ = std::hint::black_box(i));
                    }
                }
            });
        }
        for run_number in 0..8 {
            let threads = (run_number % 4 + 1).to_string();
            for (kind, (question, code)) in [(&question, 0), (&outgrown, 3)].into_iter().enumerate()
            {
                let out = dir.path().join(format!("out{kind}-{run_number}"));
                let (output, json) = run(
                    &args(&[&capture], question, &out),
                    &["--ring", "16MiB", "--set", &format!("rx-threads={threads}")],
                );
                assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
                assert_ledgers(&json.unwrap(), 60_000, "repeat");
                let files = contents(&out);
                assert!(files.len() >= 10);
                match &first[kind] {
                    None => first[kind] = Some(files),
                    Some(first) => {
                        assert!(
                            *first == files,
                            "run {kind}-{run_number} differs (seed {seed})"
                        );
                    }
                }
                fs::remove_dir_all(&out).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // No window of the first question exceeds the smaller ring. So a larger ring gives the same
    // files, and the oracle gives the same dumps.
    let out = dir.path().join("large");
    let (_, json) = run(&args(&[&capture], &question, &out), &["--ring", "128MiB"]);
    assert!(
        first[0].take().unwrap() == contents(&out),
        "the ring's size shows (seed {seed})"
    );
    assert_dumps(
        &dumps(&read(&capture).0, &question).unwrap(),
        &json.unwrap(),
        "large ring",
    );
}

/// If the ring is smaller than the window, the exit code is 3, and the dump counts the missing
/// packets exactly.
#[test]
fn what_was_overwritten_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    write_capture(&capture, 60_000, 600, 1_000_000, None);
    let (packets, _) = read(&capture);
    // Trigger packets are at 5 s, 15 s and so on to 55 s of a capture of 60 s. 16 MiB hold about
    // 27,000 frames, or 27 s. The windows of the triggers from 25 s on are longer, up to 45 s.
    let question = question(&["udp port 60000"], "", 40 * S, 5 * S);
    let (output, json) = run(
        &args(&[&capture], &question, &dir.path().join("out")),
        &["--ring", "16MiB"],
    );
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let json = json.unwrap();
    let found = json["dumps"].as_array().unwrap();
    let mut incomplete = 0;
    for (dump, expected) in found.iter().zip(dumps(&packets, &question).unwrap()) {
        let (held, _) = read(Path::new(dump["file"].as_str().unwrap()));
        let missing = expected.packets.len() - held.len();
        assert_same(
            &held,
            &expected.packets[missing..],
            "the rest of the window",
        );
        if missing == 0 {
            assert_eq!(
                (&dump["verdict"], &dump["missing"]),
                (&"complete".into(), &Value::Array(Vec::new()))
            );
            continue;
        }
        incomplete += 1;
        let rfc3339 = |p: &Packet| retroscope_recorder::rfc3339(p.time_ns);
        let entry = serde_json::json!([{
            "cause": "evicted",
            "from": rfc3339(&expected.packets[0]),
            "to": rfc3339(&expected.packets[missing - 1]),
            "packets": missing,
        }]);
        assert_eq!(
            (&dump["verdict"], &dump["missing"]),
            (&"incomplete".into(), &entry)
        );
        assert_eq!(
            dump["clipped"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|c| *c == "start")
                .count(),
            0
        );
    }
    assert!(
        incomplete > 0 && incomplete < found.len(),
        "{incomplete} of {}",
        found.len()
    );
}

/// Packets that arrive after their window was closed do not change the verdict, which was given at
/// the close. The summary counts these packets as late, and a message gives their maximum number.
#[test]
fn a_packet_after_the_close_is_late() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let mut writer = PcapWriter::new(
        fs::File::create(&capture).unwrap(),
        PcapOptions::new(LinkType::RAW),
    )
    .unwrap();
    let packet = |port: u16| {
        let mut data = vec![
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, 0, 0, 8,
            0, 0,
        ];
        data[22..24].copy_from_slice(&port.to_be_bytes());
        data
    };
    let ms = S / 1000;
    for (time_ns, port) in [
        (10 * S, 1),                 // in the window
        (10 * S + 100 * ms, 60_000), // the trigger
        (10 * S + 50 * ms, 2),       // late, before the trigger: goes where its stamp belongs
        (12 * S, 3),                 // after the window, within the reorder window of 1 s
        (10 * S + 900 * ms, 4),      // late but the window is open: goes where its stamp belongs
        (12 * S + 200 * ms, 5),      // closes the window, which ended at 11.1 s
        (10 * S + 800 * ms, 6),      // too late
        (10 * S + 850 * ms, 7),      // too late
    ] {
        writer.record(time_ns, 28, &packet(port)).unwrap();
    }
    writer.finish().unwrap();
    let question = question(&["udp port 60000"], "udp", S, S);
    let out = dir.path().join("out");
    let (output, json) = run(&args(&[&capture], &question, &out), &["--ring", "16MiB"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let json = json.unwrap();
    let dump = &json["dumps"][0];
    let file = Path::new(dump["file"].as_str().unwrap());
    let ports: Vec<u8> = read(file).0.iter().map(|p| p.data[23]).collect();
    assert_eq!(ports, [1, 2, 0x60, 4], "60000 is 0xea60");
    let rfc3339 = retroscope_recorder::rfc3339;
    assert_eq!(dump["verdict"], "complete", "judged once");
    assert_eq!(
        (
            &json["dumps_with_late_packets"],
            &json["sources"][0]["late"]
        ),
        (&1.into(), &2.into())
    );
    let told = format!(
        "up to 2 packets of {}, from {} to {}, ",
        capture.display(),
        rfc3339(10 * S + 800 * ms),
        rfc3339(10 * S + 850 * ms)
    );
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
}

/// Compressed input (gzip, zstd) gives the same packets in dumps as plain input.
#[test]
fn compressed_input_is_the_same() {
    let Some(shared) = shared("") else { return };
    let plain = shared.join("traces/apps/ix-mixed.pcap");
    let dir = tempfile::tempdir().unwrap();
    let question = question(&["udp"], "$flow", S, S);
    let mut expected = dumps(&read(&plain).0, &question).unwrap();
    for (tool, extension) in [("gzip", "gz"), ("zstd", "zst")] {
        let packed = dir.path().join(format!("x.{extension}"));
        let Ok(output) = Command::new(tool).arg("-c").arg(&plain).output() else {
            skip(&format!("no {tool} to pack with"));
            continue;
        };
        fs::write(&packed, output.stdout).unwrap();
        for packet in expected.iter_mut().flat_map(|dump| &mut dump.packets) {
            packet.interface = format!("x.{extension}");
        }
        let (output, json) = run(
            &args(&[&packed], &question, &dir.path().join(extension)),
            &["--ring", "16MiB"],
        );
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_dumps(&expected, &json.unwrap(), tool);
    }
}

/// Compressed dumps have the same contents, and names with a suffix.
#[test]
fn compressed_dumps_are_the_same() {
    let Some(shared) = shared("") else { return };
    let plain = shared.join("traces/apps/ix-mixed.pcap");
    let dir = tempfile::tempdir().unwrap();
    let question = question(&["udp"], "$flow", S, S);
    let expected = dumps(&read(&plain).0, &question).unwrap();
    let args = args(&[&plain], &question, dir.path());
    let (output, json) = run(&args, &["--ring", "16MiB", "--compress", "zstd:1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json = json.unwrap();
    let file = json["dumps"][0]["file"].as_str().unwrap();
    assert!(file.ends_with(".pcapng.zst"), "{file}");
    assert_dumps(&expected, &json, "zstd");
}

/// Timestamps jump back by 1000 s. A packet after the jump that matches a trigger starts a dump,
/// and the dump contains this packet. Later packets for the window of this dump are counted as
/// late.
#[test]
fn a_capture_that_runs_backwards_keeps_its_triggers() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    let mut writer = PcapWriter::new(
        fs::File::create(&capture).unwrap(),
        PcapOptions::new(LinkType::RAW),
    )
    .unwrap();
    let stamps = [
        (1000 * S, 5),
        (1000 * S, 6),
        (1010 * S, 5),
        (10 * S, 7),
        (19 * S / 2, 5),
        (51 * S / 5, 5),
    ];
    for (time_ns, port) in stamps {
        let data = [
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9, 0, port, 0,
            8, 0, 0,
        ];
        writer.record(time_ns, 28, &data).unwrap();
    }
    writer.finish().unwrap();
    let question = question(&["port 7", "port 6"], "", S, S);
    let out = dir.path().join("out");
    let (output, json) = run(&args(&[&capture], &question, &out), &["--ring", "8MiB"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let json = json.unwrap();
    let ports = |i: usize| -> Vec<u8> {
        let file = json["dumps"][i]["file"].as_str().unwrap();
        let packets = read(Path::new(file)).0;
        packets.iter().map(|p| p.data[23]).collect()
    };
    assert_eq!((ports(0), ports(1)), (vec![5, 6], vec![7]));
    assert_eq!(json["dumps"][0]["verdict"], "complete");
    assert_eq!(
        (
            &json["dumps_with_late_packets"],
            &json["sources"][0]["late"]
        ),
        (&1.into(), &2.into())
    );
}

/// Runs with the smallest ring, a file of more than four times its size, and many short dumps do
/// not hang.
#[test]
fn small_rings_do_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("in.pcap");
    write_capture(&capture, 60_000, 600, 100_000, None);
    let question = question(&["udp port 13"], "udp port 13", S / 100, S / 50);
    for run_number in 0..6 {
        let out = dir.path().join(format!("out{run_number}"));
        let mut child = Command::new(PROGRAM)
            .args(["record", "--ring", "8MiB"])
            .args(args(&[&capture], &question, &out))
            .spawn()
            .unwrap();
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("run {run_number} hangs");
            }
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(0));
        fs::remove_dir_all(out).unwrap();
    }
}
