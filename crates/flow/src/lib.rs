//! Flows: their keys, the table that counts them, and the queue of their time-outs.
//!
//! Pure: packets and times in, flows out. No threads, no clock, no input or output.
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

pub use feed::{Cursor, Feed, Heard};
pub use flow::{Flow, TcpState};
pub use history::{HEAD_BYTES, HistoryGoal, HistoryStep};
pub use key::{Ends, Family, Host, Key, Secret};
pub use lfn::LfnTable;
pub use packet::{Attribution, Packet};
pub use queue::{Entry, MultiresolutionQueue, Resolution, Timers};
pub use shed::{Cutoff, HandOver, Mark, ShedCause, Shedder, ShedderConfig, TailDrop};
pub use table::{Advise, Counters, End, FlowTable};
pub use time_outs::{Stage, StageTimeOuts, TimeOuts};
pub use top::{By, Report, Row, Slice, Subject, Volume, Window};
pub use tracker::{Ended, Tracker, TrackerConfig, TrackerCounters};
