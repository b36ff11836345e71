//! Flows: their keys, the table that counts them, the queue of their time-outs, the largest flows,
//! and which packets are kept. [`LfnTable`] and [`Feed`] are shared by threads.
//!
//! Pure: packets and times in, flows out. No threads, no clock, no input or output, except the
//! random numbers of [`Secret::random`].
#![forbid(unsafe_code)]

mod feed;
mod flow;
mod history;
mod index;
mod key;
mod lfn;
mod packet;
mod queue;
mod shed;
mod sync;
mod table;
mod time_outs;
mod top;
mod tracker;

pub use feed::{Feed, FeedCursor, FeedItem};
pub use flow::{Flow, TcpState};
pub use history::{HEAD_BYTES, HistoryGoal, HistoryStep};
pub use key::{AddressKind, BiflowKey, DirectedKey, Host, Secret};
pub use lfn::LfnTable;
pub use packet::{Attribution, FlowPacket};
pub use queue::{MultiresolutionQueue, TimerEntry, TimerResolution, Timers};
pub use shed::{Cutoff, HandOver, Mark, ShedCause, Shedder, ShedderConfig, TailDrop};
pub use table::{Advise, FlowEnd, FlowTable, FlowTableCounters};
pub use time_outs::{StageTimeOuts, TimeOutStage, TimeOuts};
pub use top::{TopOrder, TopReport, TopRow, TopSlice, TopSubject, TopWindow, TrafficVolume};
pub use tracker::{EndedFlow, Tracker, TrackerConfig, TrackerCounters};
