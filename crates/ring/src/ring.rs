//! The handle of a ring: one region of memory, and the state that all roles share.

use std::{fmt, path::PathBuf, sync::Arc};

use crate::{
    BucketInfo, BucketRef, BucketView, GroupKind, Mode, Producer, Reader, Reservation, RingConfig,
    RingError, Step,
    barrier::Barrier,
    cursor::ProducerCursor,
    group::Group,
    outer::{BucketSlot, Outer, PIECE},
    parker::{Parkers, WaitSet},
    storage::{Hold, MemoryObtained, Storage},
    sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Mutex, Ordering, Padded, lock},
    windows::TimeWindow,
};

/// The queue of queues. A handle: clones are the same ring.
#[derive(Debug, Clone)]
pub struct Ring(Arc<RingInner>);

/// The state that all roles share.
#[derive(Debug)]
pub(crate) struct RingInner {
    pub(crate) storage: Arc<Storage>,
    pub(crate) outer: Mutex<Outer>,
    /// For each producer, the readers that sleep until it publishes.
    pub(crate) wait_sets: Box<[Padded<WaitSet>]>,
    pub(crate) parkers: Arc<Parkers>,
    pub(crate) barrier: Barrier,
    mode: AtomicU8,
    closed: AtomicBool,
    /// Clock steps of all producers.
    pub(crate) steps: AtomicU64,
    interfaces: Mutex<Vec<InterfaceEntry>>,
    obtained: MemoryObtained,
    readers_max: usize,
    producers_opened: AtomicUsize,
    reservation_news: Arc<AtomicU64>,
}

/// The kind of pages that back a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages that the administrator provides, for example with `vm.nr_hugepages`.
    Explicit,
    /// Transparent huge pages, for at least half of the memory that was touched when the ring was
    /// made.
    Transparent,
    /// Mostly smaller pages (usually 4 KiB), or the kernel's report cannot be read.
    Small,
}

/// The result of [`RingConfig::numa_node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// The configuration names no node.
    Unset,
    /// The kernel accepted the preference, which does not affect a file on a disk.
    Preferred {
        /// The number of the node.
        node: u32,
    },
    /// The preference was refused, for example because the node does not exist, the kernel has no
    /// NUMA, or a sandbox forbids mbind(2).
    Refused {
        /// The number of the node in the configuration.
        node: u32,
        /// The `errno` value of mbind(2). `EINVAL` for nodes from 1024 on, without a call.
        errno: i32,
    },
}

/// One entry of the append-only table of interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceEntry {
    /// Name of the interface; may be empty.
    pub name: String,
    /// Link-layer header type (LINKTYPE_ value).
    pub link_type: u16,
    /// Snap length: the maximum bytes kept of each frame; 0 means no limit.
    pub snaplen: u32,
    /// The kind of clock that stamps the frames, such as the kernel's or a NIC's. The caller
    /// assigns the numbers.
    pub time_domain: u8,
    /// The clock that stamps the frames. Interfaces with the same number share the clock. The
    /// caller assigns the number.
    pub clock: u16,
}

/// A snapshot of a ring. Stored means published, whether overwritten since or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingStatistics {
    /// Packets published.
    pub stored_packets: u64,
    /// Captured bytes of the stored packets.
    pub stored_bytes: u64,
    /// Packets overwritten.
    pub evicted_packets: u64,
    /// Captured bytes of the overwritten packets.
    pub evicted_bytes: u64,
    /// Smallest ring time in the ring, ns; `None` while the ring is empty.
    pub oldest_ns: Option<i64>,
    /// Largest ring time in the ring, ns.
    pub newest_ns: Option<i64>,
    /// The latest closing time of all overwritten buckets, ns of the monotonic clock, 0 without
    /// [`Producer::set_now`]. Packets stored later, by this clock, are in the ring. `None`: nothing
    /// was overwritten.
    pub whole_since_mono_ns: Option<i64>,
    /// Buckets never used.
    pub free_buckets: usize,
    /// Buckets that may get more records.
    pub open_buckets: usize,
    /// Buckets that get no more records.
    pub closed_buckets: usize,
    /// Closed buckets that a reservation wants.
    pub reserved_buckets: usize,
    /// Reservations that are known to have fallen. The ring learns this when the owner uses the
    /// reservation.
    pub reservations_fallen: u64,
}

