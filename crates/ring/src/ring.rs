//! The ring: one region and everybody who works on it.

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

/// The queue of queues. A handle: clones are the same ring. Any thread may call any method.
#[derive(Debug, Clone)]
pub struct Ring(Arc<RingInner>);

/// What all roles share.
#[derive(Debug)]
pub(crate) struct RingInner {
    pub(crate) storage: Arc<Storage>,
    pub(crate) outer: Mutex<Outer>,
    /// The wait set of each producer.
    pub(crate) wait_sets: Box<[Padded<WaitSet>]>,
    pub(crate) parkers: Arc<Parkers>,
    pub(crate) barrier: Barrier,
    mode: AtomicU8,
    closed: AtomicBool,
    /// Steps made by all producers.
    pub(crate) steps: AtomicU64,
    interfaces: Mutex<Vec<InterfaceEntry>>,
    obtained: MemoryObtained,
    readers_max: usize,
    producers_opened: AtomicUsize,
    reservation_news: Arc<AtomicU64>,
}

/// The pages that a region stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages that the administrator set aside (`vm.nr_hugepages`).
    Explicit,
    /// Transparent huge pages, for at least half of the region.
    Transparent,
    /// 4 KiB pages.
    Small,
}

/// What became of [`RingConfig::numa_node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// None was asked for.
    Unset,
    /// Pages come from this node as long as it has some.
    Preferred {
        /// Its number.
        node: u32,
    },
    /// The kernel took no advice: it has no such node, or a sandbox forbids mbind(2). The ring works the same.
    Refused {
        /// The number asked for.
        node: u32,
        /// What mbind returned, an `errno` value.
        errno: i32,
    },
}

/// One line of the append-only table of interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceEntry {
    /// Its name; may be empty.
    pub name: String,
    /// Link-layer header type (LINKTYPE_ value).
    pub link_type: u16,
    /// Bytes kept of each frame at most; 0: no limit.
    pub snaplen: u32,
    /// Whose clock stamps the frames; a number of the caller's.
    pub time_domain: u8,
    /// Interfaces of one number are stamped by one clock, whose steps ([`Step`]) are theirs; a number of the caller's.
    pub clock: u16,
}

/// A ring at one moment. Stored are published records, present or gone; `stored = evicted +` what is in the buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingStatistics {
    /// Packets published since the start.
    pub stored_packets: u64,
    /// Their captured bytes.
    pub stored_bytes: u64,
    /// Packets overwritten since the start.
    pub evicted_packets: u64,
    /// Their captured bytes.
    pub evicted_bytes: u64,
    /// Smallest ring time in the ring, ns; `None` while it is empty.
    pub oldest_ns: Option<i64>,
    /// Largest ring time in the ring, ns.
    pub newest_ns: Option<i64>,
    /// All that was stored since then is there: the latest closing time of all buckets overwritten, ns of the monotonic clock
    /// ([`Producer::set_now`]). `None`: nothing was overwritten.
    pub whole_since_mono_ns: Option<i64>,
    /// Buckets never used.
    pub free_buckets: usize,
    /// Buckets being written, one for each producer that has stored something.
    pub open_buckets: usize,
    /// Full buckets.
    pub closed_buckets: usize,
    /// Closed buckets that standing reservations want.
    pub reserved_buckets: usize,
    /// Reservations that fell since the start.
    pub reservations_fallen: u64,
}

impl Ring {
    /// Takes and fills the memory, which may last seconds: `progress` is called with (bytes filled, bytes in all).
    ///
    /// # Errors
    /// [`RingError`]: the configuration cannot be, or the memory is not there.
    pub fn new(
        config: &RingConfig,
        progress: Option<&mut dyn FnMut(u64, u64)>,
    ) -> Result<Self, RingError> {
        let geometry = config.geometry()?;
        let (storage, obtained) = Storage::new(geometry, config, progress)?;
        let (barrier, parkers) = (Barrier::new(), Arc::new(Parkers::new(config.readers)));
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
            readers_max: config.readers,
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

    /// Which pages were got.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.0.obtained.pages
    }

