//! The checks of the fuzz targets. Each check is a function of any bytes that panics if a promise
//! is broken.
//!
//! `fuzz/` at the top of the checkout is a separate workspace, where `cargo fuzz` (or
//! `scripts/fuzz.sh`) calls these functions with bytes from libFuzzer. The tests of this crate call
//! them on stable Rust, with the corpus in `fuzz/corpus` and with random changes of the corpus. An
//! input that broke a promise stays in the corpus, under a name that describes the fault.
//!
//! Each target checks a promise:
//!
//! - [`translator()`]: the interpreter, machine code and libpcap's `bpf_filter` agree about which
//!   packets a program keeps.
//! - [`joint()`]: programs that run as one function keep the same packets as each alone in
//!   libpcap's `bpf_filter`.
//! - [`templates()`]: any text is an expression or an error with a position. All ways to evaluate
//!   an expression agree.
//! - [`payload()`]: payload terms agree with a naive search. A truncated packet has a prefix of the
//!   payload.
//! - [`lua_accessors()`]: the accessors of scripts agree with the packet crate.
//! - [`captures()`]: any bytes are a capture or an error, whatever the size of each read.

mod bytes;
mod captures;
#[path = "../../script/tests/integration/accessors/check.rs"]
#[expect(
    unreachable_pub,
    reason = "shared with the tests of the script crate, which call more of it"
)]
mod lua_accessors;
mod payload;
#[path = "../../filter/src/sys/reference_tests.rs"]
#[expect(
    unsafe_code,
    dead_code,
    reason = "libpcap's interpreter, shared with the tests of the filter crate, which call more of it"
)]
mod reference;
mod templates;
#[cfg(test)]
mod tests;
mod translator;

pub use captures::captures;
pub use lua_accessors::check_input as lua_accessors;
pub use payload::payload;
pub use templates::templates;
pub use translator::{joint, translator};

/// A target: its name, which is also that of its folder in the corpus, and its function.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [FuzzTarget; 7] = [
    ("translator", translator),
    ("joint", joint),
    ("templates", templates),
    ("payload", payload),
    ("lua_accessors", lua_accessors),
    ("pcap", captures),
    ("pcapng", captures),
];
