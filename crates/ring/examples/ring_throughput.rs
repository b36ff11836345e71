//! One producer stores frames of one length, and one gating reader reads every descriptor. Prints
//! Mpps and Gbit/s for each length.
//!
//! `cargo run --release -p retroscope-ring --example ring_throughput [RING_MIB]`
#![expect(clippy::print_stdout, reason = "prints a table")]

use std::{
    error::Error,
    thread,
    time::{Duration, Instant},
};

use retroscope_ring::{GroupKind, Mode, Producer, Reader, Record, Ring, RingConfig};

/// Maximum number of records in one call of `store_burst`.
const BURST: usize = 64;
/// Approximate number of bytes stored for each length, descriptors included.
const BYTES: u64 = 4 << 30;

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mib = std::env::args()
        .nth(1)
        .map_or(Ok(1024), |text| text.parse::<u64>())?;
    println!("bytes     Mpps   Gbit/s");
    for length in [60, 64, 100, 128, 200, 512, 1514] {
        let ring = Ring::new(
            &RingConfig {
                mode: Mode::Wait,
                ..RingConfig::new(mib << 20, 1, 1)
            },
            None,
        )?;
        let reader = ring.group(GroupKind::Gating)?;
        let producer = ring.producer()?;
        let count = BYTES / (length as u64 + 16);
        let start = Instant::now();
        let sum = thread::scope(|scope| {
            let writer = scope.spawn(move || store(producer, length, count));
            let reader = scope.spawn(move || read(reader, count));
            writer.join().map_err(|_| "the writer panicked")??;
            reader.join().map_err(|_| "the reader panicked")?
        })?;
        let seconds = start.elapsed().as_secs_f64();
        if sum != count * (count - 1) / 2 {
            return Err("what was read is not what was stored".into());
        }
        let mpps = count as f64 / seconds / 1e6;
        println!(
            "{length:5} {mpps:8.2} {:8.2}",
            mpps * length as f64 * 8.0 / 1e3
        );
    }
    Ok(())
}

fn store(mut producer: Producer, length: usize, count: u64) -> Result<(), Failure> {
    let frame = vec![0x55; length];
    for start in (0..count).step_by(BURST) {
        let numbers = start..count.min(start + BURST as u64);
        producer
            .store_burst(numbers.map(|number| Record::whole(number.cast_signed(), 0, &frame)))?;
    }
    producer.publish();
    Ok(())
}

/// Returns the sum of the stamps, which are the numbers of the records.
fn read(mut reader: Reader, count: u64) -> Result<u64, Failure> {
    let (mut read, mut sum) = (0, 0);
    while read < count {
        let Some(batch) = reader.next() else {
            reader.wait(Duration::from_secs(1));
            continue;
        };
        read += batch.len() as u64;
        sum += batch
            .times_and_lengths()
            .map(|(time_ns, _)| time_ns.cast_unsigned())
            .sum::<u64>();
    }
    Ok(sum)
}
