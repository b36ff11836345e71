//! Reading and writing through the public functions.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a test"
)]

mod bounded;
mod bytes;
mod common;
mod corpus;
mod damage;
mod formats;
mod roundtrip;
mod tools;
