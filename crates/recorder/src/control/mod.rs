//! What the threads share: time, how far each has come, wishes, and news for whoever watches.

pub(crate) mod common;
pub(crate) mod events;
pub(crate) mod hits;
pub(crate) mod progress;
pub(crate) mod ring_time;
pub(crate) mod time;
pub(crate) mod unprivileged;
