//! Whether the threads of the data path go round: a number for each, which it raises with every turn of its loop, also without packets.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::control::lock;

/// The turns of one thread, which has it and alone raises them. When all of its clones are dropped the thread has ended, and nobody expects turns any more.
#[derive(Debug, Clone)]
pub(crate) struct ThreadPulse(Arc<AtomicU64>);

impl ThreadPulse {
    /// Another turn: once a round of the loop, a bucket of the ring or a chunk of packets that scripts may be slow with, never for a packet.
    pub(crate) fn beat(&self) {
        // Relaxed: nothing but the number is shared.
        self.0.fetch_add(1, Relaxed);
    }
}

/// Those of all threads, by their names.
#[derive(Debug, Default)]
pub(crate) struct ThreadPulses(Mutex<Vec<(String, Weak<AtomicU64>)>>);

impl ThreadPulses {
    /// That of a thread.
    pub(crate) fn of(&self, thread: impl Into<String>) -> ThreadPulse {
        let turns = Arc::default();
        lock(&self.0).push((thread.into(), Arc::downgrade(&turns)));
        ThreadPulse(turns)
    }

    /// The threads that have not ended, and their turns so far.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let all = lock(&self.0);
        let turns = |(thread, turns): &(String, Weak<AtomicU64>)| {
            Some((thread.clone(), turns.upgrade()?.load(Relaxed)))
        };
        all.iter().filter_map(turns).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_listed_until_they_end() {
        let pulses = ThreadPulses::default();
        let (one, two) = (pulses.of("one"), pulses.of("two"));
        two.beat();
        two.beat();
        assert_eq!(
            pulses.list(),
            [("one".to_owned(), 0), ("two".to_owned(), 2)]
        );
        drop(one);
        assert_eq!(pulses.list(), [("two".to_owned(), 2)]);
    }
}
