//! Later fragments that a dump keeps until their first fragment arrives, live within a budget of
//! bytes that all dumps share.
//!
//! Every open dump of a flow keeps its own copies of fragments. Without the budget, fragments
//! without a first fragment could take the memory of 1,024 packets in each of thousands of dumps.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use retroscope_packet::FragmentKey;

use super::active::{Bytes, WaitingPacket};

/// Maximum number of fragments that one dump keeps.
const FRAGMENTS_MAX: usize = 1024;
/// Live: maximum of the bytes of one kind, for example of fragments, that all dumps keep together.
const BYTES_MAX: usize = 64 << 20;

/// Bytes of one kind that all dumps of a dumper keep, and their limit. All clones share one budget.
#[derive(Debug, Clone)]
pub(super) struct KeptBytes {
    /// Relaxed: one thread at a time runs the dumper.
    now: Arc<AtomicUsize>,
    most: usize,
}

/// The fragments of one dump, in the order of arrival.
#[derive(Debug)]
pub(super) struct KeptFragments {
    fragments: VecDeque<(FragmentKey, WaitingPacket)>,
    /// Number of fragments that were dropped for lack of room, undecided.
    pub(super) forgotten: u64,
    all: KeptBytes,
}

impl KeptBytes {
    /// From files the budget is unlimited: the time at which other dumps end depends on threads,
    /// and must not change a result.
    pub(super) fn new(is_live: bool) -> Self {
        Self {
            now: Arc::default(),
            most: if is_live { BYTES_MAX } else { usize::MAX },
        }
    }

    pub(super) fn add(&self, bytes: usize) {
        self.now.store(self.now.load(Relaxed) + bytes, Relaxed);
    }

    pub(super) fn take_back(&self, bytes: usize) {
        let left = self.now.load(Relaxed).saturating_sub(bytes);
        self.now.store(left, Relaxed);
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.now.load(Relaxed).saturating_add(bytes) <= self.most
    }
}

impl KeptFragments {
    pub(super) fn new(all: &KeptBytes) -> Self {
        Self {
            fragments: VecDeque::new(),
            forgotten: 0,
            all: all.clone(),
        }
    }

    /// Keeps a fragment. Without room, the dump drops its oldest fragments, and finally this
    /// fragment.
    pub(super) fn keep(&mut self, key: FragmentKey, packet: WaitingPacket) {
        let bytes = bytes_of(&packet);
        while self.fragments.len() >= FRAGMENTS_MAX || !self.all.has_room(bytes) {
            self.forgotten += 1;
            match self.fragments.pop_front() {
                Some((_, oldest)) => self.all.take_back(bytes_of(&oldest)),
                None => return,
            }
        }
        self.all.add(bytes);
        self.fragments.push_back((key, packet));
    }

    /// Takes the fragments of a datagram, oldest first.
    pub(super) fn take(&mut self, datagram: FragmentKey) -> Vec<WaitingPacket> {
        let is_it = |(key, _): &(FragmentKey, _)| *key == datagram;
        if !self.fragments.iter().any(is_it) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.fragments).into_iter();
        let (taken, left) = all.partition::<Vec<_>, _>(is_it);
        self.fragments = left.into();
        let taken = taken.into_iter().map(|(_, packet)| packet);
        taken
            .inspect(|packet| self.all.take_back(bytes_of(packet)))
            .collect()
    }

    /// Drops fragments after `end_ns`, ns of ring time.
    pub(super) fn drop_after(&mut self, end_ns: i64) {
        let all = &self.all;
        self.fragments.retain(|(_, packet)| {
            let stays = packet.meta.key.time_ns <= end_ns;
            if !stays {
                all.take_back(bytes_of(packet));
            }
            stays
        });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &WaitingPacket> {
        self.fragments.iter().map(|(_, packet)| packet)
    }
}

impl Drop for KeptFragments {
    fn drop(&mut self) {
        let bytes = self.iter().map(bytes_of).sum();
        self.all.take_back(bytes);
    }
}

/// Bytes of memory of a fragment. A fragment in its bucket takes only an entry here.
fn bytes_of(packet: &WaitingPacket) -> usize {
    let copied = match &packet.bytes {
        Bytes::Copied(data) => data.len(),
        Bytes::Ring(..) => 0,
    };
    copied + size_of::<(FragmentKey, WaitingPacket)>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::packet::{PacketKey, PacketMeta};

    fn fragment(time_ns: i64, bytes: usize) -> WaitingPacket {
        let key = PacketKey {
            time_ns,
            source: 0,
            producer: 0,
            record: 0,
        };
        WaitingPacket {
            meta: PacketMeta {
                key,
                stamp_ns: time_ns,
                wire_len: 0,
                interface: 0,
                direction: 0,
                is_trigger: false,
            },
            bytes: Bytes::Copied(vec![0; bytes].into()),
        }
    }

    fn datagram(id: u16) -> FragmentKey {
        FragmentKey {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            proto: 17,
            id: id.into(),
        }
    }

    #[test]
    fn all_dumps_together_keep_no_more_than_the_budget() {
        let all = KeptBytes::new(true);
        let mut dumps: Vec<KeptFragments> = (0..100).map(|_| KeptFragments::new(&all)).collect();
        let mut kept = 0;
        for time_ns in 0..100 {
            for dump in &mut dumps {
                dump.keep(datagram(1), fragment(time_ns, 65_535));
                kept += 1;
                assert!(all.now.load(Relaxed) <= BYTES_MAX);
            }
        }
        let held: usize = dumps.iter().map(|dump| dump.iter().count()).sum();
        let forgotten: u64 = dumps.iter().map(|dump| dump.forgotten).sum();
        assert_eq!(held as u64 + forgotten, kept);
        assert!(held > 1000, "{held}");
        drop(dumps);
        assert_eq!(all.now.load(Relaxed), 0);
    }

    #[test]
    fn a_dump_keeps_its_last_fragments() {
        let mut dump = KeptFragments::new(&KeptBytes::new(true));
        for number in 0..2000 {
            let id = u16::from(number % 2 == 1);
            dump.keep(datagram(id), fragment(number, 60));
        }
        assert_eq!((dump.iter().count(), dump.forgotten), (FRAGMENTS_MAX, 976));
        let taken = dump.take(datagram(1));
        let times: Vec<i64> = taken.iter().map(|it| it.meta.key.time_ns).collect();
        assert_eq!((times.len(), times[0], times[511]), (512, 977, 1999));
        dump.drop_after(980);
        let times: Vec<i64> = dump.iter().map(|it| it.meta.key.time_ns).collect();
        assert_eq!(times, [976, 978, 980]);
        let bytes: usize = dump.iter().map(bytes_of).sum();
        assert_eq!(dump.all.now.load(Relaxed), bytes);
        assert_eq!(dump.take(datagram(1)).len(), 0);
    }
}
