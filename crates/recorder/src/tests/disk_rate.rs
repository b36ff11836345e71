//! How fast a dump of everything is written, against what the disk takes.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use retroscope_capture::{
    Source,
    clock::SystemClock,
    generator::{GeneratorConfig, GeneratorSource},
};
use serde_json::Value;

use crate::{Analyzers, Config, Event, Recorder, Verdict};

/// Bytes of the frames.
const FRAME_BYTES: u16 = 1514;

/// MB/s from the trigger to the end of a dump of all that comes at full speed, and bytes of it in the page cache behind it.
fn dump_rate(folder: &Path, ring_bytes: u64, sha256: bool) -> (f64, Option<u64>) {
    let frames = GeneratorConfig {
        size: FRAME_BYTES,
        count: Some(ring_bytes * 9 / 10 / (u64::from(FRAME_BYTES) + 18)),
        ..GeneratorConfig::default()
    };
    let config = Config {
        ring_bytes,
        analyzers: Analyzers::Auto,
        triggers: vec!["ip".to_owned()],
        past: Duration::from_secs(1),
        future: Duration::from_secs(1000),
        max_dumps: 1,
        directory: Some(folder.to_owned()),
        sha256,
        ..Config::default()
    };
    let sources = || {
        let source = GeneratorSource::new("generate", frames.clone());
        Ok(vec![Box::new(source) as Box<dyn Source>])
    };
    let clock = Arc::new(SystemClock);
    let recorder = Recorder::start(&config, &sources, &[], clock, None, &mut || Ok(())).unwrap();
    let (mut start, mut rate) = (None, None);
    while let Ok(event) = recorder.event(Duration::from_secs(60)) {
        match event {
            Event::Triggered { .. } => start = Some(Instant::now()),
            Event::Finished(report) => {
                assert_eq!(report.verdict, Verdict::Complete, "{report:?}");
                assert_eq!(Some(report.packets), frames.count);
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

/// Bytes of a file in the page cache; `None`: without fincore(1).
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

#[test]
#[ignore = "writes tens of GB, takes minutes, and is about time: run it alone, with --release, and DISK_FOLDER on the disk"]
fn dumping_everything_is_nearly_as_fast_as_the_disk() {
    let place = env::var_os("DISK_FOLDER").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let ring_bytes = env::var("RING_MIB").map_or(3072, |mib| mib.parse().unwrap()) << 20;
    let folder = tempfile::tempdir_in(place).unwrap();
    let mut ratios = Vec::new();
    for _ in 0..5 {
        let fio = fio_rate(folder.path(), ring_bytes).expect("fio is needed");
        let (plain, _) = dump_rate(folder.path(), ring_bytes, false);
        let (with_digest, cached) = dump_rate(folder.path(), ring_bytes, true);
        eprintln!(
            "fio {fio:.0} MB/s, dump {plain:.0} ({:.2}), with SHA-256 {with_digest:.0} ({:.2}), {cached:?} bytes in the page cache",
            plain / fio,
            with_digest / fio,
        );
        ratios.push(plain / fio);
    }
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[2] >= 0.85, "{ratios:?}");
}
