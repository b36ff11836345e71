//! Tests that count and time: allocations and processor time. A separate program, because it has a
//! special allocator and must not share the process with other tests.
#![cfg(not(loom))]

mod allocations;
#[cfg(not(retroscope_sanitize))]
mod speed;
