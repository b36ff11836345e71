//! Why the watermark of a live queue holds. Its rules are those of [`crate::watermark`].
//!
//! "Nothing older than T will come" while the link may be silent. Let `t` be the system clock read *before* looking at the
//! ring. The kernel stamps a packet and places it in its open block in one go in softirq context, well within
//! [`DELIVERY_DELAY_NS_MAX`]; placing raises the block's packet count, which we can see. So
//!
//! - if the ring offers no block and its open block counts no packet, all packets stamped before `t - DELIVERY_DELAY_NS_MAX` were
//!   lent: the watermark moves there,
//! - if packets wait in the open block, it stays where the blocks before put it: stamps follow each other in the order of
//!   placing but for the same delay, so nothing older than the last stamp of a block given back, less `DELIVERY_DELAY_NS_MAX`, comes.
//!
//! A block with packets is handed over within [`RETIRE_MS`] and two ticks of the kernel's timer, so the
//! watermark of a queue that is asked often stays less than [`BEHIND_NS`] behind the clock, without any traffic, and a nap (8 ms,
//! or 16) more on a busy link. A queue that may wait longer, because nobody needs its watermark, moves it as seldom as it is asked.

/// How long, in ms, a packet waits at most until the kernel hands over its block, which need not be full: the retire time of the ring.
pub(crate) const RETIRE_MS: u32 = 4;

/// How far the watermark stays behind the clock without naps: placing, the retire time, and two ticks at 250 Hz, or nearly at 100.
pub(super) const BEHIND_NS: i64 = 25_000_000;

/// How far the watermark of a queue that is asked whenever it returns, to wait for 16 ms or less, stays behind the clock at most,
/// ns, as long as its thread is not kept from running. Whoever closes a window by the clock waits longer.
pub const WATERMARK_BEHIND_NS_MAX: i64 = 47_000_000;

/// From the stamp of a packet to its place in the ring at most: far more than the microseconds it takes, to allow for a
/// virtual CPU that is descheduled in between, and for the backlog where the kernel stamps before it.
pub(super) const DELIVERY_DELAY_NS_MAX: i64 = 12_000_000;
