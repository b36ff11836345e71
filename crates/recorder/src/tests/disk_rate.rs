//! The write rate of a dump of everything, compared with the disk's rate.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use retroscope_capture::{Source, clock::SystemClock};
use retroscope_generate::{GeneratorConfig, GeneratorSource, Rate};
use serde_json::Value;

use crate::{Analyzers, Config, Recorder, RecorderEvent, Verdict};

/// Bytes of each frame that is dumped.
const FRAME_BYTES: u16 = 1514;

/// Time until the trigger packet.
const TRIGGER_AFTER: Duration = Duration::from_millis(1000);
/// Length of the dumped past. The window begins after the start of the recording and ends before
/// its end. A clipped window would have another verdict than the digest was computed with, and the
/// recorder would read the file again.
const PAST: Duration = Duration::from_millis(900);

/// MB/s from the trigger to the end of a dump of the past, and the bytes of the dump in the page
/// cache afterwards. `sha256`: whether to compute digests. `beside`: rate of further packets, which
/// the dump does not select.
fn dump_rate(
    folder: &Path,
    ring_bytes: u64,
    (sha256, beside): (bool, Option<Rate>),
) -> (f64, Option<u64>) {
    let frames = GeneratorConfig {
        size: FRAME_BYTES,
        // The ring has room for all these frames, and more.
        rate: Some(Rate::BitsPerSecond(ring_bytes * 8 * 3 / 4)),
        duration: Some(TRIGGER_AFTER + Duration::from_millis(10)),
        trigger_after: Some(TRIGGER_AFTER),
        ..GeneratorConfig::default()
    };
    let more = beside.map(|rate| GeneratorConfig {
        rate: Some(rate),
        duration: Some(Duration::from_secs(4)),
        ..GeneratorConfig::default()
    });
    let config = Config {
        ring_bytes,
        analyzers: Analyzers::Auto,
        triggers: vec!["udp dst port 60000".to_owned()],
        dump: "greater 1000".to_owned(),
        past: PAST,
        future: Duration::ZERO,
        max_dumps: 1,
        directory: Some(folder.to_owned()),
        sha256,
        ..Config::default()
    };
    let sources = || {
        let more = more.iter().map(|more| ("beside", more));
        let generators = [("generate", &frames)].into_iter().chain(more);
        let source = |(name, config): (&str, &GeneratorConfig)| {
            Box::new(GeneratorSource::new(name, config.clone())) as Box<dyn Source>
        };
        Ok(generators.map(source).collect())
    };
    let clock = Arc::new(SystemClock);
    let recorder = Recorder::start(&config, &sources, &[], clock, None, &mut || Ok(())).unwrap();
    let (mut start, mut rate) = (None, None);
    while let Ok(event) = recorder.event(Duration::from_secs(60)) {
        match event {
            RecorderEvent::Triggered { .. } => start = Some(Instant::now()),
            RecorderEvent::Finished(report) => {
                assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
                let seconds = start.unwrap().elapsed().as_secs_f64();
                let bytes = report.file.metadata().unwrap().len();
                rate = Some((bytes as f64 / 1e6 / seconds, cached(&report.file)));
            }
            _ => {}
        }
    }
    let _ = recorder.join();
    for entry in std::fs::read_dir(folder).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    rate.unwrap()
}

/// Bytes of a file in the page cache; `None`: fincore(1) is not installed, or fails.
fn cached(file: &Path) -> Option<u64> {
    let fincore = Command::new("fincore")
        .args(["-b", "-n", "-o", "RES"])
        .arg(file)
        .output();
    String::from_utf8_lossy(&fincore.ok()?.stdout)
        .trim()
        .parse()
        .ok()
}

/// MB/s of fio's direct writes.
fn fio_rate(folder: &Path, bytes: u64) -> Option<f64> {
    let file = folder.join("fio");
    let fio = Command::new("fio")
        .args([
            "--name=f",
            "--rw=write",
            "--bs=2m",
            "--direct=1",
            "--ioengine=io_uring",
        ])
        .args([
            "--iodepth=8",
            "--end_fsync=1",
            "--fallocate=none",
            "--output-format=json",
        ])
        .arg(format!("--size={bytes}"))
        .arg(format!("--filename={}", file.display()))
        .output()
        .ok()?;
    let _ = std::fs::remove_file(file);
    let told: Value = serde_json::from_slice(&fio.stdout).ok()?;
    Some(told["jobs"][0]["write"]["bw_bytes"].as_f64()? / 1e6)
}

/// MB/s of writing a mapped file that doubles when it is full, as FlowScope writes dumps (FlowScope
/// paper, section IV.C). The Python program writes 64 records of one frame at a time.
fn mapped_rate(folder: &Path, bytes: u64) -> Option<f64> {
    const WRITER: &str = "\
import mmap, os, sys, time
bytes, start = int(sys.argv[2]), time.monotonic()
record = b'x' * (1514 + 16)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.posix_fallocate(file, 0, 512 << 20)
memory, at, together = mmap.mmap(file, 0), 0, record * 64
while at < bytes:
    if at + len(together) > len(memory):
        memory.resize(2 * len(memory))
        os.posix_fallocate(file, 0, len(memory))
    memory[at:at + len(together)] = together
    at += len(together)
memory.flush()
memory.close()
os.ftruncate(file, at)
os.fsync(file)
print(at / (time.monotonic() - start) / 1e6)
";
    let file = folder.join("mapped");
    let python = Command::new("python3")
        .args(["-c", WRITER])
        .arg(&file)
        .arg(bytes.to_string())
        .output()
        .ok()?;
    let _ = std::fs::remove_file(file);
    String::from_utf8_lossy(&python.stdout).trim().parse().ok()
}

#[test]
#[ignore = "writes tens of GB, takes minutes, and is about time: run it alone, with --release, and DISK_FOLDER on the disk"]
fn dumping_everything_is_nearly_as_fast_as_the_disk() {
    let place = env::var_os("DISK_FOLDER").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let ring_bytes = env::var("RING_MIB").map_or(3072, |mib| mib.parse().unwrap()) << 20;
    let folder = tempfile::tempdir_in(place).unwrap();
    let beside = Rate::FramesPerSecond(500_000);
    let (mut alone, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let fio = fio_rate(folder.path(), ring_bytes).expect("fio is needed");
        let mapped = mapped_rate(folder.path(), ring_bytes).expect("python3 is needed");
        let of = |how| dump_rate(folder.path(), ring_bytes, how);
        let rates =
            [None, Some(beside)].map(|beside| [true, false].map(|sha256| of((sha256, beside))));
        let told = |(rate, cached): (f64, Option<u64>)| {
            format!(
                "{rate:.0} MB/s ({:.2}; {cached:?} bytes in the page cache)",
                rate / fio
            )
        };
        let [[digest, plain], [busy_digest, busy_plain]] = rates.map(|rates| rates.map(told));
        eprintln!(
            "fio {fio:.0} MB/s, a growing mapped file {mapped:.0} MB/s, dump {digest}, without SHA-256 {plain}; while {beside:?} of small frames come {busy_digest}, without SHA-256 {busy_plain}"
        );
        alone.push(rates[0][0].0 / fio);
        busy.push(rates[1][0].0 / fio);
    }
    for mut ratios in [alone, busy] {
        ratios.sort_by(f64::total_cmp);
        assert!(ratios[2] >= 0.85, "{ratios:?}");
    }
}
