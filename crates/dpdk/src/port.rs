//! Opens a port: number of queues, the device's treatment of packets, memory.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{
    config::DpdkConfig,
    device::DpdkDevice,
    driver::DriverQuirks,
    eal::refused,
    sys::{self, Environment, MbufPool, PortBuilder, PortSetup, PortsLock},
};
use retroscope_capture::{
    SourceError,
    quantity::counted,
    rss::{ADDRESSES_AND_PORTS, FlowKind, RssSettings, TOEPLITZ, symmetric_key},
};

/// Maximum number of packets of a burst.
pub(super) const BURST: u16 = 64;

/// Descriptors of a NIC's queue by default, if the NIC supports as many: 275 µs at 10 Gbit/s of the
/// smallest frames.
const DESCRIPTORS: u16 = 4096;
/// Descriptors of a vdev's queue by default; most drivers of vdevs ignore the number.
const DESCRIPTORS_OF_VDEV: u16 = 512;

/// Buffers in addition to the descriptors: the lent burst, and the caches of threads.
const SPARE_BUFFERS: u32 = 1024;

/// Bytes of a buffer before a frame (`RTE_PKTMBUF_HEADROOM`), and bytes for a frame, smaller
/// buffers first. Some drivers require frames in one piece, and refuse buffers that are too small.
const HEADROOM: u16 = 128;
const ROOMS: [u16; 2] = [2048, 16_384];

/// The longest frame that is copied from several buffers, or from a foreign buffer.
pub(super) const FRAME_BYTES_MAX: u32 = 65_536;

/// Maximum MTU that is requested from a NIC: a network tap or mirror port may deliver jumbo frames.
const MTU: u16 = 9000;

/// A started port.
#[derive(Debug)]
pub(super) struct OpenPort {
    pub(super) port: Arc<sys::Port>,
    pub(super) quirks: DriverQuirks,
    pub(super) driver: String,
    pub(super) node: i32,
    pub(super) queues: u16,
    /// Whether all packets of a flow arrive through the same queue: either there is one queue, or
    /// the hash key proves this property (except for fragments).
    pub(super) flows_together: bool,
    /// Number of threads, with one pool each.
    pub(super) threads: u16,
    pub(super) descriptors: u16,
    /// Whether the NIC stamps packets with its clock, which can be read.
    pub(super) has_clock: bool,
    pub(super) notices: Vec<String>,
}

/// Opens and starts the port of a device for up to `threads` threads.
///
/// # Errors
/// [`SourceError`].
pub(super) fn open(
    environment: &'static Environment,
    device: &DpdkDevice,
    config: &DpdkConfig,
    threads: u16,
) -> Result<OpenPort, SourceError> {
    let name = &device.name;
    let mut ports_lock = PortsLock::acquire();
    let number = find(environment, device, &mut ports_lock)?;
    let mut port = PortBuilder::new(environment, number, ports_lock);
    let error = |call| move |error| refused(call, name, error);
    let described = port.describe().map_err(error("rte_eth_dev_info_get"))?;
    let driver = described.driver();
    let quirks = DriverQuirks::of(&driver, device);
    let mut notices = Vec::new();
    let queues = queue_count(threads, described.queues_max, described.rss_types, quirks);
    if u32::from(threads) > u32::from(queues) {
        let has = counted(queues.into(), "receive queue");
        let why = if described.queues_max > queues {
            ", because it cannot spread packets"
        } else {
            ""
        };
        notices.push(format!("{name}: {has}{why}, so not more threads capture"));
    }
    let is_spread = queues > 1 && !quirks.has_fixed_queues;
    let mut key = match is_spread {
        true => symmetric_key(described.key_bytes.into()),
        false => Vec::new(),
    };
    let mut setup = PortSetup {
        mtu: if quirks.is_vdev {
            0
        } else {
            u32::from(MTU.min(described.mtu_max))
        },
        queues,
        strip: described.can_strip,
        stamp: described.can_stamp && quirks.stamp_ns.is_none() && port.port.clock().is_ok(),
        scatter: described.can_scatter,
    };
    configure(&mut port, &mut setup, &mut key, name, &mut notices)
        .map_err(error("rte_eth_dev_configure"))?;
    let queues = setup.queues;
    let memory = PortMemory {
        name,
        device: &described,
        quirks,
        queues,
        threads: threads.min(queues),
    };
    let descriptors = memory
        .set_up(&mut port, config.buffer_bytes)
        .map_err(error("rte_eth_rx_queue_setup"))?;
    port.start().map_err(error("rte_eth_dev_start"))?;
    let mut flows_together = queues == 1;
    if !key.is_empty() {
        let notice = check_spread(&mut port, name, queues, &key);
        flows_together |= notice.is_none();
        notices.extend(notice);
    }
    // Only for a NIC. For a vdev on a host interface, the source or libpcap sets promiscuous mode
    // in a way that ends with the process.
    if config.promiscuous
        && !quirks.is_vdev
        && let Err(refusal) = port.set_promiscuous()
    {
        notices.push(format!(
            "{name}: not promiscuous, frames for other hosts are not seen: {refusal}"
        ));
    }
    // Discard the drivers' messages until here: the opening succeeded in spite of these messages.
    sys::take_log();
    Ok(OpenPort {
        threads: memory.threads,
        port: Arc::new(port.finish()),
        quirks,
        driver,
        node: described.node,
        queues,
        flows_together,
        descriptors,
        has_clock: setup.stamp,
        notices,
    })
}

