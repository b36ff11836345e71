//! The rate at which a dump of everything is written, compared with fio's direct writes and with
//! FlowScope's way to write a dump, a mapped file that doubles (FlowScope paper, section IV.C;
//! `shim/mapped_writer.c`). All files are in `DISK_FOLDER`.
//!
//! The rate of a dump is that of its file, from the event of the trigger to the event of its end.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use retroscope_capture::Source;
use retroscope_generate::{GeneratorConfig, GeneratorSource, Rate};
use retroscope_recorder::{
    Analyzers, Config, DumpFormat, Recorder, RecorderEvent, SystemClock, Verdict,
};
use tempfile::TempDir;

use super::{OVERHEAD_BYTES, SILENCE};
use crate::{
    capture::veth::printed,
    measure::{Entrant, Failure},
    session::Session,
};

const MAPPED_WRITER: &str = include_str!("../../shim/mapped_writer.c");
/// Bytes of the dumped frames: FlowScope wrote small packets.
const SIZES: [u16; 2] = [64, 1514];
/// Further frames a second, of 64 bytes, which the dump does not select.
const BESIDE: u64 = 500_000;
/// Time until the trigger packet.
const TRIGGER_AFTER: Duration = Duration::from_secs(1);
/// Length of the dumped past. The window begins after the start of the recording and ends before
/// its end. A clipped window would have another verdict than the digest was computed with, and the
/// recorder would read the file again.
const PAST: Duration = Duration::from_millis(900);

/// A dump to measure.
#[derive(Debug, Clone, Copy)]
struct Dumped {
    size: u16,
    sha256: bool,
    /// Whether further frames arrive.
    is_busy: bool,
}

/// The disk, and the writer that maps its file.
#[derive(Debug)]
struct Disk {
    folder: TempDir,
    ring_bytes: u64,
    writer: PathBuf,
}

/// The rows of this module, MB/s, and the ratios to fio and to the mapped file in the same turns.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    let disk = Disk::new(session);
    let disk = disk.as_ref().map_err(Clone::clone);
    for size in SIZES {
        let dump = |sha256, is_busy| {
            let dumped = Dumped {
                size,
                sha256,
                is_busy,
            };
            let disk = disk.clone();
            move || disk.clone()?.dump(dumped)
        };
        let (fio, mapped) = (disk.clone(), disk.clone());
        let mut entrants = vec![
            Entrant::new("fio", move || fio.clone()?.fio()),
            Entrant::new("mapped", move || mapped.clone()?.mapped(size)),
            Entrant::new("plain", dump(false, false)),
            Entrant::new("sha256", dump(true, false)),
        ];
        if size == SIZES[1] {
            entrants.push(Entrant::new("busy", dump(false, true)));
            entrants.push(Entrant::new("busy-sha256", dump(true, true)));
        }
        let name = |part: &str| format!("dump/{part}/{size}B");
        let names: Vec<String> = entrants.iter().map(|one| name(&one.name)).collect();
        let ratios = [
            ("plain", "fio"),
            ("busy", "fio"),
            ("sha256", "fio"),
            ("plain", "mapped"),
        ];
        let ratio_name = |(one, other): (&str, &str)| format!("dump/{size}B/{one}-vs-{other}");
        let mut all = names.into_iter().chain(ratios.map(ratio_name));
        if !all.any(|name| session.wants(&name)) {
            continue;
        }
        let heat = session.heat(&format!("dumps, {size} B, MB/s"), entrants);
        for (one, other) in ratios {
            if heat.names().iter().any(|name| name == one) {
                let row = ratio_name((one, other));
                session.row(&row, Some(other), || heat.ratio(one, other))?;
            }
        }
        for entrant in heat.names() {
            session.row(&name(entrant), None, || heat.spread(entrant))?;
        }
    }
    Ok(())
}

impl Disk {
    /// `DISK_FOLDER`, for dumps of 1.5 times the session's ring.
    ///
    /// # Errors
    /// [`Failure::CannotRun`]: `DISK_FOLDER` is not set, or there is no C compiler.
    fn new(session: &Session) -> Result<Self, Failure> {
        let place = env::var_os("DISK_FOLDER").ok_or_else(|| {
            Failure::CannotRun("DISK_FOLDER=FOLDER names the disk to write to".to_owned())
        })?;
        Self::at(Path::new(&place), 2 * session.scale.ring_bytes)
    }

    fn at(place: &Path, ring_bytes: u64) -> Result<Self, Failure> {
        let failed = |error| Failure::system("the folder of dumps", error);
        let folder = tempfile::tempdir_in(place).map_err(failed)?;
        let (source, writer) = (folder.path().join("writer.c"), folder.path().join("writer"));
        fs::write(&source, MAPPED_WRITER).map_err(failed)?;
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut compile = Command::new(compiler);
        compile.arg("-O2").arg("-o").args([&writer, &source]);
        printed(compile.output(), "the C compiler")?;
        Ok(Self {
            folder,
            ring_bytes,
            writer,
        })
    }

    /// The bytes that the dumps have, about: three quarters of the ring.
    fn bytes(&self) -> u64 {
        self.ring_bytes / 4 * 3
    }

