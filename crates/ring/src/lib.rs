//! QQ, the queue of queues: keeps every packet in memory until a later one needs the place.
//!
//! ```
//! use retroscope_ring::{GroupKind, Record, Ring, RingConfig};
//!
//! let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None)?;
//! let mut reader = ring.group("analyzers", GroupKind::Lapped)?;
//! let mut producer = ring.producer()?;
//! producer.store(&Record::whole(1_000, 0, b"a frame"))?;
//! producer.publish();
//! let batch = reader.next().expect("one packet was published");
//! assert_eq!(batch.iter().next().map(|packet| packet.data), Some(&b"a frame"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod config;
mod error;
mod group;
mod log;
mod outer;
mod producer;
mod reader;
mod record;
mod reservation;
mod ring;
mod sleep;
mod storage;
mod sync;
mod view;

pub use config::{EvictionDetail, Mode, RingConfig};
pub use error::{RingError, StoreError};
pub use group::{GroupKind, Lapped, Positions};
pub use log::{Count, Evicted, EvictedBucket};
pub use producer::{NewBucket, Producer};
pub use reader::{Batch, Reader};
pub use record::{Packet, Record};
pub use reservation::Reservation;
pub use ring::{InterfaceEntry, Pages, Ring, RingStatistics};
pub use sleep::Waker;
pub use view::{BucketInfo, BucketRef, BucketView, Packets};