    /// Which NUMA node its memory was asked for from, and whether the kernel agreed.
    #[must_use]
    pub fn numa(&self) -> Numa {
        self.0.obtained.numa
    }

    /// Where another process can open the region ([`Attached::open`](crate::Attached::open)): the file, or
    /// `/proc/PID/fd/N` of a memfd. `None` for anonymous memory.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.0.storage.path()
    }

    /// The ring as [`Attached`](crate::Attached) reads one, whatever its memory is made of. A bucket is held while it is copied.
    #[cfg(not(loom))]
    #[must_use]
    pub fn attached(&self) -> crate::Attached {
        crate::Attached::own(&self.0.storage)
    }

    /// Opens the next producer, with the next number.
    ///
    /// # Errors
    /// [`RingError::Producers`] if the ring was made for no more. Dropped ones count: their numbers are not used again.
    pub fn producer(&self) -> Result<Producer, RingError> {
        let max = self.0.storage.geometry().producers;
        let next = |opened| (opened < max).then_some(opened + 1);
        let opened = &self.0.producers_opened;
        // Relaxed, both: whoever sees a producer's records sees it counted, by their publication.
        let id = opened.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let id = id.map_err(|_| RingError::Producers { max })?;
        Ok(Producer::new(Arc::clone(&self.0), id))
    }

    /// Producers opened so far. Takes no lock.
    #[must_use]
    pub fn producers(&self) -> usize {
        self.0.producers_opened.load(Ordering::Relaxed) // ordered by the publication of its records
    }

    /// Appends to `out` the producer's buckets with committed records from number `position` on, open or closed, in the order of the
    /// records. The first may begin before `position`, or after it: what was between is overwritten.
    ///
    /// Takes the mutex of the outer queue and visits the buckets that it lists, and one more: ask when
    /// [`Self::published`] has changed.
    ///
    /// # Panics
    /// Unless `producer` is below the number of producers that the ring was made for.
    pub fn buckets_from(&self, producer: usize, position: u64, out: &mut Vec<BucketInfo>) {
        let before = out.len();
        self.0.newest_first(producer, |_, index, slot| {
            let info = slot.info(index, &self.0.storage);
            out.extend(info.filter(|info| info.first + u64::from(info.committed) > position));
            slot.reaches(position)
        });
        out[before..].reverse();
    }

    /// Replaces the contents of `out` by the buckets, open or closed, with committed records that
    /// touch `from_ns..=to_ns` of ring time. They are ordered by producer and then by record.
    ///
    /// Takes the mutex of the outer queue. Where the times of a producer rise, this visits only
    /// buckets from `from_ns` on.
    pub fn buckets_within(&self, from_ns: i64, to_ns: i64, out: &mut Vec<BucketInfo>) {
        let window = TimeWindow::new(from_ns, to_ns);
        self.0.buckets_within(window, |_, _, _| true, out);
    }

    /// Changes with whatever [`Reservation::fallen`] has to tell of any reservation: when one falls, and when a bucket is overwritten
    /// while one that fell is there. Takes no lock.
    ///
    /// Whoever does not find a bucket in a list ([`Reservation::buckets`], [`Self::buckets_from`]) because it was overwritten sees the
    /// change. Who could not hold it ([`Self::hold`]) may see it later, and asks [`Reservation::fallen`], which takes the mutex.
    #[must_use]
    pub fn reservation_news(&self) -> u64 {
        self.0.reservation_news.load(Ordering::Acquire) // pairs with N
    }

    /// A group of one member, which serves all producers: [`Self::group_of`].
    ///
    /// # Errors
    /// [`RingError::Readers`] if the ring was made for no more.
    pub fn group(&self, kind: GroupKind) -> Result<Reader, RingError> {
        let mut members = self.group_of(kind, 1)?;
        Ok(members.pop().expect("as many as were asked for"))
    }

    /// Makes a group that divides producers, so that what one stored stays in order. Member `m` serves the producers whose
    /// number modulo `members` is `m`, opened already or not.
    ///
    /// The group starts with each producer's oldest record that is in the ring: what was overwritten before it counts
    /// neither as read nor as lapped, and [`Reader::positions`] start behind it. Where that record's bucket was held or reserved, a
    /// later one may have been overwritten before it: such a hole counts as lapped, also in a gating group.
    ///
    /// # Errors
    /// [`RingError::Readers`] if `members` is 0, or more readers would be open than the ring was made for.
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

    /// Appends to the table of interfaces and returns the number for [`Record::interface`](crate::Record::interface).
    ///
    /// The region's own table, which other processes read, has at least 1024 places, and in a ring of up to 4096 buckets
    /// more than 16,000; it keeps 54 bytes of a name. What finds no place is known to this process only.
    ///
    /// # Errors
    /// [`RingError::Interfaces`] after 65,536 of them.
    pub fn add_interface(&self, interface: InterfaceEntry) -> Result<u16, RingError> {
        let mut interfaces = lock(&self.0.interfaces);
        let id = u16::try_from(interfaces.len()).map_err(|_| RingError::Interfaces)?;
        self.0.storage.list_interface(id, &interface);
        interfaces.push(interface);
        Ok(id)
    }

    /// The whole table, by number.
    #[must_use]
    pub fn interfaces(&self) -> Vec<InterfaceEntry> {
        lock(&self.0.interfaces).clone()
    }

    /// What writers do on a full ring.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Changes what writers do on a full ring; those that wait look again.
    pub fn set_mode(&self, mode: Mode) {
        self.0.mode.store(mode as u8, Ordering::Relaxed); // ordered by the eventcount
        self.0.storage.freed.notify();
    }

    /// Reserves the packets of `from_ns..=to_ns` of ring time, stored already or not.
    #[must_use]
    pub fn reserve(&self, from_ns: i64, to_ns: i64) -> Reservation {
        Reservation::new(&self.0, from_ns, to_ns)
    }

    /// Reserves packets that are not read yet: as [`Self::reserve`], but without the first `read(producer)` records of each producer.
    /// Gives back the buckets that are read, and visits the unread ones only. Another reservation must keep what is unread until then.
    pub fn reserve_unread(
        &self,
        read: impl Fn(usize) -> u64,
        from_ns: i64,
        to_ns: i64,
    ) -> Reservation {
        Reservation::unread(&self.0, read, from_ns, to_ns)
    }

    /// Holds a bucket for reading. `None`: the bucket was overwritten, or has 16,383 holds already
    /// (views, and readers that are in the bucket).
    #[must_use]
    pub fn hold(&self, bucket: BucketRef) -> Option<BucketView> {
        if bucket.index as usize >= self.buckets() {
            return None;
        }
        Hold::new(&self.0.storage, bucket).map(BucketView::new)
    }

    /// The steps of all clocks that records in the ring need, in no order. Not for every packet: ask when
    /// [`Self::steps_made`] has changed.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        lock(&self.0.outer).steps.all()
    }

    /// How often a producer's clock was stepped. Whoever found a record sees the steps before it counted.
    #[must_use]
    pub fn steps_made(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed) // ordered behind the records by their publication
    }

    /// The ring time, ns, before which a producer promised to store nothing more. `None`: no promise
    /// yet. After reading it, everything before it can be seen.
    ///
    /// # Panics
    /// Unless `producer` is below the number of producers that the ring was made for.
    #[must_use]
    pub fn watermark(&self, producer: usize) -> Option<i64> {
        let header = self.0.storage.producer(producer);
        let ns = header.watermark_ns.load(Ordering::Acquire); // pairs with T
        (ns != i64::MIN).then_some(ns)
    }

    /// Records that a producer has published.
    ///
    /// # Panics
    /// Unless `producer` is below the number of producers that the ring was made for.
    #[must_use]
    pub fn published(&self, producer: usize) -> u64 {
        self.0.published(producer)
    }

    /// Counts and times of the whole ring: a walk over all buckets' headers, not for every packet. Producers may change buckets
    /// during the walk.
    #[must_use]
    pub fn statistics(&self) -> RingStatistics {
        let mut sum = lock(&self.0.outer).totals();
        for start in (0..self.buckets()).step_by(PIECE) {
            let piece = start..self.buckets().min(start + PIECE);
            lock(&self.0.outer).count(piece, &self.0.storage, &mut sum);
        }
        for producer in self.0.storage.producers() {
            sum.stored_packets += producer.published.load(Ordering::Acquire); // pairs with P2
            sum.stored_bytes += producer.published_bytes.load(Ordering::Relaxed); // ordered by it
        }
        sum
    }

    /// Wakes every writer and reader that waits, for the end. From now on a writer that would have to wait gets
    /// [`StoreError::Closed`](crate::StoreError::Closed); what is stored can still be read.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Relaxed); // ordered by the eventcount
        self.0.storage.freed.notify();
        self.0.parkers.wake_all();
    }
}

