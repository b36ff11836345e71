//! What is counted and timed: allocations and processor time. A program of its own, because it has an allocator of its own and wants
//! no other tests beside it.
#![cfg(not(loom))]

mod allocations;
#[cfg(not(retroscope_sanitize))]
mod speed;
