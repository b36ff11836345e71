//! Inserters alone, with nobody who looks: the generator in this process, and DPDK's made-up packets.

use std::{sync::Arc, time::Duration};

use retroscope_capture::{
    Source,
    generator::{GeneratorConfig, GeneratorSource},
};
use retroscope_recorder::{Inserted, SystemClock, insert_only};

use crate::contest::Failure;

/// Mpps of frames of `size` bytes that one or more threads store, none lost, until `duration` is over for all of them.
///
/// A duration rather than a number of frames for each: where one of the CPUs is slower for a while, as a guest's may be, the other
/// thread goes on meanwhile, as it would in a recording, and does not wait for the end.
///
/// # Errors
/// [`Failure`].
pub fn generated(
    ring_bytes: u64,
    size: u16,
    threads: usize,
    duration: Duration,
) -> Result<f64, Failure> {
    let generator = GeneratorConfig {
        size,
        ..GeneratorConfig::default()
    };
    let source = Box::new(GeneratorSource::new("generate", generator));
    let inserted = insert(source, threads, ring_bytes, duration)?;
    Ok(stored(&inserted)? as f64 / inserted.elapsed.as_secs_f64() / 1e6)
}

fn insert(
    source: Box<dyn Source>,
    threads: usize,
    ring_bytes: u64,
    duration: Duration,
) -> Result<Inserted, Failure> {
    let clock = Arc::new(SystemClock::new());
    insert_only(vec![source], threads, ring_bytes, Some(duration), clock)
        .map_err(|error| Failure::system("starting inserters", error))
}

/// What was stored, if it is all that was received.
fn stored(inserted: &Inserted) -> Result<u64, Failure> {
    let source = &inserted.sources[0];
    match (source.received, source.lost_known()) {
        (Some(received), 0) if received == source.stored => Ok(received),
        _ => Err(Failure::Unsound(format!("packets were lost: {source:?}"))),
    }
}

/// DPDK's `net_null`.
#[cfg(feature = "dpdk")]
pub mod null {
    use std::time::Duration;

    use retroscope_capture::{
        CpuTurns,
        dpdk::{DpdkConfig, DpdkSource, EalConfig, discard},
    };

    use super::{Failure, insert, stored};

    fn config(size: u16) -> DpdkConfig {
        let device = format!("net_null0,size={size}");
        DpdkConfig {
            eal: EalConfig {
                arguments: Vec::new(),
                devices: vec![device.clone()],
            },
            device,
            promiscuous: false,
            take_interface: false,
            buffer_bytes: None,
            cpus: CpuTurns::default(),
        }
    }

    /// Mpps of frames of `size` bytes that one inserter stores, none lost.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn into_ring(ring_bytes: u64, size: u16, duration: Duration) -> Result<f64, Failure> {
        let source = Box::new(DpdkSource::new(config(size)));
        let inserted = insert(source, 1, ring_bytes, duration)?;
        Ok(stored(&inserted)? as f64 / inserted.elapsed.as_secs_f64() / 1e6)
    }

    /// Mpps of a loop that receives and frees, with buffers where DPDK places them.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn bare(size: u16, duration: Duration) -> Result<f64, Failure> {
        let (packets, ns) = discard(&config(size), duration)
            .map_err(|error| Failure::system("opening net_null", error))?;
        Ok(packets as f64 * 1e3 / ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_runs_lose_nothing() {
        for threads in [1, 2] {
            let moment = Duration::from_millis(2);
            assert!(generated(32 << 20, 64, threads, moment).unwrap() > 0.0);
        }
    }

    #[cfg(feature = "dpdk")]
    #[test]
    fn made_up_packets_are_stored() {
        let moment = Duration::from_millis(2);
        assert!(null::into_ring(32 << 20, 64, moment).unwrap() > 0.0);
        assert!(null::bare(64, moment).unwrap() > 0.0);
    }
}