    /// MB/s of fio's direct writes, with eight blocks of 2 MiB at once.
    fn fio(&self) -> Result<f64, Failure> {
        const JOB: &str = "--name=f --rw=write --bs=2m --direct=1 --ioengine=io_uring --iodepth=8 --end_fsync=1 --fallocate=none --output-format=json";
        let file = self.folder.path().join("fio");
        let mut fio = Command::new("fio");
        fio.args(JOB.split(' '));
        fio.arg(format!("--size={}", self.bytes()));
        fio.arg(format!("--filename={}", file.display()));
        let text = printed(fio.output(), "fio");
        // After a failure there may be no file.
        let _ = fs::remove_file(file);
        let text = text?;
        let told: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| Failure::system("fio's JSON", error))?;
        let rate = told["jobs"][0]["write"]["bw_bytes"].as_f64();
        rate.map(|rate| rate / 1e6)
            .ok_or_else(|| Failure::Wrong(format!("fio printed {text}")))
    }

    /// MB/s of a mapped file with packets of `size` bytes.
    fn mapped(&self, size: u16) -> Result<f64, Failure> {
        let file = self.folder.path().join("mapped");
        let mut writer = Command::new(&self.writer);
        writer.arg(&file);
        writer.args([self.bytes().to_string(), size.to_string()]);
        let text = printed(writer.output(), "mapped_writer");
        // After a failure there may be no file.
        let _ = fs::remove_file(file);
        let text = text?;
        let mut numbers = text.split_whitespace().map(str::parse::<f64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(bytes)), Some(Ok(seconds))) => Ok(bytes / 1e6 / seconds),
            _ => Err(Failure::Wrong(format!("mapped_writer printed {text}"))),
        }
    }

    /// MB/s of a complete dump of the past.
    fn dump(&self, dumped: Dumped) -> Result<f64, Failure> {
        let frames = GeneratorConfig {
            size: dumped.size,
            // The ring has room for all packets, and more.
            rate: Some(Rate::FramesPerSecond(
                self.bytes() / (u64::from(dumped.size) + OVERHEAD_BYTES),
            )),
            duration: Some(TRIGGER_AFTER + Duration::from_millis(10)),
            trigger_after: Some(TRIGGER_AFTER),
            ..GeneratorConfig::default()
        };
        let beside = dumped.is_busy.then(|| GeneratorConfig {
            rate: Some(Rate::FramesPerSecond(BESIDE)),
            duration: Some(Duration::from_secs(4)),
            ..GeneratorConfig::default()
        });
        let folder = TempDir::new_in(self.folder.path());
        let folder = folder.map_err(|error| Failure::system("the folder of a dump", error))?;
        let config = Config {
            ring_bytes: self.ring_bytes,
            analyzers: Analyzers::Auto,
            triggers: vec!["udp dst port 60000".to_owned()],
            dump: format!("greater {}", dumped.size),
            past: PAST,
            future: Duration::ZERO,
            max_dumps: 1,
            directory: Some(folder.path().to_owned()),
            sha256: dumped.sha256,
            format: DumpFormat::Pcap,
            ..Config::default()
        };
        let sources = || {
            let beside = beside.iter().map(|beside| ("beside", beside));
            let generators = [("generate", &frames)].into_iter().chain(beside);
            let source = |(name, config): (&str, &GeneratorConfig)| {
                Box::new(GeneratorSource::new(name, config.clone())) as Box<dyn Source>
            };
            Ok(generators.map(source).collect())
        };
        let clock = Arc::new(SystemClock);
        let recorder = Recorder::start(&config, &sources, &[], clock, None, &mut || Ok(()))
            .map_err(|error| Failure::system("starting the recorder", error))?;
        let (mut start, mut rate) = (None, None);
        while let Ok(event) = recorder.event(SILENCE) {
            match event {
                RecorderEvent::Triggered { .. } => start = Some(Instant::now()),
                RecorderEvent::Finished(report) => {
                    let seconds = start.map(|start| start.elapsed().as_secs_f64());
                    rate = Some(match (report.verdict, seconds, file_bytes(&report.file)) {
                        (Verdict::Complete, Some(seconds), Ok(bytes)) => {
                            Ok(bytes as f64 / 1e6 / seconds)
                        }
                        _ => Err(Failure::Wrong(format!("{report:?}"))),
                    });
                }
                _ => {}
            }
        }
        // After a silence the recorder may still run.
        recorder.handle().abort();
        let _ = recorder.join();
        rate.unwrap_or_else(|| Err(Failure::Wrong("there is no dump".to_owned())))
    }
}

fn file_bytes(file: &Path) -> io::Result<u64> {
    Ok(fs::metadata(file)?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_and_mapped_files_have_a_rate_and_stay_nowhere() {
        let place = tempfile::tempdir().unwrap();
        let disk = Disk::at(place.path(), 64 << 20).unwrap();
        for size in SIZES {
            assert!(disk.mapped(size).unwrap() > 0.0);
        }
        let dumped = Dumped {
            size: 1514,
            sha256: true,
            is_busy: false,
        };
        assert!(disk.dump(dumped).unwrap() > 0.0);
        let left = fs::read_dir(disk.folder.path()).unwrap().count();
        assert_eq!(left, 2, "the writer and its source");
    }
}
