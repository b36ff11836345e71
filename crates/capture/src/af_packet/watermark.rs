//! The watermark of a live queue.
//!
//! "Nothing older than T will come" while the link may be silent. Let `t` be the system clock read *before* looking at the
//! ring. The kernel stamps a packet and places it in its open block in one go in softirq context, well within
//! [`PLACING_NS`]; placing raises the block's packet count, which we can see. So
//!
//! - if the ring offers no block and its open block counts no packet, all packets stamped before `t - PLACING_NS` were
//!   lent: the watermark moves there,
//! - if packets wait in the open block, it stays where the blocks before put it: stamps follow each other in the order of
//!   placing but for the same delay, so nothing older than the last stamp of a block given back, less `PLACING_NS`, comes.
//!
//! A block with packets is handed over within the retire time (4 ms) and two ticks of the kernel's timer, so the
//! watermark of a queue that is asked often stays less than 25 ms behind the clock, without any traffic.
//! It never passes the frames of the burst that is being lent. When the system clock is set back it goes back too.

use super::block::BlockSummary;

/// From the stamp of a packet to its place in the ring at most: far more than the microseconds it takes, to allow for a
/// virtual CPU that is descheduled in between, and for the backlog where the kernel stamps before it.
pub(super) const PLACING_NS: i64 = 12_000_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Watermark {
    pub(super) time_ns: i64,
    /// The last stamp of the newest block that was taken.
    last_block_ns: i64,
}

impl Watermark {
    /// A block is lent: only the blocks before it are behind us.
    pub(super) fn on_block(&mut self, summary: BlockSummary) {
        self.on_given_back();
        self.last_block_ns = summary.last_ns;
    }

    /// All blocks that were taken were given back.
    pub(super) fn on_given_back(&mut self) {
        self.time_ns = self
            .time_ns
            .max(self.last_block_ns.saturating_sub(PLACING_NS));
    }

    /// The ring had nothing at `looked_ns`, not even in its open block.
    pub(super) fn on_silence(&mut self, looked_ns: i64) {
        self.time_ns = self.time_ns.max(looked_ns.saturating_sub(PLACING_NS));
    }

    /// The system clock was set back to `now_ns`.
    pub(super) fn on_clock_set_back(&mut self, now_ns: i64) {
        *self = Self::new(now_ns);
    }

    pub(super) fn new(now_ns: i64) -> Self {
        let time_ns = now_ns.saturating_sub(PLACING_NS);
        Self {
            time_ns,
            last_block_ns: time_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SECOND_NS;

    fn block(last_ns: i64) -> BlockSummary {
        BlockSummary {
            packets: 1,
            last_ns,
            ..BlockSummary::default()
        }
    }

    #[test]
    fn the_watermark_follows_what_was_given_back() {
        let start_ns = 1_000 * SECOND_NS;
        let mut watermark = Watermark::new(start_ns);
        assert_eq!(watermark.time_ns, start_ns - PLACING_NS);
        let before_ns = watermark.time_ns;
        watermark.on_block(block(start_ns + SECOND_NS));
        assert!(watermark.time_ns <= before_ns, "the block is being lent");
        watermark.on_block(block(start_ns + 2 * SECOND_NS));
        assert_eq!(watermark.time_ns, start_ns + SECOND_NS - PLACING_NS);
        watermark.on_given_back();
        assert_eq!(watermark.time_ns, start_ns + 2 * SECOND_NS - PLACING_NS);
    }

    #[test]
    fn the_watermark_follows_the_clock_in_silence() {
        let start_ns = 1_000 * SECOND_NS;
        let mut watermark = Watermark::new(start_ns);
        watermark.on_silence(start_ns + SECOND_NS);
        assert_eq!(watermark.time_ns, start_ns + SECOND_NS - PLACING_NS);
        watermark.on_silence(start_ns);
        watermark.on_block(block(start_ns));
        watermark.on_given_back();
        assert_eq!(
            watermark.time_ns,
            start_ns + SECOND_NS - PLACING_NS,
            "never back"
        );
        watermark.on_clock_set_back(start_ns - 60 * SECOND_NS);
        assert_eq!(
            watermark.time_ns,
            start_ns - 60 * SECOND_NS - PLACING_NS,
            "but with the clock"
        );
    }
}