impl Ring {
    /// Maps the memory and, with [`RingConfig::prefault`], fills it, which can take seconds.
    /// Meanwhile calls `progress` with (bytes filled, total bytes).
    ///
    /// # Errors
    /// [`RingError`]: the configuration is invalid, or the memory or file is not available.
    pub fn new(
        config: &RingConfig,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<Self, RingError> {
        let geometry = config.geometry()?;
        let (storage, obtained) = Storage::new(geometry, config, progress)?;
        let readers_max = config.readers + config.releasing_readers;
        let (barrier, parkers) = (Barrier::new(), Arc::new(Parkers::new(readers_max)));
        let outer = Outer::new(geometry, config);
        Ok(Self(Arc::new(RingInner {
            storage: Arc::new(storage),
            reservation_news: Arc::clone(&outer.reservations.news),
            outer: Mutex::new(outer),
            wait_sets: (0..geometry.producers)
                .map(|_| Padded(WaitSet::new(&parkers, barrier)))
                .collect(),
            parkers,
            barrier,
            mode: AtomicU8::new(config.mode as u8),
            closed: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            interfaces: Mutex::new(Vec::new()),
            obtained,
            readers_max,
            producers_opened: AtomicUsize::new(0),
        })))
    }

    /// Bytes of all buckets together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.buckets() as u64 * self.bucket_bytes() as u64
    }

    /// Bytes of one bucket.
    #[must_use]
    pub fn bucket_bytes(&self) -> usize {
        self.0.storage.geometry().bucket_bytes
    }

