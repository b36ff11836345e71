//! Tests of the ring's public API. The models (`tests/loom.rs`) and the measured tests
//! (`tests/measured/`) are separate programs.
#![cfg(not(loom))]

mod attach;
mod burst;
mod example;
mod features;
mod modes;
mod oracle;
mod promises;
mod releasing;
mod roles;
mod stress;
