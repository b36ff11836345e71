//! libpcap's interpreter, validator and printer, as the reference for tests.

use std::ffi::{CStr, c_char, c_int, c_uint};

use retroscope_bpf::Instruction;

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
    fn bpf_image(instruction: *const Instruction, index: c_int) -> *mut c_char;
}

pub(crate) fn validate(instructions: &[Instruction]) -> bool {
    let len = c_int::try_from(instructions.len()).expect("a short program");
    // SAFETY: `len` instructions are readable.
    unsafe { bpf_validate(instructions.as_ptr(), len) != 0 }
}

/// Panics unless the program validates.
pub(crate) fn run(instructions: &[Instruction], packet: &[u8], wire_len: u32) -> u32 {
    assert!(validate(instructions), "libpcap refuses the program");
    let captured_len = c_uint::try_from(packet.len()).expect("a short packet");
    // SAFETY: the program validates, so it stays inside `instructions`; it reads at most
    // `captured_len` bytes.
    unsafe {
        bpf_filter(
            instructions.as_ptr(),
            packet.as_ptr(),
            wire_len,
            captured_len,
        )
    }
}

/// libpcap's text of one instruction. The text is in a static buffer, so a lock admits one thread.
pub(crate) fn image(instruction: &Instruction, index: usize) -> String {
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_AT_A_TIME
        .lock()
        .expect("no test panics while it holds the lock");
    let index = c_int::try_from(index).expect("a short program");
    // SAFETY: one readable instruction; the lock keeps other threads from the static buffer.
    let text = unsafe { bpf_image(instruction, index) };
    // SAFETY: the buffer is NUL-terminated; the lock keeps other threads from changing the text.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
