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

    /// Memory that bounds nothing here.
    const LARGE: u64 = 1 << 60;

    /// A speed, Mbit/s, that wants `bytes`: a megabit a second brings 125 bytes in a millisecond.
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
        // Queues share what the link brings in.
        assert_eq!(bytes(Some(2 * speed), LARGE, 2), wanted);
        assert_eq!(bytes(None, LARGE, 1), bytes(Some(SPEED_MBIT), LARGE, 1));
    }

    #[test]
    fn a_small_machine_keeps_its_memory() {
        // So small that even the least is more than its part.
        let memory = MEMORY_SHARE * QUEUE_BYTES_MIN / 2;
        for queues in [1, 4] {
            let all = queues * bytes(None, memory, queues);
            assert_eq!(all, memory / MEMORY_SHARE);
        }
        assert_eq!(bytes(None, 0, 1), 0, "the ring has a least size of its own");
    }
}