    /// Number of buckets.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.0.storage.geometry().buckets
    }

    /// The kind of pages that the kernel provided.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.0.obtained.pages
    }

    /// The result of [`RingConfig::numa_node`].
    #[must_use]
    pub fn numa(&self) -> Numa {
        self.0.obtained.numa
    }

    /// The path where another process can open the region
    /// ([`Attached::open`](crate::Attached::open)): the file, or `/proc/PID/fd/N` of a memfd.
    /// `None` for anonymous memory.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.0.storage.path()
    }

    /// This ring as an [`Attached`](crate::Attached), which works with every kind of memory.
    #[cfg(not(loom))]
    #[must_use]
    pub fn attached(&self) -> crate::Attached {
        crate::Attached::own(&self.0.storage)
    }

    /// Opens the next producer, with the next number.
    ///
    /// # Errors
    /// [`RingError::Producers`] if the ring allows no more producers, dropped producers included.
    pub fn producer(&self) -> Result<Producer, RingError> {
        let max = self.0.storage.geometry().producers;
        let next = |opened| (opened < max).then_some(opened + 1);
        let opened = &self.0.producers_opened;
        // Relaxed, both: the publication of a producer's records orders the count.
        let id = opened.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let id = id.map_err(|_| RingError::Producers { max })?;
        Ok(Producer::new(Arc::clone(&self.0), id))
    }

    /// Producers opened since the start.
    #[must_use]
    pub fn producers(&self) -> usize {
        self.0.producers_opened.load(Ordering::Relaxed) // ordered by the publication of each producer's records
    }

    /// Appends to `out` the producer's buckets, open or closed, with committed records from number
    /// `position` on, in record order. If the first bucket begins after `position`, the records
    /// between were overwritten.
    ///
    /// Takes the mutex of the outer queue, and visits the listed buckets and at most two more. Call
    /// this only after [`Self::published`] has changed.
    ///
    /// # Panics
    /// Unless `producer` is below the number of producers that the ring was made for.
    pub fn buckets_from(&self, producer: usize, position: u64, out: &mut Vec<BucketInfo>) {
        let before = out.len();
        self.0.newest_first(producer, |outer, index| {
            let slot = &outer.slots[index];
            let info = slot.info(index, &self.0.storage);
            out.extend(info.filter(|info| info.first + u64::from(info.committed) > position));
            slot.reaches(position)
        });
        out[before..].reverse();
    }

    /// Replaces the contents of `out` by the buckets, open or closed, that have committed records
    /// and whose times touch `from_ns..=to_ns` of ring time. The order is by producer and then by
    /// record.
    ///
    /// Takes the mutex of the outer queue. If the times of a producer increase, this visits only
    /// the producer's buckets from `from_ns` on, and at most two more.
    pub fn buckets_within(&self, from_ns: i64, to_ns: i64, out: &mut Vec<BucketInfo>) {
        let window = TimeWindow::new(from_ns, to_ns);
        self.0.buckets_within(window, |_, _| true, out);
    }

    /// A counter that changes when [`Reservation::fallen`] may have something new. Takes no lock.
    ///
    /// If [`Self::hold`] fails because the bucket is being overwritten, the counter may change
    /// later.
    #[must_use]
    pub fn reservation_news(&self) -> u64 {
        self.0.reservation_news.load(Ordering::Acquire) // pairs with N
    }

    /// Makes a group with one member, which reads all producers ([`Self::group_of`]).
    ///
    /// # Errors
    /// [`RingError::Readers`] if the ring allows no more readers.
    pub fn group(&self, kind: GroupKind) -> Result<Reader, RingError> {
        let mut members = self.group_of(kind, 1)?;
        Ok(members.pop().expect("as many as were asked for"))
    }

    /// Makes a group whose members share the producers. Member `m` reads the producers whose number
    /// modulo `members` is `m`.
    ///
    /// The group starts with the oldest record of each producer that is in the ring. If a held or
    /// reserved bucket contains the oldest record, later buckets may already be overwritten. This
    /// gap counts as lapped, even in a gating group.
    ///
    /// # Errors
    /// [`RingError::Readers`] if `members` is 0 or more than the readers that the ring can still
    /// open.
    pub fn group_of(&self, kind: GroupKind, members: usize) -> Result<Vec<Reader>, RingError> {
        let ring = &self.0;
        let producers = ring.storage.geometry().producers;
        let mut outer = lock(&ring.outer);
        if members == 0 || members > outer.parkers_free.len() {
            return Err(RingError::Readers {
                max: ring.readers_max,
                asked: members,
            });
        }
        let parkers_left = outer.parkers_free.len() - members;
        let parkers = outer.parkers_free.split_off(parkers_left);
        let start = |producer| match outer.oldest_bucket(producer, 0) {
            Some(oldest) => (oldest.first, oldest.first_bytes),
            None => ring.published_with_bytes(producer),
        };
        let (positions, bytes): (Vec<u64>, Vec<u64>) = (0..producers).map(start).unzip();
        let group = Arc::new(Group::new(kind, members, &positions));
        if kind == GroupKind::Gating {
            outer.gating.push(Arc::clone(&group));
        }
        drop(outer);
        let reader = |(member, &parker): (usize, &usize)| {
            let cursors = (member..producers).step_by(members).map(|producer| {
                ProducerCursor::new(producer, positions[producer], bytes[producer])
            });
            Reader::new(ring, &group, parker, cursors.collect())
        };
        Ok(parkers.iter().enumerate().map(reader).collect())
    }

    /// Appends to the table of interfaces and returns the number for
    /// [`Record::interface`](crate::Record::interface).
    ///
    /// Other processes read a table in the region, which keeps 54 bytes of each name. The table has
    /// at least 1024 places, and more than 16,000 if the ring has at most 4096 buckets. Only this
    /// process knows further interfaces.
    ///
    /// # Errors
    /// [`RingError::Interfaces`] after 65,536 interfaces.
    pub fn add_interface(&self, interface: InterfaceEntry) -> Result<u16, RingError> {
        let mut interfaces = lock(&self.0.interfaces);
        let id = u16::try_from(interfaces.len()).map_err(|_| RingError::Interfaces)?;
        self.0.storage.list_interface(id, &interface);
        interfaces.push(interface);
        Ok(id)
    }

    /// All interfaces, indexed by number.
    #[must_use]
    pub fn interfaces(&self) -> Vec<InterfaceEntry> {
        lock(&self.0.interfaces).clone()
    }

    /// The behavior of writers when the ring is full.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Changes the behavior of writers when the ring is full.
    pub fn set_mode(&self, mode: Mode) {
        self.0.mode.store(mode as u8, Ordering::Relaxed); // ordered by the eventcount
        self.0.storage.freed.notify();
    }

    /// Reserves the packets of `from_ns..=to_ns` of ring time, whether already stored or not.
    #[must_use]
    pub fn reserve(&self, from_ns: i64, to_ns: i64) -> Reservation {
        Reservation::new(&self.0, from_ns, to_ns)
    }

    /// Reserves packets that were not read yet: as [`Self::reserve`], but without closed buckets
    /// that contain only the first `read[producer]` records of a producer. Until this returns,
    /// another reservation must protect the unread buckets. With `after`, the new reservation also
    /// reports the unread buckets that were overwritten since `after` last checked its losses.
    #[must_use]
    pub fn reserve_unread(
        &self,
        read: Vec<u64>,
        after: Option<&Reservation>,
        from_ns: i64,
        to_ns: i64,
    ) -> Reservation {
        Reservation::unread(&self.0, (read, after), from_ns, to_ns)
    }

    /// Holds a bucket for reading. `None`: the bucket does not exist, was overwritten, or already
    /// has 16,383 holds.
    #[must_use]
    pub fn hold(&self, bucket: BucketRef) -> Option<BucketView> {
        if bucket.index as usize >= self.buckets() {
            return None;
        }
        Hold::new(&self.0.storage, bucket).map(BucketView::new)
    }

    /// The table of clock steps, in no particular order. Call this only after [`Self::steps_made`]
    /// has changed.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        lock(&self.0.outer).steps.all()
    }

    /// The number of clock steps of all producers, including every step before a record that the
    /// caller has read.
    #[must_use]
    pub fn steps_made(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed) // ordered after the records by their publication
    }

    /// The ring time, ns, before which a producer has promised to store no more records. `None`: no
    /// promise yet. All records before the watermark are visible after this call.
    ///
    /// # Panics
    /// Unless `producer` is below the number of producers that the ring was made for.
    #[must_use]
    pub fn watermark(&self, producer: usize) -> Option<i64> {
        let header = self.0.storage.producer(producer);
        let ns = header.watermark_ns.load(Ordering::Acquire); // pairs with T
        (ns != i64::MIN).then_some(ns)
    }

    /// The number of records that a producer has published.
    ///
    /// # Panics
    /// Unless `producer` is below the number of producers that the ring was made for.
    #[must_use]
    pub fn published(&self, producer: usize) -> u64 {
        self.0.published(producer)
    }

    /// Counts and times of the whole ring. Walks over all buckets.
    #[must_use]
    pub fn statistics(&self) -> RingStatistics {
        let mut sum = lock(&self.0.outer).totals();
        for start in (0..self.buckets()).step_by(PIECE) {
            let piece = start..self.buckets().min(start + PIECE);
            lock(&self.0.outer).count(piece, &self.0.storage, &mut sum);
        }
        for producer in self.0.storage.producers() {
            sum.stored_packets += producer.published.load(Ordering::Acquire); // pairs with P2
            sum.stored_bytes += producer.published_bytes.load(Ordering::Relaxed); // ordered by `published`
        }
        sum
    }

    /// Shutdown: wakes every waiting writer and every sleeping reader. From now on a writer that
    /// would have to wait gets [`StoreError::Closed`](crate::StoreError::Closed).
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Relaxed); // ordered by the eventcount
        self.0.storage.freed.notify();
        self.0.parkers.wake_all();
    }
}

