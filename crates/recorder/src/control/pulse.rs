//! Liveness of the threads of the data path, which count the turns of their loops.

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::thread::gettid;

use crate::control::lock;

/// The turns of one thread, which is listed until all clones are dropped. The default is not
/// listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadPulse(Arc<AtomicU64>);

impl ThreadPulse {
    /// Counts a turn: a round of the loop, a bucket, or a chunk of packets.
    pub(crate) fn beat(&self) {
        // Relaxed: only the number is shared.
        self.0.fetch_add(1, Relaxed);
    }
}

/// The pulses of the threads of the data path.
#[derive(Debug, Default)]
pub(crate) struct ThreadPulses(Mutex<Vec<ListedThread>>);

#[derive(Debug)]
struct ListedThread {
    name: String,
    turns: Weak<AtomicU64>,
    /// The kernel's number of the thread; `None`: no thread has called [`ThreadPulses::enter`].
    id: Option<u32>,
}

impl ThreadPulses {
    pub(crate) fn of(&self, thread: impl Into<String>) -> ThreadPulse {
        let turns = Arc::default();
        lock(&self.0).push(ListedThread {
            name: thread.into(),
            turns: Arc::downgrade(&turns),
            id: None,
        });
        ThreadPulse(turns)
    }

    /// The threads that have not ended, and their turns until now.
    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        let all = lock(&self.0);
        let turns = |it: &ListedThread| Some((it.name.clone(), it.turns.upgrade()?.load(Relaxed)));
        all.iter().filter_map(turns).collect()
    }

    /// Notes that the calling thread has the pulse of this name.
    pub(crate) fn enter(&self, thread: &str) {
        let id = gettid().as_raw_nonzero().get().cast_unsigned();
        let mut all = lock(&self.0);
        let own = all.iter_mut().find(|it| it.name == thread);
        own.into_iter().for_each(|own| own.id = Some(id));
    }

    /// The threads that have not ended, and the kernel's number of each.
    pub(crate) fn threads(&self) -> Vec<(String, Option<u32>)> {
        let all = lock(&self.0);
        let running = all.iter().filter(|it| it.turns.strong_count() > 0);
        running.map(|it| (it.name.clone(), it.id)).collect()
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
