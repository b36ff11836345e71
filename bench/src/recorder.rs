//! The whole recorder: the generator in this process, an inserter, the ring, the analyzer with a trigger filter.

use std::{path::Path, sync::Arc, time::Duration, time::Instant};

use retroscope_capture::{
    Source,
    generator::{GeneratorConfig, GeneratorSource},
};
use retroscope_recorder::{Config, Event, Format, Recorder, Scripts, SystemClock};
use retroscope_ring::Backing;

use crate::contest::Failure;

/// Ring bytes that a frame takes beside its own: the descriptor, and some for what is left over at the ends of buckets.
const OVERHEAD_BYTES: u64 = 18;
/// The trigger filter. None of the frames has this port.
const TRIGGER: &str = "udp port 60000";
/// A recorder that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(20);

/// Records `size`-byte frames at full speed, live, into a ring of `ring_bytes`, and returns Mpps from the start of the threads to
/// the last frame analyzed.
///
/// There are as many frames as fit into the ring together, so that nothing is overwritten before it was read, however threads are
/// scheduled; each was stored and analyzed, or the run fails. Memory is filled before the clock starts.
///
/// # Errors
/// [`Failure`].
pub fn run(ring_bytes: u64, size: u16, directory: &Path) -> Result<f64, Failure> {
    let count = ring_bytes * 15 / 16 / (u64::from(size) + OVERHEAD_BYTES);
    let generator = GeneratorConfig {
        size,
        count: Some(count),
        ..GeneratorConfig::default()
    };
    let config = config(ring_bytes, directory);
    let sources = || {
        let source = GeneratorSource::new("generate", generator.clone());
        Ok(vec![Box::new(source) as Box<dyn Source>])
    };
    let clock = Arc::new(SystemClock::new());
    let recorder = Recorder::start(&config, &sources, &[], clock, None)
        .map_err(|error| Failure::system("starting the recorder", error))?;
    let start = Instant::now();
    let limit = start + SILENCE;
    let failure = loop {
        match recorder.event(limit.saturating_duration_since(Instant::now())) {
            Ok(Event::Notice(_)) => {}
            Ok(other) => {
                break Some(Failure::Unsound(format!(
                    "no frame should match: {other:?}"
                )));
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break None,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                recorder.handle().abort();
                break Some(Failure::Deadline {
                    seconds: SILENCE.as_secs(),
                });
            }
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    let summary = recorder.join();
    if let Some(failure) = failure {
        return Err(failure);
    }
    if summary.lapped > 0 {
        return Err(Failure::Lapped {
            packets: summary.lapped,
        });
    }
    for seen in [summary.stored, summary.analyzed] {
        if seen != count {
            return Err(Failure::Count {
                expected: count,
                seen,
            });
        }
    }
    Ok(count as f64 / seconds / 1e6)
}

/// Dumps would go to `directory`; there are none.
fn config(ring_bytes: u64, directory: &Path) -> Config {
    Config {
        offline: false,
        ring_bytes,
        ring_backing: Backing::Anonymous,
        numa_node: None,
        rx_threads: 1,
        triggers: vec![TRIGGER.to_owned()],
        dump: String::new(),
        manual_dump: String::new(),
        scripts: Scripts::default(),
        filter: None,
        past: Duration::from_secs(1),
        future: Duration::from_secs(1),
        hold: Duration::ZERO,
        single: false,
        max_dumps: 1,
        hold_off: Duration::ZERO,
        dumps_per_minute: 0,
        bytes_per_hour: 0,
        snaplen: 0,
        count: None,
        duration: None,
        directory: directory.to_owned(),
        format: Format::PcapNg,
        reproducible: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_recorder_sees_every_frame() {
        let folder = tempfile::tempdir().unwrap();
        assert!(run(32 << 20, 64, folder.path()).unwrap() > 0.0);
    }
}
