//! libpcap's own interpreter, as the yardstick.
#![expect(unsafe_code, reason = "calls into the C library libpcap")]

use std::ffi::{c_int, c_uint};

use retroscope_filter::Instruction;

// Signatures as in pcap/bpf.h of libpcap 1.10.3; `Instruction` has the layout of `struct bpf_insn`.
#[link(name = "pcap")]
unsafe extern "C" {
    fn bpf_filter(
        program: *const Instruction,
        packet: *const u8,
        wire_len: c_uint,
        captured_len: c_uint,
    ) -> c_uint;
    fn bpf_validate(program: *const Instruction, len: c_int) -> c_int;
}

/// Whether libpcap would run these instructions.
pub(crate) fn validate(instructions: &[Instruction]) -> bool {
    let len = c_int::try_from(instructions.len()).expect("a short program");
    // SAFETY: `len` instructions are readable.
    unsafe { bpf_validate(instructions.as_ptr(), len) != 0 }
}

/// libpcap's `bpf_filter`. Panics unless the program validates.
pub(crate) fn run(instructions: &[Instruction], packet: &[u8], wire_len: u32) -> u32 {
    assert!(validate(instructions), "libpcap refuses the program");
    let captured_len = c_uint::try_from(packet.len()).expect("a short packet");
    // SAFETY: the program validates, so it stays inside `instructions`; it reads at most `captured_len` bytes.
    unsafe {
        bpf_filter(
            instructions.as_ptr(),
            packet.as_ptr(),
            wire_len,
            captured_len,
        )
    }
}