/// The port of a device. Creates the port if the environment has not created it at its start.
fn find(
    environment: &Environment,
    device: &DpdkDevice,
    ports_lock: &mut PortsLock,
) -> Result<u16, SourceError> {
    if let Ok(number) = environment.find(ports_lock, &device.name) {
        return Ok(number);
    }
    environment
        .probe(ports_lock, &device.with_defaults())
        .map_err(|error| match refused("rte_dev_probe", &device.name, error) {
            SourceError::System { interface, error, .. } if device.is_pci() => SourceError::Unsupported(format!(
                    "DPDK cannot open {interface}: {error}. Is it bound to vfio-pci (dpdk-devbind.py -s), and are there hugepages \
                     (grep Huge /proc/meminfo)?"
                )),
            other => other,
        })?;
    environment
        .find(ports_lock, &device.name)
        .map_err(|error| refused("rte_eth_dev_get_port_by_name", &device.name, error))
}

/// Number of receive queues to open: all queues if all get packets anyway. Otherwise one queue per
/// thread, at most `queues_max`, if the device can spread packets, else one queue.
fn queue_count(threads: u16, queues_max: u16, rss_types: u64, quirks: DriverQuirks) -> u16 {
    let most = queues_max.max(1);
    if quirks.has_fixed_queues {
        most
    } else if rss_types == 0 {
        1
    } else {
        threads.clamp(1, most)
    }
}

/// Configures the port as `setup` says. If the driver refuses, tries without long frames, then with
/// one queue.
fn configure(
    port: &mut PortBuilder,
    setup: &mut PortSetup,
    key: &mut Vec<u8>,
    name: &str,
    notices: &mut Vec<String>,
) -> io::Result<()> {
    let mut outcome = port.configure(setup, key);
    if outcome.is_err() && setup.mtu > 0 {
        setup.mtu = 0;
        outcome = port.configure(setup, key);
        if outcome.is_ok() {
            notices.push(format!(
                "{name}: it takes no frames with more than 1500 bytes of payload"
            ));
        }
    }
    if let (Err(error), false) = (&outcome, key.is_empty()) {
        notices.push(format!(
            "{name}: it does not spread packets over queues ({error}), so one thread captures"
        ));
        key.clear();
        setup.queues = 1;
        outcome = port.configure(setup, key);
    }
    outcome
}

/// Makes both directions of a conversation reach one queue, as they do with `key`. Returns a notice
/// to the user if this fails or cannot be verified.
fn check_spread(port: &mut PortBuilder, name: &str, queues: u16, key: &[u8]) -> Option<String> {
    let mut found = port.rss_key(key.len());
    if found.as_ref().is_ok_and(|found| found != key) && port.set_rss_key(key).is_ok() {
        found = port.rss_key(key.len());
    }
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            return Some(format!(
                "{name}: whether conversations stay in one queue is unknown: the driver does not show its hash key ({error})"
            ));
        }
    };
    let settings = RssSettings {
        function: TOEPLITZ,
        key: found,
        symmetric_input: false,
        table: (0..128).map(|entry| entry % u32::from(queues)).collect(),
        fields: FlowKind::ALL
            .map(|kind| (kind, ADDRESSES_AND_PORTS))
            .to_vec(),
    };
    let is_split = |kind: &FlowKind| settings.splits(*kind).is_some();
    FlowKind::ALL.iter().any(is_split).then(|| {
        format!("{name}: its driver keeps its own hash key, so the two directions of a conversation may reach two threads")
    })
}

