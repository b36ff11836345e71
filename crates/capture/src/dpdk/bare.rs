//! The limit that the engine is measured against: DPDK's own loop that receives and frees, with its buffers where
//! `rte_pktmbuf_pool_create` would place them.

use std::{sync::Arc, time::Duration};

use super::{
    DpdkConfig,
    device::Device,
    eal::{environment, register_thread},
    port::{self, BURST, Wish},
    sys::Batch,
};
use crate::{SourceError, clock};

/// Bursts between two looks at the clock.
const BURSTS: u32 = 1000;

/// Receives from the first queue of a device for so long, and frees what comes without a look at it. Returns packets and ns.
///
/// # Errors
/// Those of opening the device, as for [`DpdkSource`](super::DpdkSource).
pub fn discard(config: &DpdkConfig, duration: Duration) -> Result<(u64, i64), SourceError> {
    let device: Device = config.device.parse()?;
    let environment = environment(&config.eal)?;
    let wish = Wish {
        promiscuous: false,
        threads: 1,
        buffer_bytes: config.buffer_bytes,
        packs_buffers: false,
    };
    let opened = port::open(environment, &device, wish)?;
    let mut batch = Batch::new(Arc::new(opened.port), 0, BURST);
    let run = || {
        // A thread that is not known pays for its buffers each time; that would flatter whoever is compared.
        let _ = register_thread(environment);
        let start_ns = clock::monotonic_ns();
        let mut packets = 0;
        loop {
            packets += batch.discard(0, BURSTS);
            let passed_ns = clock::monotonic_ns() - start_ns;
            if passed_ns >= clock::duration_ns(duration) {
                return (packets, passed_ns);
            }
        }
    };
    // A thread of its own, as an inserter is.
    Ok(std::thread::scope(|scope| match scope.spawn(run).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }))
}
