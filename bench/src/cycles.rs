//! Cycles of a packet by engine and stage, as in the thesis's table 2.1.
//!
//! One thread does the steps of an inserter that analyzes its packets, on frames of 64 bytes. The
//! thread reads the processor's time stamp counter after each step: fetching a burst, storing up to
//! 64 frames of this burst, trying one filter on these frames, and publishing.
//! An engine gives the previous burst back and fetches the next one in one call
//! ([`next`](retroscope_capture::Queue::next)), so these two are one stage. Polls of an empty queue
//! do not count.

use std::{
    fs::File,
    hint::black_box,
    io,
    io::Write,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use retroscope_capture::{
    FrameMeta, QueueStatus, Source, SourceError,
    af_packet::{LiveConfig, LiveSource},
    file::FileSource,
    send::LiveSender,
};
use retroscope_filter::{Aux, FilterFrame, Program};
use retroscope_generate::{Generator, GeneratorConfig, GeneratorSource};
use retroscope_ring::{Record, RingConfig};

use crate::{
    capture::veth::Veth,
    contest::{Course, Work, on_a_core, together},
    filter,
    measure::{Failure, Spread},
    qq2016::ticks,
    queues::two_cores,
    ring::{made, store_burst},
    session::{PartsRun, Session},
};

/// The stages, and the sum of all stages.
const STAGES: [&str; 5] = ["fetch", "store", "filter", "publish", "all"];
const RING_BYTES: u64 = 256 << 20;
/// Packets between two publications: fewer bytes than the ring publishes without being asked.
const PUBLISHED: usize = 1024;
/// Frames of the file.
const FILE_FRAMES: u64 = 1_000_000;
/// How long the thread leaves the kernel alone after it found no packets.
const REST: Duration = Duration::from_millis(1);
/// Frames of the minimum size a second at 10 Gbit/s.
const LINE_RATE: f64 = 14.88e6;

/// All rows of this module.
pub(crate) fn rows(session: &Session) -> io::Result<()> {
    session.row("cycles/budget", None, || {
        Ok(Spread::once(ticks::per_second() / LINE_RATE))
    })?;
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let file = &folder.path().join("frames.pcap");
    let time = session.scale.time(0.5);
    let cases: Vec<(String, PartsRun<'_, 5>)> = vec![
        (
            "cycles/generator/".to_owned(),
            Box::new(move || {
                let source = GeneratorSource::new("generate", frames(None));
                alone(Box::new(source), time)
            }),
        ),
        (
            "cycles/file/".to_owned(),
            Box::new(move || {
                if !file.exists() {
                    write(file).map_err(|error| Failure::system("writing a file", error))?;
                }
                alone(Box::new(FileSource::new(file)), time)
            }),
        ),
        ("cycles/af-packet/".to_owned(), Box::new(move || live(time))),
    ];
    session.measure_parts("cycles", STAGES, cases)
}

fn frames(count: Option<u64>) -> GeneratorConfig {
    GeneratorConfig {
        size: 64,
        count,
        ..GeneratorConfig::default()
    }
}

/// Writes a capture file.
fn write(path: &Path) -> io::Result<()> {
    let mut generator = Generator::new(&frames(Some(FILE_FRAMES))).map_err(io::Error::other)?;
    let mut file = io::BufWriter::new(File::create(path)?);
    // pcap with nanoseconds, version 2.4, time zone and accuracy 0, snap length, Ethernet.
    for word in [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 65_535, 1_u32] {
        file.write_all(&word.to_le_bytes())?;
    }
    while let Some((time_ns, frame)) = generator.next_frame() {
        let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
        let length = i64::try_from(frame.len()).unwrap_or(i64::MAX);
        for word in [seconds, rest, length, length] {
            file.write_all(&word.to_le_bytes()[..4])?;
        }
        file.write_all(frame)?;
    }
    file.flush()
}

/// Measures a source that needs no other thread.
fn alone(source: Box<dyn Source>, time: Duration) -> Result<[f64; 5], Failure> {
    let (cycles, _) = on_a_core(|| stages(source, time))?;
    cycles
}

/// Measures AF_PACKET at one end of a veth pair. Another thread sends at the other end, and does
/// the kernel's work of receiving.
fn live(time: Duration) -> Result<[f64; 5], Failure> {
    two_cores()?;
    let veth = &Veth::new()?;
    let has_ended = &AtomicBool::new(false);
    let failed = |error: SourceError| Failure::system("the sender", error);
    let receiving: Work<'_, [f64; 5]> = Box::new(|_| {
        let program = "retroscope-bench";
        let cycles = veth.enter().and_then(|()| {
            let source = LiveSource(LiveConfig::new("v1", program));
            stages(Box::new(source), time)
        });
        has_ended.store(true, Relaxed);
        cycles
    });
    let sending: Work<'_, [f64; 5]> = Box::new(|course: &Course| {
        veth.enter()?;
        let mut sender = LiveSender::open("v0", Path::new("retroscope-bench")).map_err(failed)?;
        let source = Box::new(GeneratorSource::new("generate", frames(None)));
        for queue in &mut source.open(1).map_err(failed)? {
            while !has_ended.load(Relaxed) {
                course.check()?;
                queue.next(Duration::ZERO).map_err(failed)?;
                sender.send(queue.burst()).map_err(failed)?;
            }
        }
        Ok([0.0; 5])
    });
    let legs = together(&|| {}, vec![receiving, sending])?;
    Ok(legs[0].value)
}

