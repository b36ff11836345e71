//! How much kernel memory a queue gets where the user does not say.
//!
//! The ring holds what comes while its thread does not run. So it is sized by what the link can bring in that time, and bounded
//! by what the machine has: the kernel's memory is taken at the start and is never swapped.

use super::sys::InterfaceQuery;

/// How long a thread may be held up at full speed of the link, ms.
const HOLD_MS: u64 = 60;

/// A frame of 64 bytes takes 84 on the wire and 152 in the ring: less than this many times as much.
const GROWTH: u64 = 2;

/// Where a driver tells no speed (virtio, tun), Mbit/s.
const SPEED_MBIT: u64 = 10_000;

/// Bounds of what a queue gets, bytes.
const QUEUE_BYTES_MIN: u64 = 64 << 20;
const QUEUE_BYTES_MAX: u64 = 512 << 20;

/// All queues of an interface together get no more than this part of the memory: one in 32. Where it is less than
/// [`QUEUE_BYTES_MIN`], it prevails.
const MEMORY_SHARE: u64 = 32;

/// Bytes for each of `queues` queues of the interface.
pub(super) fn queue_bytes(query: &InterfaceQuery, interface: &str, queues: usize) -> usize {
    let speed = query.ethtool_speed(interface).ok().flatten();
    let system = rustix::system::sysinfo();
    #[allow(
        clippy::useless_conversion,
        reason = "a word of the machine, which has 32 bits on some"
    )]
    let memory_bytes = u64::try_from(system.totalram)
        .unwrap_or(u64::MAX)
        .saturating_mul(u64::from(system.mem_unit));
    let queues = u64::try_from(queues).unwrap_or(u64::MAX).max(1);
    let bytes = bytes(speed.map(u64::from), memory_bytes, queues);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The same from numbers alone; the link's speed is in Mbit/s.
fn bytes(speed: Option<u64>, memory_bytes: u64, queues: u64) -> u64 {
    let bytes_a_second = speed.unwrap_or(SPEED_MBIT).saturating_mul(1_000_000 / 8);
    let wanted = bytes_a_second.saturating_mul(GROWTH * HOLD_MS) / 1000 / queues;
    let most = memory_bytes / MEMORY_SHARE / queues;
    wanted.clamp(QUEUE_BYTES_MIN, QUEUE_BYTES_MAX).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn it_follows_the_link_between_bounds() {
        let large = 256 * GIB;
        assert_eq!(bytes(Some(100), large, 1), QUEUE_BYTES_MIN);
        assert_eq!(bytes(Some(1000), large, 1), QUEUE_BYTES_MIN);
        assert_eq!(bytes(Some(10_000), large, 1), 150_000_000);
        assert_eq!(bytes(None, large, 1), 150_000_000);
        assert_eq!(bytes(Some(25_000), large, 2), 187_500_000);
        assert_eq!(bytes(Some(100_000), large, 1), QUEUE_BYTES_MAX);
        assert_eq!(bytes(Some(100_000), large, 8), 187_500_000);
        assert_eq!(bytes(Some(u64::MAX), large, 1), QUEUE_BYTES_MAX);
    }

    #[test]
    fn a_small_machine_keeps_its_memory() {
        assert_eq!(bytes(Some(10_000), GIB, 1), GIB / 32);
        assert_eq!(bytes(Some(10_000), GIB, 4), GIB / 128);
        assert_eq!(bytes(None, 0, 1), 0, "the ring has a least size of its own");
    }
}