impl RingInner {
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_u8(self.mode.load(Ordering::Relaxed)) // a setting; the eventcount orders it for waiting writers
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) // ordered by the eventcount
    }

    /// Visits a producer's buckets, newest first, while `visit` returns `true`. Usually releases
    /// the mutex after [`PIECE`] buckets, and holds the last visited bucket meanwhile, to continue
    /// the walk there.
    pub(crate) fn newest_first(
        &self,
        producer: usize,
        mut visit: impl FnMut(&mut Outer, usize) -> bool,
    ) {
        let mut held: Option<Hold> = None;
        loop {
            let mut outer = lock(&self.outer);
            let mut next = match &held {
                None => outer.newest(producer),
                Some(hold) => outer.slots[hold.bucket().index as usize].older(),
            };
            let mut visited = 0;
            let hold = loop {
                let Some(index) = next else { return };
                if !visit(&mut outer, index as usize) {
                    return;
                }
                let slot = &outer.slots[index as usize];
                next = slot.older();
                visited += 1;
                // A bucket with the maximum number of holds gets no other hold, but the next bucket
                // may.
                if visited >= PIECE
                    && let Some(hold) = Hold::new(&self.storage, slot.bucket(index as usize))
                {
                    break hold;
                }
            };
            drop(outer);
            held = Some(hold);
        }
    }

    /// As [`Ring::buckets_within`], for buckets for which `is_wanted` returns `true`.
    pub(crate) fn buckets_within(
        &self,
        window: TimeWindow,
        mut is_wanted: impl FnMut(usize, &BucketSlot) -> bool,
        out: &mut Vec<BucketInfo>,
    ) {
        out.clear();
        for producer in 0..self.wait_sets.len() {
            let before = out.len();
            self.newest_first(producer, |outer, index| {
                let slot = &outer.slots[index];
                let may_reach = slot.may_reach(window.from_ns);
                if may_reach && is_wanted(index, slot) {
                    let info = slot.info(index, &self.storage);
                    out.extend(info.filter(|info| window.touches(info.min_ns, info.max_ns)));
                }
                may_reach
            });
            out[before..].reverse();
        }
    }

    /// Sets a group's position. For a gating group, wakes waiting writers.
    pub(crate) fn pass(&self, group: &Group, producer: usize, position: u64) {
        group.set_position(producer, position);
        if group.kind == GroupKind::Gating {
            self.storage.freed.notify();
        }
    }

    pub(crate) fn published(&self, producer: usize) -> u64 {
        let header = self.storage.producer(producer);
        header.published.load(Ordering::Acquire) // pairs with P2
    }

    /// Published records and captured bytes. The bytes may include further records.
    pub(crate) fn published_with_bytes(&self, producer: usize) -> (u64, u64) {
        let published = self.published(producer);
        let bytes = &self.storage.producer(producer).published_bytes;
        (published, bytes.load(Ordering::Relaxed)) // ordered by `published`
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "explicit 2 MiB",
            Self::Transparent => "transparent",
            Self::Small => "4 KiB",
        })
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::Record;

    /// A listing of more than [`PIECE`] buckets releases the mutex in between.
    #[test]
    fn a_listing_visits_the_buckets_of_its_window_once() {
        const BUCKETS: usize = 5 * PIECE / 2;
        const BUCKET_BYTES: usize = 260 << 10;
        let config = RingConfig {
            bucket_bytes: Some(BUCKET_BYTES),
            prefault: false,
            ..RingConfig::new((BUCKETS * BUCKET_BYTES) as u64, 1, 0)
        };
        let ring = Ring::new(&config, None).unwrap();
        let mut producer = ring.producer().unwrap();
        let frame = vec![0; 200_000];
        // One record a bucket: the ring wraps once.
        for time_ns in 0..2 * BUCKETS as i64 {
            producer.store(&Record::whole(time_ns, 0, &frame)).unwrap();
        }
        producer.publish();
        let oldest_ns = BUCKETS as i64;
        for from_ns in [oldest_ns, 2 * oldest_ns - 3] {
            let (mut visits, mut listed) = (0, Vec::new());
            let is_wanted = |_: usize, _: &BucketSlot| {
                visits += 1;
                true
            };
            let window = TimeWindow::new(from_ns, i64::MAX);
            ring.0.buckets_within(window, is_wanted, &mut listed);
            let times_ns: Vec<i64> = listed.iter().map(|info| info.min_ns).collect();
            assert_eq!(times_ns, (from_ns..2 * oldest_ns).collect::<Vec<_>>());
            assert_eq!(visits, listed.len());
        }
    }
}