/// Fetches, stores, filters and publishes the packets of a source, until the source ends or for
/// `time`. Returns the cycles of a packet in each of [`STAGES`].
fn stages(source: Box<dyn Source>, time: Duration) -> Result<[f64; 5], Failure> {
    let failed = |error: SourceError| Failure::system("the source", error);
    let mut opened = source.open(1).map_err(failed)?;
    let (_ring, mut producers) = made(&RingConfig::new(RING_BYTES, 1, 1))?;
    let (queue, producer) = (opened[0].as_mut(), &mut producers[0]);
    let program = filter::native(filter::PORT)?;
    let mut cycles = [0_u64; 4];
    let (mut packets, mut unpublished) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < time {
        let mut last = ticks::now();
        let mut lap = |stage: usize| {
            let now = ticks::now();
            cycles[stage] += now.saturating_sub(last);
            last = now;
        };
        match queue.next(Duration::ZERO).map_err(failed)? {
            QueueStatus::Frames => lap(0),
            QueueStatus::Idle => {
                thread::park_timeout(REST);
                continue;
            }
            QueueStatus::End => break,
        }
        let burst = queue.burst();
        let data = |meta: &FrameMeta| &burst.memory[meta.offset..][..meta.captured_len as usize];
        for frames in burst.frames.chunks(Program::MANY) {
            let record = |meta: &FrameMeta| Record::whole(meta.time_ns, 0, data(meta));
            store_burst(producer, frames.iter().map(record))?;
            lap(1);
            let view =
                |meta: &FrameMeta| FilterFrame::new(data(meta), meta.wire_len, Aux::default());
            let views: Vec<_> = frames.iter().map(view).collect();
            black_box(program.run_many(&views));
            lap(2);
            packets += frames.len();
            unpublished += frames.len();
            if unpublished >= PUBLISHED {
                unpublished = 0;
                producer.publish();
                lap(3);
            }
        }
    }
    if packets == 0 {
        return Err(Failure::Unsound("the source has no packets".to_owned()));
    }
    let each = |cycles: u64| cycles as f64 / packets as f64;
    let [fetch, store, filter, publish] = cycles.map(each);
    let all = fetch + store + filter + publish;
    Ok([fetch, store, filter, publish, all])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_takes_cycles() {
        let time = Duration::from_millis(20);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("frames.pcap");
        write(&path).unwrap();
        let sources: [Box<dyn Source>; 2] = [
            Box::new(GeneratorSource::new("generate", frames(None))),
            Box::new(FileSource::new(&path)),
        ];
        for source in sources {
            let cycles = alone(source, time).unwrap();
            assert!(cycles.iter().all(|cycles| *cycles > 0.0), "{cycles:?}");
        }
        match live(time) {
            Ok(cycles) => assert!(cycles[4] > 0.0),
            Err(Failure::CannotRun(_) | Failure::Unsound(_)) => {}
            Err(failure) => panic!("{failure}"),
        }
    }
}
