//! What the fuzz targets check: each is a function of any bytes that panics where a promise is broken.
//!
//! `fuzz/` at the top of the checkout is a workspace of its own, where `cargo fuzz` (or `scripts/fuzz.sh`) calls them with
//! bytes that libFuzzer makes up; the tests of this crate call them on stable Rust, with the corpus in `fuzz/corpus` and
//! with random changes of it. An input that broke a promise stays in the corpus, under a name that says what was wrong.
//!
//! | target | promise |
//! |---|---|
//! | [`translator`] | a program says the same in the interpreter, as machine code, and in libpcap's `bpf_filter` |
//! | [`joint`] | programs that run as one function say the same as each alone in libpcap's `bpf_filter` |
//! | [`templates`] | any text is an expression or an error with a place; an expression says the same however it is asked |
//! | [`payload`] | payload terms agree with a naive search; a cut packet has a prefix of the payload |
//! | [`lua_accessors`] | what a script reads of a packet is what the packet crate says of it |
//! | [`captures`] | any bytes are a capture or an error with an offset, whatever pieces they come in |

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

/// A target: its name, which is that of its folder in the corpus, and its function.
pub type FuzzTarget = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [FuzzTarget; 7] = [
    ("translator", translator),
    ("joint", joint),
    ("templates", templates),
    ("payload", payload),
    ("lua_accessors", lua_accessors),
    ("pcap", captures),
    ("pcapng", captures),
];