impl RingInner {
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_u8(self.mode.load(Ordering::Relaxed)) // a setting; the eventcount orders it for those who wait
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) // ordered by the eventcount
    }

    /// Visits a producer's buckets, newest first, while `visit` returns `true`. Releases the mutex after every [`PIECE`] buckets, and
    /// holds the last of these meanwhile: the walk goes on at a bucket that is still in the ring.
    pub(crate) fn newest_first(
        &self,
        producer: usize,
        mut visit: impl FnMut(&Outer, usize, &BucketSlot) -> bool,
    ) {
        let mut held: Option<Hold> = None;
        loop {
            let outer = lock(&self.outer);
            let mut next = match &held {
                None => outer.newest(producer),
                Some(hold) => outer.slots[hold.bucket().index as usize].older(),
            };
            let mut visited = 0;
            let hold = loop {
                let Some(index) = next else { return };
                let slot = &outer.slots[index as usize];
                if !visit(&outer, index as usize, slot) {
                    return;
                }
                next = slot.older();
                visited += 1;
                // A bucket with the most holds that there can be gets no other: the next bucket may get one.
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

    /// Replaces the contents of `out` by the buckets with committed records that touch a window and
    /// that `is_wanted`, by producer and then by record. Where the times of a producer rise, this
    /// visits only buckets from the start of the window on.
    pub(crate) fn buckets_within(
        &self,
        window: TimeWindow,
        mut is_wanted: impl FnMut(&Outer, usize, &BucketSlot) -> bool,
        out: &mut Vec<BucketInfo>,
    ) {
        out.clear();
        for producer in 0..self.wait_sets.len() {
            let before = out.len();
            self.newest_first(producer, |outer, index, slot| {
                let may_reach = slot.may_reach(window.from_ns);
                if may_reach && is_wanted(outer, index, slot) {
                    let info = slot.info(index, &self.storage);
                    out.extend(info.filter(|info| window.touches(info.min_ns, info.max_ns)));
                }
                may_reach
            });
            out[before..].reverse();
        }
    }

    /// A group is done with a producer's records before `position`.
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

    /// Both belong together only if the producer is not storing at the moment.
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

    /// A listing takes the mutex several times, and visits only the buckets of its window.
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
        // One record a bucket. The ring wraps once.
        for time_ns in 0..2 * BUCKETS as i64 {
            producer.store(&Record::whole(time_ns, 0, &frame)).unwrap();
        }
        producer.publish();
        let oldest_ns = BUCKETS as i64;
        for from_ns in [oldest_ns, 2 * oldest_ns - 3] {
            let (mut visits, mut listed) = (0, Vec::new());
            let is_wanted = |_: &Outer, _: usize, _: &BucketSlot| {
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