/// Number of pools until now, for unique names. Relaxed: only the number matters.
static POOLS: AtomicU32 = AtomicU32::new(0);

/// The properties that determine the memory of a port.
struct PortMemory<'a> {
    name: &'a str,
    device: &'a sys::PortDescription,
    quirks: DriverQuirks,
    queues: u16,
    threads: u16,
}

impl PortMemory<'_> {
    /// Makes a pool for each thread, and sets up its queues: thread `t` of `n` serves the queues
    /// `t`, `t + n`, and so on. Returns the descriptors that it requests for each queue.
    fn set_up(&self, port: &mut PortBuilder, buffer_bytes: Option<usize>) -> io::Result<u16> {
        let for_thread = u32::from(self.queues.div_ceil(self.threads));
        let (least, most) = (self.device.descriptors_min, self.device.descriptors_max);
        let mut refusal = None;
        for room in ROOMS {
            let wanted = match buffer_bytes {
                Some(bytes) => {
                    let buffers = bytes / usize::from(room) / for_thread as usize;
                    1 << u16::try_from(buffers.clamp(64, 1 << 15)).map_or(15, u16::ilog2)
                }
                None if self.quirks.is_vdev => DESCRIPTORS_OF_VDEV,
                None => DESCRIPTORS,
            };
            let descriptors = wanted.clamp(least, most.max(least));
            let buffers = u32::from(descriptors) * for_thread + SPARE_BUFFERS;
            match self.try_room(port, room, buffers, descriptors)? {
                Ok(()) => return Ok(descriptors),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    /// Tries buffers of this size. The outer error is a failure to make the pools. The inner result
    /// is the driver's answer to the buffers.
    fn try_room(
        &self,
        port: &mut PortBuilder,
        room: u16,
        buffers: u32,
        descriptors: u16,
    ) -> io::Result<io::Result<()>> {
        let own_bytes = usize::from(BURST) * FRAME_BYTES_MAX as usize;
        // If only this process uses the buffers, they may cross page boundaries.
        let (node, packed) = (self.device.node, self.quirks.copies);
        let mut pools: Vec<MbufPool> = Vec::new();
        for _ in 0..self.threads {
            // Each name is unique: the pools of a refused size exist until the port is closed.
            let name = format!("rs{}", POOLS.fetch_add(1, Ordering::Relaxed));
            let pool = port
                .pool(&name, buffers, room + HEADROOM, own_bytes, node, packed)
                .map_err(|error| self.no_memory(error))?;
            pools.push(pool);
        }
        let set_up = |queue: u16| {
            let pool = &pools[usize::from(queue % self.threads)];
            port.set_up_queue(queue, descriptors, node, pool)
        };
        let outcome = (0..self.queues).try_for_each(set_up);
        // A queue may use its pool although a later queue was refused, so all pools stay until the
        // port is closed.
        port.keep_pools(pools);
        Ok(outcome)
    }

    fn no_memory(&self, error: io::Error) -> io::Error {
        let name = self.name;
        match error.kind() {
            io::ErrorKind::OutOfMemory => io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "no memory for the buffers of {name}: give DPDK more with eal-args '-m MIB'"
                ),
            ),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_get_packets_anyway_are_all_opened() {
        let quirks = |device: &str| {
            let device: DpdkDevice = device.parse().unwrap();
            DriverQuirks::of(device.name.trim_end_matches(char::is_numeric), &device)
        };
        assert_eq!(queue_count(1, 4, 0, quirks("net_pcap0")), 4);
        assert_eq!(queue_count(3, 1024, 1, quirks("net_null0")), 3);
        assert_eq!(queue_count(8, 4, 1, quirks("03:00.0")), 4);
        assert_eq!(
            queue_count(8, 4, 0, quirks("03:00.0")),
            1,
            "it cannot spread"
        );
        assert_eq!(queue_count(0, 0, 1, quirks("03:00.0")), 1);
    }
}
