//! Tests of the crate through its public functions.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

mod absurd;
mod common;
mod compile;
mod disassembly;
mod expected;
mod payload;
mod ruleset;
mod templates;
