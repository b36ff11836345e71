//! Why the watermark of a live queue holds. The rules are in [`crate::watermark`].
//!
//! The watermark T promises that no packet older than T will arrive. Let `t` be the system clock,
//! read *before* checking the ring. The kernel usually stamps a received packet and places it in
//! the open block within one softirq, well within [`DELIVERY_DELAY_NS_MAX`]. Placing a packet
//! raises the block's packet count, which this process can read. So:
//!
//! - If the ring offers no block and the open block counts no packet, all packets stamped before
//!   `t - DELIVERY_DELAY_NS_MAX` were lent. The watermark moves to that time.
//! - If packets wait in the open block, the watermark stays at the time of the earlier blocks.
//!   Packets are placed in the order of their stamps, except for the same delay. So no later packet
//!   is older than the last stamp of a returned block, less `DELIVERY_DELAY_NS_MAX`.
//!
//! These rules are for the kernel's stamps. The engine uses no stamp of the NIC that is older than
//! the watermark (`NicStampRange` in `block`).
//!
//! The kernel hands over a block with packets within [`RETIRE_MS`] and two ticks of its timer (8 ms
//! at 250 Hz). So the watermark of a frequently polled queue stays less than [`BEHIND_NS`] late,
//! unless the queue naps.

/// The retire time of the ring, ms: the kernel's time-out for a block that is not full.
pub(crate) const RETIRE_MS: u32 = 4;

/// Largest delay of the watermark without naps, ns: delivery, the retire time, and two timer ticks
/// of 4 ms (250 Hz).
pub(super) const BEHIND_NS: i64 = 25_000_000;

/// Largest delay of the watermark, ns, while the queue's thread can run (timer of 250 Hz). The
/// bound holds if the caller calls `Queue::next` again as soon as the call returns, with waits of
/// 16 ms or less. A window that is closed by the clock waits longer than this.
pub const WATERMARK_BEHIND_NS_MAX: i64 = 47_000_000;

/// Longest expected time, ns, from the stamp of a packet to its place in the ring. Placing takes
/// microseconds; the limit allows for a descheduled virtual CPU and for the kernel's input queue.
pub(super) const DELIVERY_DELAY_NS_MAX: i64 = 12_000_000;
