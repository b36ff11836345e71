//! The system's libpcap as other programs use it: `pcap_compile`, then `bpf_filter` for each packet.
#![expect(unsafe_code, reason = "calls into the C library libpcap")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint},
    ptr::NonNull,
    slice,
};

use retroscope_filter::Instruction;

use crate::contest::Failure;

/// `DLT_EN10MB` of `pcap/dlt.h`.
const ETHERNET: c_int = 1;
/// What tcpdump asks for.
const SNAPLEN: c_int = 262_144;

/// `struct bpf_program` of `pcap/bpf.h`.
#[repr(C)]
struct BpfProgram {
    len: c_uint,
    instructions: *mut Instruction,
}

/// `pcap_t`, which only libpcap looks into.
#[repr(C)]
struct Pcap {
    _private: [u8; 0],
}

// Signatures as in pcap/pcap.h of libpcap 1.10.3.
#[link(name = "pcap")]
unsafe extern "C" {
    fn pcap_open_dead(dlt: c_int, snaplen: c_int) -> *mut Pcap;
    fn pcap_compile(
        handle: *mut Pcap,
        program: *mut BpfProgram,
        text: *const c_char,
        optimize: c_int,
        netmask: c_uint,
    ) -> c_int;
    fn pcap_freecode(program: *mut BpfProgram);
    fn pcap_geterr(handle: *mut Pcap) -> *mut c_char;
    fn pcap_close(handle: *mut Pcap);
    fn bpf_filter(
        program: *const Instruction,
        packet: *const u8,
        wire_len: c_uint,
        captured_len: c_uint,
    ) -> c_uint;
}

/// A program as `pcap_compile` made it, for Ethernet.
#[derive(Debug, Clone)]
pub(crate) struct Libpcap {
    /// What `pcap_compile` made, unchanged: `bpf_filter` relies on that.
    instructions: Vec<Instruction>,
}

/// An open handle.
struct Handle(NonNull<Pcap>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and closed once.
        unsafe { pcap_close(self.0.as_ptr()) };
    }
}

impl Libpcap {
    /// Compiles an expression, with libpcap's optimizer.
    ///
    /// # Errors
    /// [`Failure::System`] with libpcap's words.
    pub(crate) fn compile(text: &str) -> Result<Self, Failure> {
        let failure = |error: String| Failure::system(&format!("pcap_compile of '{text}'"), error);
        let words = CString::new(text).map_err(|error| failure(error.to_string()))?;
        // SAFETY: takes two integers; libpcap checks them.
        let handle = unsafe { pcap_open_dead(ETHERNET, SNAPLEN) };
        let handle = Handle(NonNull::new(handle).ok_or_else(|| failure("no memory".to_owned()))?);
        let mut program = BpfProgram {
            len: 0,
            instructions: std::ptr::null_mut(),
        };
        // SAFETY: the handle is open and nobody else's, `program` is writable, and the text ends with a NUL; libpcap keeps
        // no pointer to either.
        let status =
            unsafe { pcap_compile(handle.0.as_ptr(), &raw mut program, words.as_ptr(), 1, 0) };
        if status != 0 {
            // SAFETY: the handle is open; the result is a string inside it that ends with a NUL.
            let message = unsafe { pcap_geterr(handle.0.as_ptr()) };
            // SAFETY: as above; it is copied before the handle is used again.
            let message = unsafe { CStr::from_ptr(message) };
            return Err(failure(message.to_string_lossy().into_owned()));
        }
        // SAFETY: on success libpcap points at `len` instructions, at least one, whose layout is `Instruction`'s; they stay
        // until `pcap_freecode` below.
        let made = unsafe { slice::from_raw_parts(program.instructions, program.len as usize) };
        let instructions = made.to_vec();
        // SAFETY: `program` came from a successful `pcap_compile` and is freed once.
        unsafe { pcap_freecode(&raw mut program) };
        Ok(Self { instructions })
    }

    /// `bpf_filter`: bytes to keep of the packet, 0 for one that does not match.
    #[inline(always)]
    #[must_use]
    pub(crate) fn run(&self, packet: &[u8], wire_len: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "no packet has 4 GiB")]
        let captured_len = packet.len() as c_uint;
        // SAFETY: `pcap_compile` made the program, so it ends with a return, jumps inside itself only and uses scratch
        // memory that exists; `bpf_filter` checks each load against `captured_len`, and these bytes are readable.
        unsafe {
            bpf_filter(
                self.instructions.as_ptr(),
                packet.as_ptr(),
                wire_len,
                captured_len,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_compiles_runs_and_refuses() {
        let libpcap = Libpcap::compile("ip").unwrap();
        assert_eq!(libpcap.instructions.len(), 4);
        let mut packet = [0; 14];
        assert_eq!(libpcap.run(&packet, 14), 0);
        packet[12] = 8;
        assert_eq!(libpcap.run(&packet, 14), 262_144);
        assert_eq!(libpcap.run(&packet[..13], 14), 0);
        let error = Libpcap::compile("host and").unwrap_err().to_string();
        assert!(error.contains("syntax error"), "{error}");
    }
}
