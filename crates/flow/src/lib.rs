//! Flows: their keys, the table that counts them, and the queue of their time-outs.
//!
//! Pure: packets and times in, flows out. No threads, no clock, no input or output.
#![forbid(unsafe_code)]

mod key;
mod queue;

pub use key::{Ends, Family, Key, Secret};
pub use queue::{Entry, MultiresolutionQueue, Resolution};
