//! The ring through its public face. The models (`tests/loom.rs`) and what is counted and timed (`tests/measured/`) are programs of their
//! own.
#![cfg(not(loom))]

mod attach;
mod burst;
mod features;
mod modes;
mod oracle;
mod promises;
mod roles;
mod stress;
