//! QQ, the queue of queues: keeps each stored packet until a later packet needs the space.
//!
//! The design follows the QQ thesis (2016) and section V of the FlowScope paper (2017). An outer
//! queue contains large inner queues. One producer owns an inner queue while it fills the queue, so
//! that threads synchronize once per some megabytes. This crate calls an inner queue a *bucket*. It
//! differs from the originals in four ways:
//!
//! - Readers see the published part of open buckets.
//! - Readers hold the bucket that they read, instead of keeping a guard interval.
//! - A bucket closes when it is full or its producer ends, never because of time.
//! - Dumps reserve the buckets that they need.
//!
//! The crate knows bytes and times. It parses no packets. It reads a clock only for the sleep of a
//! reader and for the wait for the lock of a ring file. It starts threads only to fill its memory.
//! It opens files at paths of rings, of /proc (page sizes, boot id), and, through std, of cgroups.
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
//! | [`Attached`], in another process | copies buckets, then checks that they were still valid | |
//!
//! # States of a bucket
//!
//! `free → claimed → open → closed → claimed → …`. One control word contains the state, the number
//! of holds and the generation (`storage/control.rs`). A producer claims a new bucket *before* it
//! closes the old bucket, so that readers always have a bucket to follow. The producer links the
//! old bucket to the new bucket, then closes the old bucket. If the producer finds no new bucket,
//! the old bucket stays open, readable and safe.
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
//! Packet times do not change this order. A clock that is set back, or a producer with another
//! clock, therefore cannot make new packets the oldest.
//!
//! If no bucket meets these conditions, [`Mode`] decides. Table 6.1 of the thesis gives the queue
//! and the tasks priorities: on a full queue a task with a priority above the queue's succeeds, and
//! other tasks block. Each row of this table names the thesis's task, the mode here, and the result
//! if condition 1, 2 or 3 fails.
//!
//! | thesis | mode | 1 fails | 2 fails | 3 fails |
//! |---|---|---|---|---|
//! | priority above the queue's | [`Mode::Record`] | waits | [`StoreError::Full`] | see below |
//! | not above, may not block | [`Mode::Protect`] | `Full` | `Full` | `Full` |
//! | not above, blocks | [`Mode::Wait`] | waits | waits | waits |
//!
//! In record mode the first closed bucket that only yielding reservations want is overwritten then,
//! else the first closed bucket. The owner of a reservation can ask which buckets it lost.
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
//! Edge R–C orders the reader's last load before the writer's first store. Edge G orders the new
//! generation before the first new byte.
//!
//! The mutex of the outer queue (`outer.rs`) protects all other state of buckets. A producer takes
//! the mutex once per bucket (twice if its hook runs), again for each repeated search, at a clock
//! step, and when the producer ends. A reader takes the mutex when the reader starts or ends. It
//! also takes the mutex to find a bucket, for example at first, after being lapped, after
//! [`Reader::continue_at`] in another bucket, or if the bucket of a [`Reader::release`] was
//! overwritten. A dump takes the mutex to reserve, list and give back its buckets.
//!
//! After a record is published, no byte of the record is stored again until a producer claims the
//! bucket again. Only the buffer of an open bucket (`storage/write_buffer.rs`) writes record bytes.
//! Only `storage/stream.rs` and `storage/write_buffer/packed.rs` make non-temporal stores; under
//! loom and the sanitizers these are regular stores.
//!
//! # Cost
//!
//! - Storing a record: a copy into the bucket, a comparison with the end of the bucket, and the
//!   smallest and largest time in memory of the producer. On a busy link short records usually go
//!   into a buffer in the L1 cache or a register. From there they go past the cache into the
//!   bucket, mostly in whole lines (`storage/write_buffer.rs`).
//! - Publishing: the pending bytes of the buffer, a store fence if stores went past the cache,
//!   seven stores and one load. The full fence between the stores and the load usually runs in
//!   readers, before they sleep (`barrier.rs`).
//! - Reading: for each run of records, some loads of the bucket's header and one store of the
//!   group's position. A gating group also runs a fence.
//!
//! Within a bucket, storing, publishing and reading take no lock, allocation or clock. They make a
//! system call only to wake a sleeping thread, or after a producer moved to another thread.
//! `examples/ring_throughput.rs` measures the cost. A producer that changes buckets takes the
//! mutex. Without a free bucket the producer takes the first closed bucket from a heap
//! (`closed.rs`), and counts the windows that touch the bucket that it closes (`windows.rs`).
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | claim | a writer takes a free or closed bucket for new records |
//! | commit | advance the mark of readable records of a bucket, then the count of its producer |
//! | publish | commit; [`Producer::publish`] also wakes sleeping readers |
//! | hold | a reader keeps a bucket from being claimed |
//! | position | the number of the first record that a group has not finished |
//! | pass | a group passes a bucket when the group's position is after the bucket |
//! | lapped | overwritten before a reader reached the record |
//! | evicted | overwritten, whether read or not |
//! | want | a reservation protects closed buckets touching its window, not given back or excluded |
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
