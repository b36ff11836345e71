//! The kernel memory of a queue if the user does not choose a size.
//!
//! The ring must hold packets that arrive at the link's speed while the queue's thread does not
//! run. The machine's memory limits the ring, whose pages are never swapped.

use super::sys::InterfaceQuery;

/// Interruption of a thread that the ring should cover at full link speed, ms.
const HOLD_MS: u64 = 60;

/// Size of a frame in the ring relative to the wire, rounded up: a frame of 64 bytes takes 84 bytes
/// on the wire and 152 in the ring.
const GROWTH: u64 = 2;

/// Assumed speed if the driver does not report one, Mbit/s.
const SPEED_MBIT: u64 = 10_000;

/// Bounds of a queue's memory, bytes.
const QUEUE_BYTES_MIN: u64 = 64 << 20;
const QUEUE_BYTES_MAX: u64 = 512 << 20;

/// Share of the machine's memory for all queues of an interface together: one in 32. The share
/// takes precedence over [`QUEUE_BYTES_MIN`].
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

/// Bytes for each queue. `speed` is in Mbit/s.
fn bytes(speed: Option<u64>, memory_bytes: u64, queues: u64) -> u64 {
    let bytes_a_second = speed.unwrap_or(SPEED_MBIT).saturating_mul(1_000_000 / 8);
    let wanted = bytes_a_second.saturating_mul(GROWTH * HOLD_MS) / 1000 / queues;
    let most = memory_bytes / MEMORY_SHARE / queues;
    wanted.clamp(QUEUE_BYTES_MIN, QUEUE_BYTES_MAX).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory size that limits nothing in these tests.
    const LARGE: u64 = 1 << 60;

    /// The speed in Mbit/s (125 bytes per ms) for which a queue needs `bytes`.
    fn speed_for(bytes: u64) -> u64 {
        bytes.div_ceil(125 * HOLD_MS * GROWTH)
    }

    #[test]
    fn it_follows_the_link_between_bounds() {
        for speed in [0, 1, speed_for(QUEUE_BYTES_MIN / 2)] {
            assert_eq!(bytes(Some(speed), LARGE, 1), QUEUE_BYTES_MIN);
        }
        for speed in [speed_for(2 * QUEUE_BYTES_MAX), u64::MAX] {
            assert_eq!(bytes(Some(speed), LARGE, 1), QUEUE_BYTES_MAX);
        }
        let between = QUEUE_BYTES_MIN.midpoint(QUEUE_BYTES_MAX);
        let speed = speed_for(between);
        let wanted = bytes(Some(speed), LARGE, 1);
        assert!(wanted >= between && wanted < QUEUE_BYTES_MAX, "{wanted}");
        assert_eq!(wanted, GROWTH * HOLD_MS * speed * 125);
        // Queues share the link's speed.
        assert_eq!(bytes(Some(2 * speed), LARGE, 2), wanted);
        assert_eq!(bytes(None, LARGE, 1), bytes(Some(SPEED_MBIT), LARGE, 1));
    }

    #[test]
    fn a_small_machine_keeps_its_memory() {
        // A memory so small that even `QUEUE_BYTES_MIN` exceeds the share of all queues.
        let memory = MEMORY_SHARE * QUEUE_BYTES_MIN / 2;
        for queues in [1, 4] {
            let all = queues * bytes(None, memory, queues);
            assert_eq!(all, memory / MEMORY_SHARE);
        }
        assert_eq!(bytes(None, 0, 1), 0, "the ring has a least size of its own");
    }
}
