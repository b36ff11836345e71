//! Tests that count allocations and measure time. A separate program, because it has a special
//! allocator.
#![cfg(not(loom))]

mod allocations;
#[cfg(not(retroscope_sanitize))]
mod speed;
