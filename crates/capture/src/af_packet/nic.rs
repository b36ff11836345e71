//! Packets that the NIC had no room for: the interface's counters, of which only growth since the opening counts.

use super::sys::Links;

/// The losses of one interface, over all its incarnations.
#[derive(Debug)]
pub(crate) struct NicLosses {
    counters: Links,
    index: i32,
    /// The interface's counter when it was last read.
    last: u64,
    lost: u64,
}

impl NicLosses {
    /// Counts from now on. `None`: the kernel does not tell.
    pub(crate) fn watch(index: i32) -> Option<Self> {
        let mut counters = Links::new().ok()?;
        let last = counters.lost(index).ok()?;
        Some(Self {
            counters,
            index,
            last,
            lost: 0,
        })
    }

    /// The interface is a new one.
    pub(crate) fn follow(&mut self, index: i32) {
        self.index = index;
        self.last = self.counters.lost(index).unwrap_or(0);
    }

    /// Packets lost so far. Those of an interface that is gone stay as last read.
    pub(crate) fn read(&mut self) -> u64 {
        if let Ok(now) = self.counters.lost(self.index) {
            // Some drivers start again when the interface goes down and up.
            self.lost += if now < self.last {
                now
            } else {
                now - self.last
            };
            self.last = now;
        }
        self.lost
    }
}
