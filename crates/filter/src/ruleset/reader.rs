//! The reader of a rule set: packets in, rules out.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_packet::LinkType;

use crate::{FilterFrame, FusedPrograms};

use super::{
    Matches,
    collect::Collector,
    finder::Finder,
    index::RuleIndex,
    key::LinkHeaderKind,
    look_up_key::tag,
    search::touch,
    search_memory::{MANY, SearchMemory},
    unindexed::UnindexedRules,
};

const _: () = assert!(MANY == FusedPrograms::MANY);

#[derive(Debug)]
pub(super) struct PublishedIndex {
    /// Number of the version in `current`.
    version: AtomicU64,
    /// The current version. The lock is held only while a pointer is copied or replaced.
    current: Mutex<Arc<RuleIndex>>,
}

impl PublishedIndex {
    pub(super) fn new(index: Arc<RuleIndex>) -> Self {
        Self {
            version: AtomicU64::new(0),
            current: Mutex::new(index),
        }
    }

    /// Returns the previous version.
    pub(super) fn publish(&self, index: Arc<RuleIndex>) -> Arc<RuleIndex> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, index);
        // V0: Release, pairs with V1 in `RuleReader::refresh`. The mutex orders the pointer.
        self.version.fetch_add(1, Ordering::Release);
        before
    }

    pub(super) fn current(&self) -> (u64, Arc<RuleIndex>) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: the number changes only under the mutex.
        (self.version.load(Ordering::Relaxed), Arc::clone(&current))
    }
}

/// Matches packets against a [`RuleSet`](super::RuleSet). Made by
/// [`RuleSet::reader`](super::RuleSet::reader), one for each thread of the data path.
///
/// A reader uses one version of the rules until [`Self::refresh`] or [`Self::refresh_blocking`].
pub struct RuleReader {
    shared: Arc<PublishedIndex>,
    index: Arc<RuleIndex>,
    version: u64,
    memory: Box<SearchMemory>,
    /// For each current frame, the set of programs that keep the frame, as bits.
    results: Box<[u64; MANY]>,
}

impl fmt::Debug for RuleReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleReader")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl RuleReader {
    /// Maximum number of frames in one [`Self::match_many`].
    pub const MANY: usize = MANY;

    pub(super) fn new(shared: Arc<PublishedIndex>) -> Self {
        let (version, index) = shared.current();
        Self {
            shared,
            index,
            version,
            memory: Box::default(),
            results: Box::new([0; MANY]),
        }
    }

    /// Switches to a newer version of the rules. Returns whether the version changed. Takes one
    /// atomic load if nothing changed. Never waits: if another thread holds the lock of the
    /// pointer, the old version stays in use.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        // V1: Acquire, pairs with V0 in `PublishedIndex::publish`.
        if self.shared.version.load(Ordering::Acquire) == self.version {
            return false;
        }
        self.try_refresh()
    }

    /// Like [`Self::refresh`], but may wait for the lock of the pointer, so that it sees every
    /// update that happened before this call.
    pub fn refresh_blocking(&mut self) -> bool {
        // V1, as in `refresh`.
        let is_behind = self.shared.version.load(Ordering::Acquire) != self.version;
        if is_behind {
            (self.version, self.index) = self.shared.current();
        }
        is_behind
    }

    #[cold]
    fn try_refresh(&mut self) -> bool {
        let current = match self.shared.current.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Relaxed: the number changes only under the mutex.
        self.version = self.shared.version.load(Ordering::Relaxed);
        self.index = Arc::clone(&current);
        true
    }

    /// Finds the rules that match at most [`Self::MANY`] frames of one interface.
    ///
    /// # Panics
    /// If there are more frames.
    pub fn match_many(
        &mut self,
        link_type: LinkType,
        interface: u16,
        frames: &[FilterFrame<'_>],
        matches: &mut Matches,
    ) {
        assert!(frames.len() <= Self::MANY);
        matches.clear();
        let index = &*self.index;
        let memory = &mut *self.memory;
        memory.count = 0;
        touch(frames);
        let its = |unindexed: &&UnindexedRules| unindexed.link_type == link_type;
        for unindexed in index.unindexed.iter().filter(its) {
            unindexed.find(frames, &mut self.results, memory);
        }
        let link_header = LinkHeaderKind::of(link_type, index.mode);
        if let Some(link_header) = link_header.filter(|_| index.has_any()) {
            memory.read(link_header, frames);
            if index.has(tag::FLOW4) {
                memory.flows(index, frames.len());
            }
            if index.has(tag::V4) || index.has(tag::PORT) {
                memory.prefixes(index, frames.len());
            }
        }
        let mut finder = Finder {
            index,
            link_type,
            interface,
            memory,
        };
        if link_header.is_none() {
            finder.find_without_keys(frames);
        } else if index.has_more() {
            finder.find_more(frames);
        }
        memory.sort();
        let collector = Collector {
            index,
            link_type,
            interface,
            memory,
            frames,
        };
        collector.collect(link_header.is_none(), matches);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{Filter, FilterMode, RuleId, RuleSet};

    #[test]
    fn who_catches_up_misses_no_update_and_who_refreshes_never_waits() {
        let mut rules = RuleSet::new(FilterMode::Savefile);
        let mut reader = rules.reader();
        let filter = Filter::plain("udp port 53").expect("it is right");
        let _ = rules.insert(RuleId(1), &filter).expect("it is right");
        let shared = Arc::clone(&reader.shared);
        let writer = shared.current.lock().expect("nobody panicked");
        assert!(!reader.refresh());
        assert_eq!(reader.version, 0);
        thread::scope(|scope| {
            let reading = scope.spawn(|| reader.refresh_blocking());
            drop(writer);
            assert!(reading.join().expect("it does not panic"));
        });
        assert_eq!(reader.version, 1);
        assert!(!reader.refresh_blocking() && !reader.refresh());
    }
}
