//! What tests ask of a dumper.

use std::{
    sync::mpsc::sync_channel,
    time::{Duration, Instant},
};

use retroscope_ring::Positions;

use super::{Bounds, Dumper};
use crate::{control::progress::DumperProgress, dump::order::DumperMessage};

impl Dumper {
    /// Dumps that wait for their filters.
    pub(crate) fn compiling(&self) -> usize {
        self.active.iter().filter(|dump| dump.is_compiling).count()
    }

    /// How many dumps rounds have looked at so far, one that is looked at twice counted twice.
    pub(crate) fn looks(&self) -> usize {
        self.active.looks
    }

    /// Sinks that are `full` have room for nothing from now on.
    pub(crate) fn fill(&mut self, mut full: impl FnMut() -> bool) {
        let ids: Vec<u64> = self.active.iter().map(|dump| dump.order.id).collect();
        for id in ids {
            if let Some(dump) = self.active.get_mut(id) {
                dump.sink.is_full = full();
            }
        }
    }

    /// A round begins, and messages come before it goes on.
    pub(crate) fn begin_round(&mut self) -> Bounds {
        self.bounds()
    }

    /// The rest of a round.
    pub(crate) fn end_round(&mut self, bounds: Bounds) {
        self.round(bounds);
    }

    /// Reads no further than `positions` from now on, but for the records before `end`, once.
    pub(crate) fn account(&mut self, positions: Positions, end: u64) {
        let hold_ns = 0;
        self.parts.progress = DumperProgress::Follow { positions, hold_ns };
        let (reply, told) = sync_channel(1);
        let ends = vec![end];
        self.take(DumperMessage::Account { ends, reply });
        self.step();
        told.recv().unwrap();
        self.step();
    }

    /// Loses the thread that compiles.
    pub(crate) fn lose_compiler(&mut self) {
        self.compiler.lose();
    }

    /// Waits until all that sinks were asked for is done, and hears of it.
    pub(crate) fn settle(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            // Before the look: what was told by then is heard after it.
            let is_idle = self.parts.pool.is_idle();
            self.take_outcomes();
            if is_idle && self.ending.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{:?}", self.ending);
            std::thread::park_timeout(Duration::from_micros(100));
        }
    }
}
