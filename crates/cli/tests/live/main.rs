//! The whole program on live interfaces: `retroscope record -i` in network namespaces that each
//! test makes and removes.
//!
//! Needs root and `ip`; says `SKIP:` where they are missing. Interfaces are veth pairs, a tun
//! device and `lo`; traffic comes from a packet socket of the test's own, so what was sent is known
//! to the byte. Nothing waits for time to pass: a test waits for a line on the recorder's stderr,
//! or for its end, with a deadline.
//!
//! Tests that put the machine under load, or measure time, run alone (`quiet`).
//! `RETROSCOPE_SOAK=1`, which `make soak` sets, makes them longer and checks tighter time limits,
//! which an idle machine meets.
//!
//! Why it is a binary beside `tests/program`: `quiet` is a lock of one process, and cargo runs one
//! test binary after the other. In one binary with them, each test of `program` would have to take
//! the lock too, and `make soak`, which runs this binary one test at a time, would have to leave
//! them out.

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

/// Other tests may share the machine, measurements may not.
static MACHINE: RwLock<()> = RwLock::new(());

/// Lock of a test that runs in parallel with other tests.
fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Lock of a test that needs the machine to itself.
fn quiet() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the long variants with tighter limits are requested.
fn soak() -> bool {
    std::env::var_os("RETROSCOPE_SOAK").is_some()
}
