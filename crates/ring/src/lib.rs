//! QQ, the queue of queues: keeps each stored packet until a later packet needs the space.
//!
//! The design follows the QQ thesis (2016) and section V of the FlowScope paper (2017). An outer
//! queue contains large inner queues, here called *buckets*. One producer owns a bucket while it
//! fills the bucket, so threads seldom synchronize. Differences from the originals:
//!
//! - Readers see the published part of open buckets.
//! - Readers hold the bucket that they read, instead of keeping a guard interval.
//! - A bucket closes when it is full or its producer ends, never because of time.
//! - Dumps reserve the buckets that they need.
//!
//! The crate parses no packets. Callers provide the times of packets.
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
//! | [`Producer`] | stores into its open bucket, publishes | a bucket, depending on the mode |
//! | [`Reader`], member of a group | gets the records of its producers, in order | new records |
//! | [`Reservation`] | keeps the buckets of a window of packet time for a dump | |
//! | [`BucketView`] | holds one bucket while it is read | |
//! | [`Attached`], also in another process | copies buckets of a region | |
//!
//! # States of a bucket
//!
//! `free → claimed → open → closed → claimed → …`. One control word contains the state, the number
//! of holds and the generation (`storage/control.rs`). A producer claims, opens and links a new
//! bucket *before* it closes the old bucket, so that readers have a bucket to follow. If the
//! producer finds no new bucket, the old bucket stays open.
//!
//! # What is overwritten
//!
//! A producer takes a bucket that was never used. If no such bucket is left, the producer takes the
//! first closed bucket, by order of closing, that
//!
//! 1. every gating group has passed,
//! 2. nobody holds,
//! 3. no reservation wants.
//!
//! Packet times do not change this order: a clock that is set back cannot make new packets the
//! oldest.
//!
//! If no bucket meets these conditions, [`Mode`] decides. Each row of this table names a priority
//! of a task in table 6.1 of the thesis, the mode here, and the result if condition 1, 2 or 3
//! fails.
//!
//! | thesis | mode | 1 fails | 2 fails | 3 fails |
//! |---|---|---|---|---|
//! | priority above the queue's | [`Mode::Record`] | waits | [`StoreError::Full`] | see below |
//! | not above, may not block | [`Mode::Protect`] | `Full` | `Full` | `Full` |
//! | not above, blocks | [`Mode::Wait`] | waits | waits | waits |
//!
//! In record mode the ring then overwrites wanted buckets that meet conditions 1 and 2, those of
//! yielding reservations first. The owner of a reservation can ask which buckets it lost.
//!
//! # Who orders what
//!
//! | edge | store | load | carries |
//! |---|---|---|---|
//! | O–H | `Control::open` | `Control::hold` | the header of the new generation |
//! | R–C | `Control::release` | `Control::claim` | the reader's last load |
//! | P1 | `BucketHeader::committed` | `Hold::committed` | committed records, their times, bytes |
//! | P2 | `ProducerHeader::published` | [`Ring::published`] | the same, per producer |
//! | L | `Control::close` | `Control::is_closed` | the final mark, the link |
//! | T | `ProducerHeader::watermark_ns` | [`Ring::watermark`] | all records before the watermark |
//! | N | `Reservations::bump_news` | [`Ring::reservation_news`] | evictions of wanted buckets |
//! | Q | a group's position | [`Positions::get`], bucket search | the group's work on the records |
//! | G | fence, `Control::claim` | fence, `Attached::copy_bucket` | the new generation |
//! | F1–F2 | fences, `storage/eventcount.rs` | | the freed bucket, or a wake-up |
//! | F3–F4 | fences, `parker.rs` | | the publication, or a wake-up |
//! | W | `Parkers::wake` | the end of a sleep | everything that the waker did before |
//!
//! A mutex protects the outer queue (`outer.rs`). A producer takes the mutex to change buckets, a
//! reader to start, to end, and sometimes to find a bucket, a dump for its reservation.
//!
//! After a record is published, none of its bytes is stored again until a producer claims the
//! bucket again.
//!
//! # Cost
//!
//! - Storing a record: a copy into the bucket, a comparison with the end of the bucket, and the
//!   smallest and largest time. Short records can pass through a buffer in the L1 cache
//!   (`storage/write_buffer.rs`).
//! - Publishing: the pending bytes of the buffer, a store fence if stores went past the cache,
//!   seven stores and one load. The full fence in between usually runs in readers, before they
//!   sleep (`barrier.rs`).
//! - Reading: for each run of records, some loads of the bucket's header and one store of the
//!   group's position; a gating group also runs a fence.
//!
//! Within a bucket, storing, publishing and reading take no lock and allocate nothing. They make a
//! system call only to wake a sleeping thread, or after a producer moved to another thread.
//! `examples/ring_throughput.rs` measures the cost.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | claim | a writer takes a free or closed bucket for new records |
//! | commit | make stored records of a bucket readable |
//! | publish | commit; [`Producer::publish`] also wakes readers |
//! | hold | a reader keeps a bucket from being claimed |
//! | position | a group needs none of the producer's records before this number |
//! | pass | a group passes a bucket when the group's position is after the bucket |
//! | lapped | overwritten before a reader reached the record |
//! | evicted | overwritten, whether read or not |
//! | want | a reservation protects a closed bucket that touches its window |
//! | fall | a reservation loses a bucket |
//!
//! # Files
//!
//! | file | content |
//! |---|---|
//! | `ring.rs`, `config.rs`, `record.rs`, `error.rs` | the handle, its configuration, errors |
//! | `producer.rs` | the writing side, on `storage/open.rs` and `storage/write_buffer.rs` |
//! | `group.rs`, `reader.rs`, `cursor.rs` | the reading side: positions, members, cursors |
//! | `view.rs`, `storage/hold.rs`, `storage/bucket_memory.rs` | reading the records of a bucket |
//! | `outer.rs` | the outer queue; with `closed.rs`, `reservations.rs`, `windows.rs`, `steps.rs` |
//! | `log.rs`, `evicted.rs` | overwritten buckets |
//! | `parker.rs`, `storage/eventcount.rs`, `futex.rs`, `barrier.rs` | sleeping and waking |
//! | `storage/layout.rs`, `storage/header.rs`, `storage/descriptor.rs` | the layout of the region |
//! | `storage/mapping/` | the memory of the region |
//! | `attach/` | reading the region of another process |
//! | `readers/` | reading the region of another process in C and in Python |
//! | `src/tests/`, `storage/tests/` | substitutes for loom and ThreadSanitizer |
#[cfg(not(loom))]
mod attach;
mod barrier;
mod closed;
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
