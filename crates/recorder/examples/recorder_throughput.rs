//! Measures a whole recorder: the generator at full speed, one inserter, the ring, and trigger
//! filters.
//!
//! `cargo run --release -p retroscope-recorder --example recorder_throughput [RING_MIB] [SIZE]
//! [FILTER…]`
//!
//! The generator makes as many frames as fit into 15/16 of the ring, so the ring overwrites no
//! frame. The run fails if a packet is not stored or not analyzed, or if a packet matches a
//! trigger.
#![expect(clippy::print_stdout, reason = "prints a measurement")]

use std::{env, error::Error, sync::Arc, time::Duration, time::Instant};

use retroscope_capture::Source;
use retroscope_generate::{GeneratorConfig, GeneratorSource};
use retroscope_recorder::{Config, Recorder, RecorderEvent, SystemClock};

/// Ring bytes per frame in addition to its data: 16 for the descriptor, and 2 as an allowance for
/// unused memory at the ends of buckets.
const OVERHEAD_BYTES: u64 = 18;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let ring_mib = args.next().map_or(Ok(2048), |text| text.parse::<u64>())?;
    let size = args.next().map_or(Ok(64), |text| text.parse::<u16>())?;
    let mut triggers: Vec<String> = args.filter(|text| !text.is_empty()).collect();
    if env::args().len() < 4 {
        triggers.push("udp port 60000".to_owned());
    }
    let ring_bytes = ring_mib << 20;
    let count = ring_bytes * 15 / 16 / (u64::from(size) + OVERHEAD_BYTES);
    let generator = GeneratorConfig {
        size,
        count: Some(count),
        ..GeneratorConfig::default()
    };
    let config = Config {
        ring_bytes,
        triggers,
        past: Duration::from_secs(1),
        future: Duration::from_secs(1),
        max_dumps: 1,
        directory: Some(env::temp_dir()),
        ..Config::default()
    };
    let sources = || {
        let source = GeneratorSource::new("generate", generator.clone());
        Ok(vec![Box::new(source) as Box<dyn Source>])
    };
    let clock = Arc::new(SystemClock);
    let recorder = Recorder::start(&config, &sources, &[], clock, None, &mut || Ok(()))?;
    let start = Instant::now();
    while let Ok(event) = recorder.event(Duration::from_secs(60)) {
        match event {
            RecorderEvent::Notice(text) => println!("{text}"),
            other => return Err(format!("no packet should match: {other:?}").into()),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let summary = recorder.join();
    let packets = (summary.stored, summary.analyzed, summary.lapped);
    println!(
        "{size} B: {:.2} Mpps, {:.2} ns a packet; stored {}, analyzed {}, lapped {}",
        count as f64 / seconds / 1e6,
        seconds * 1e9 / count as f64,
        packets.0,
        packets.1,
        packets.2,
    );
    if packets != (count, count, 0) {
        return Err(format!("{count} packets were generated").into());
    }
    Ok(())
}
