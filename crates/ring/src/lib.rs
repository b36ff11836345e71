//! QQ, the queue of queues: keeps every packet in memory until a later one needs the place.
//!
//! The idea is that of the QQ thesis (2016) and of section V of the FlowScope paper (2017): an outer queue of large inner
//! queues, each owned by one producer while it is filled, so that the price of synchronisation is paid once for megabytes.
//! An inner queue is a *bucket* here. Different from the originals: readers see the published part of open buckets, they
//! hold what they read instead of keeping a guard interval, a bucket closes when it is full and never because of time, and
//! dumps reserve what they need.
//!
//! The crate knows bytes and times. It does not parse packets, or read clocks except for the timeout of a sleeping reader.
//! It starts threads only to fill its memory, and opens no file but the one that holds it.
//!
//! ```
//! use retroscope_ring::{GroupKind, Record, Ring, RingConfig};
//!
//! let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None)?;
//! let mut reader = ring.group(GroupKind::Lapped)?;
//! let mut producer = ring.producer()?;
//! producer.store(&Record::whole(1_000, 0, b"a frame"))?;
//! producer.publish();
//! let batch = reader.next().expect("one packet was published");
//! assert_eq!(batch.iter().next().map(|packet| packet.data), Some(&b"a frame"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Roles
//!
//! | role | does | may wait for |
//! |---|---|---|
//! | [`Producer`] | stores into its open bucket, publishes | a bucket, where the mode says so |
//! | [`Reader`], member of a group | is handed each record of its producers once, also in open buckets | news |
//! | [`Reservation`] | keeps the buckets of a window of packet time for a dump | |
//! | [`BucketView`] | holds one bucket for as long as it is read | |
//! | [`Attached`], in another process | copies buckets, and looks whether they were still there | |
//!
//! # States of a bucket
//!
//! `free → claimed → open → closed → claimed → …`, in one control word with the number of holds and the generation
//! (`storage/control.rs`). A producer claims a new bucket *before* it closes the old one, so that there is always a bucket
//! to follow: the old one gets a link to the new one, then closes. When it finds none, the old one stays open, where it is
//! readable and safe.
//!
//! # What is overwritten
//!
//! A bucket never used, else of the closed ones the first to close that
//!
//! 1. every gating group has passed,
//! 2. nobody holds,
//! 3. no reservation wants.
//!
//! Times do not matter: a clock that is set back, or a producer with another clock, does not make new packets the oldest.
//!
//! If there is none, [`Mode`] decides. Table 6.1 of the thesis knows a queue with a priority and tasks with one: on a full
//! queue a task above the queue's priority goes on and the others block.
//!
//! | thesis | here | missing 1 | missing 2 | missing 3 |
//! |---|---|---|---|---|
//! | priority above the queue's | [`Mode::Record`] | waits | [`StoreError::Full`] | the oldest reservation in the way falls, one that yields first, and is told |
//! | not above, may not block | [`Mode::Protect`] | `Full` | `Full` | `Full` |
//! | not above, blocks | [`Mode::Wait`] | waits | waits | waits |
//!
//! # Who orders what
//!
//! | edge | store | load | what it carries |
//! |---|---|---|---|
//! | O–H | `Control::open` | `Control::hold` | the header of the new generation |
//! | R–C | `Control::release` | `Control::claim` | the reader's last look before the writer's first store |
//! | P1 | `BucketHeader::committed` | `Hold::committed` | records below the mark; times and bytes that cover them |
//! | P2 | `ProducerHeader::published` | [`Ring::published`] | the same, per producer |
//! | L | `Control::close` | `Control::is_closed` | the final mark, the link |
//! | T | `ProducerHeader::watermark_ns` | [`Ring::watermark`] | all records before the watermark |
//! | N | `Reservations::tell` | [`Ring::reservation_news`] | that a reservation fell |
//! | Q | a group's position | [`Positions::get`], search for a bucket | the group's work on the records |
//! | G | fence in `Control::claim` | fence in `Attached::copy_bucket` | the generation before the first new byte |
//! | F1–F2 | fences in `storage/eventcount.rs` | | a writer's wait against whatever frees a bucket |
//! | F3–F4 | fences in `parker.rs` | | a reader's sleep against a publication |
//! | W | `Parkers::wake` | the end of a sleep | what the waker did before |
//!
//! All else about buckets is under the mutex of the outer queue (`outer.rs`), which a producer takes once for each bucket
//! (twice with a hook), a reader when it starts or was lapped, and a dump when it looks for its buckets.
//!
//! No byte of a record is stored again between its publication and the bucket's next claim. Record bytes are written by the
//! buffer of an open bucket alone (`storage/write_buffer.rs`), and non-temporal stores by one function (`storage/stream.rs`), which
//! is a plain copy under loom and the sanitizers.
//!
//! # Cost
//!
//! Storing: a copy into the bucket, or on a busy link into a buffer in the L1 cache and from there past the cache into the
//! bucket, a line at a time (`storage/write_buffer.rs`); a comparison with the end of the bucket, the smallest and largest time, in
//! memory of the producer's own. Publishing: what waits in the buffer, a store fence if stores went past the cache, six
//! stores and a load; the full fence between these is run by readers that go to sleep (`barrier.rs`). Reading: two loads of
//! one line for each run of records. There is no lock, system call, allocation or clock in any of them;
//! `examples/ring_throughput.rs` measures. A change of buckets, under the mutex, takes a search among the windows of all
//! reservations, whose time follows the logarithm of their number (`windows.rs`), and a walk over the buckets only where one must fall.
//!
//! # Words
//!
//! | word | means |
//! |---|---|
//! | claim | a writer takes a free or closed bucket for new records |
//! | commit | the mark of a bucket moves, below which its records can be read, and then the count of its producer |
//! | publish | commit, and wake the readers that sleep |
//! | hold | a reader keeps a bucket from being claimed |
//! | position, pass | the number of the first record that a group is not done with; it passes a bucket when that lies behind it |
//! | lapped | overwritten before a reader got to it |
//! | evicted | overwritten, whoever has read it |
//! | want, fall | what a reservation does to a bucket in its window; what it does when it protects nothing any more |
//!
//! # Files
//!
//! | file | holds |
//! |---|---|
//! | `ring.rs`, `config.rs`, `record.rs`, `error.rs` | the handle, what it is made from, what goes in and out |
//! | `producer.rs` | the writing side, down to `storage/open.rs` and `storage/write_buffer.rs` |
//! | `group.rs`, `reader.rs`, `cursor.rs` | the reading side: a group's positions, a member, its place in one producer's buckets |
//! | `view.rs`, `storage/hold.rs`, `storage/bucket_memory.rs` | reading records of a bucket |
//! | `outer.rs` | the outer queue; with `reservations.rs` and `windows.rs` (what dumps want), `steps.rs` (clocks) |
//! | `log.rs`, `evicted.rs` | what was overwritten |
//! | `parker.rs`, `storage/eventcount.rs`, `futex.rs`, `barrier.rs` | sleeping and waking |
//! | `storage/layout.rs`, `storage/header.rs`, `storage/descriptor.rs` | what stands where in the region |
//! | `storage/mapping/` | the region's memory |
//! | `attach/` | reading the region of another process |
//! | `src/tests/`, `storage/tests/` | stand-ins for loom and ThreadSanitizer |
#[cfg(not(loom))]
mod attach;
mod barrier;
mod config;
mod cursor;
mod error;
mod evicted;
mod futex;
mod group;
mod log;
mod outer;
mod parker;
mod producer;
mod reader;
mod record;
mod reservations;
mod ring;
mod steps;
mod storage;
#[allow(
    dead_code,
    unused_imports,
    reason = "`tests/ring/roles` compiles this file as its own, and needs all of it"
)]
mod sync;
mod view;
mod windows;

#[cfg(not(loom))]
pub use attach::{
    AttachError, Attached, AttachedBucket, AttachedProducer, AttachedState, Buffer, CopyError,
    RegionInfo, RegionWriter,
};
pub use config::{Backing, EvictionDetail, Mode, RingConfig};
pub use error::{BurstError, RingError, StoreError};
pub use evicted::{Evicted, EvictedBucket, EvictedCount};
pub use group::{GroupKind, Lapped, Positions};
pub use parker::Waker;
pub use producer::Producer;
pub use reader::{Batch, Reader};
pub use record::{Packet, Record};
pub use reservations::Reservation;
pub use ring::{InterfaceEntry, Numa, Pages, Ring, RingStatistics};
pub use steps::Step;
#[cfg(not(loom))]
pub use storage::{LargeBuffer, ask_for_huge_pages};
pub use view::{BucketInfo, BucketRef, BucketView, Packets};
