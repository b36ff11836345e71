//! The crate through its public functions.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

mod accessors;
mod budgets;
mod common;
mod compiled;
mod dumps;
mod examples;
mod modules;
mod sandbox;
