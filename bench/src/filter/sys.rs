//! The system's `bpf_filter`, as programs use it that filter with libpcap.
#![expect(unsafe_code, reason = "calls into the C library libpcap")]

use std::ffi::c_uint;

use retroscope_filter::Instruction;

use super::compile;
use crate::measure::Failure;

// As in pcap/pcap.h of libpcap 1.10.3.
#[link(name = "pcap")]
unsafe extern "C" {
    fn bpf_filter(
        program: *const Instruction,
        packet: *const u8,
        wire_len: c_uint,
        captured_len: c_uint,
    ) -> c_uint;
}

/// A program as `pcap_compile` made it, for Ethernet.
#[derive(Debug, Clone)]
pub(super) struct Libpcap(Vec<Instruction>);

impl Libpcap {
    /// Compiles an expression, with libpcap's optimizer.
    pub(super) fn compile(text: &str) -> Result<Self, Failure> {
        Ok(Self(compile(text)?.instructions().to_vec()))
    }

    /// `bpf_filter`: bytes to keep of the packet, 0 for one that does not match.
    #[inline(always)]
    #[must_use]
    pub(super) fn run(&self, packet: &[u8], wire_len: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "no packet has 4 GiB")]
        let captured_len = packet.len() as c_uint;
        // SAFETY: what was a `Program` ends with a return, jumps inside itself only and uses scratch memory that exists; `bpf_filter` checks
        // each load against `captured_len`, and these bytes are readable.
        unsafe { bpf_filter(self.0.as_ptr(), packet.as_ptr(), wire_len, captured_len) }
    }
}
