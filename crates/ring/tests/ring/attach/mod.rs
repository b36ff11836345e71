//! Rings read through a file, a memfd or [`retroscope_ring::Ring::attached`]: live, damaged, or
//! left by a killed writer.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(
    clippy::print_stdout,
    reason = "a process of the test talks to the other"
)]

mod foreign;
mod live;
mod pattern;
mod readers;
mod region;
mod role;
