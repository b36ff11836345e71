//! The whole program on live interfaces: `retroscope record -i` in network namespaces that each
//! test creates and removes.
//!
//! Without root or `ip`, the tests print `SKIP:` and pass. Most recorded interfaces are veth pairs.
//! In most tests, traffic comes from a socket of the test, so the test knows all sent bytes. Most
//! tests wait with a deadline for an event, such as a line on the recorder's stderr or the end of
//! the recorder. Some measurements also wait for time to pass.
//!
//! Most tests that load the machine or measure time run alone (`quiet`). If `RETROSCOPE_SOAK=1` is
//! set, as `make soak` does, some tests are longer or check tighter time limits, which an idle
//! machine meets.
//!
//! These tests are a separate binary from `tests/program`, because `quiet` locks only within a
//! process, and cargo runs test binaries one after another. In a common binary, each test of
//! `program` would also need the lock. And `make soak` runs this binary one test at a time, so
//! `make soak` would have to exclude the tests of `program`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "test code, also outside of test functions"
)]

mod alert_speed;
#[path = "../../../recorder/src/query/tests/blocks.rs"]
#[allow(dead_code, reason = "no test needs all of it")]
mod blocks;
mod capture;
#[allow(dead_code, reason = "no test needs all of it")]
mod client;
mod control;
mod disk;
#[cfg(feature = "dpdk")]
mod dpdk;
mod engines;
mod flows;
mod interfaces;
mod ledger;
mod marked;
#[path = "../../../capture/tests/capture/support/namespace.rs"]
#[allow(dead_code, reason = "no test needs all of it")]
mod namespace;
mod overload;
mod past;
mod privileges;
mod recorder;
mod refusals;
mod signals;
mod speed;
mod suricata;
#[allow(dead_code, reason = "no test needs all of it")]
mod terminal;
mod top;
mod traffic;
mod tun;
mod vlan;
mod windows;

use retroscope_recorder::PacketId;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A test that takes this lock for reading shares the machine with other such tests. A test that
/// takes the lock for writing runs alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// Lock of a test that may run in parallel with other tests that call `shared`.
fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Lock of a test that needs the machine to itself.
fn quiet() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `RETROSCOPE_SOAK` requests the long variants with tighter time limits.
fn soak() -> bool {
    std::env::var_os("RETROSCOPE_SOAK").is_some()
}
