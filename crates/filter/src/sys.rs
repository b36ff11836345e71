//! The interface to the system's libpcap.
//!
//! libpcap 1.10 can compile on several handles at the same time. One handle belongs to one thread
//! at a time, hence `&mut`.
#![expect(unsafe_code, reason = "calls into the C library libpcap")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    ptr::NonNull,
    slice,
};

use retroscope_packet::LinkType;

use crate::{FilterFrame, FilterMode, Instruction, LinkContext, Program, program::run_each};

/// `PCAP_NETMASK_UNKNOWN` of `pcap/pcap.h`.
const NETMASK_UNKNOWN: c_uint = 0xffff_ffff;
/// `PCAP_ERRBUF_SIZE` of `pcap/pcap.h`.
const ERRBUF_BYTES: usize = 256;
/// `PROTO_UNDEF` of `pcap/namedb.h`: several transports share a port's name.
const PROTO_UNDEF: c_int = -1;
/// Bytes of a pcap file header.
const HEADER_BYTES: usize = 24;

/// `struct bpf_program` of `pcap/bpf.h`.
#[repr(C)]
struct BpfProgram {
    len: c_uint,
    instructions: *mut Instruction,
}

/// `pcap_t`.
#[repr(C)]
struct OpaquePcap {
    _private: [u8; 0],
}

// Signatures as in libpcap 1.10.3: pcap/pcap.h, pcap/bpf.h (`bpf_filter`) and pcap/namedb.h.
#[link(name = "pcap")]
unsafe extern "C" {
    fn pcap_fopen_offline(file: *mut libc::FILE, errbuf: *mut c_char) -> *mut OpaquePcap;
    fn pcap_open_dead(dlt: c_int, snaplen: c_int) -> *mut OpaquePcap;
    fn pcap_datalink(handle: *mut OpaquePcap) -> c_int;
    fn pcap_datalink_val_to_name(dlt: c_int) -> *const c_char;
    fn pcap_snapshot(handle: *mut OpaquePcap) -> c_int;
    fn pcap_compile(
        handle: *mut OpaquePcap,
        program: *mut BpfProgram,
        text: *const c_char,
        optimize: c_int,
        netmask: c_uint,
    ) -> c_int;
    fn pcap_freecode(program: *mut BpfProgram);
    fn pcap_geterr(handle: *mut OpaquePcap) -> *mut c_char;
    fn pcap_close(handle: *mut OpaquePcap);
    fn bpf_filter(
        program: *const Instruction,
        packet: *const u8,
        wire_len: c_uint,
        captured_len: c_uint,
    ) -> c_uint;
    fn pcap_nametoport(name: *const c_char, port: *mut c_int, proto: *mut c_int) -> c_int;
    fn pcap_nametoproto(name: *const c_char) -> c_int;
}

/// The number of a port's name, and its transport if there is only one transport. Reads the
/// system's tables.
pub(crate) fn port(name: &str) -> Option<(u16, Option<&'static str>)> {
    let name = CString::new(name).ok()?;
    let (mut port, mut proto): (c_int, c_int) = (0, 0);
    // SAFETY: `name` ends with a NUL, and both places are writable. libpcap keeps no pointer.
    let is_known = unsafe { pcap_nametoport(name.as_ptr(), &raw mut port, &raw mut proto) };
    if is_known == 0 {
        return None;
    }
    let transport = match proto {
        PROTO_UNDEF => None,
        libc::IPPROTO_TCP => Some("tcp"),
        libc::IPPROTO_UDP => Some("udp"),
        _ => return None,
    };
    Some((u16::try_from(port).ok()?, transport))
}

/// The number of a protocol's name. Reads the system's tables.
pub(crate) fn protocol(name: &str) -> Option<u8> {
    let name = CString::new(name).ok()?;
    // SAFETY: `name` ends with a NUL; libpcap keeps no pointer.
    let number = unsafe { pcap_nametoproto(name.as_ptr()) };
    u8::try_from(number).ok()
}

impl Program {
    /// Like [`Self::run_many`], but runs libpcap's own interpreter, for comparisons. An instruction
    /// that reads ancillary data ([`Aux`](crate::Aux)) rejects the packet here.
    ///
    /// # Panics
    /// If there are more than [`Self::MANY`] packets.
    #[must_use]
    pub fn run_many_in_libpcap(&self, frames: &[FilterFrame<'_>]) -> u64 {
        assert!(frames.len() <= Self::MANY);
        run_each(frames, |frame| bpf_filter_of(self, frame))
    }
}

fn bpf_filter_of(program: &Program, frame: &FilterFrame<'_>) -> u32 {
    let packet = frame.data();
    let captured_len = c_uint::try_from(packet.len()).unwrap_or(c_uint::MAX);
    // SAFETY: `Program::new` checked operation codes, jumps, scratch indexes and the final return,
    // so libpcap reads nothing outside of `instructions`. libpcap checks each load against
    // `captured_len`, and that many bytes are readable.
    unsafe {
        bpf_filter(
            program.instructions().as_ptr(),
            packet.as_ptr(),
            frame.wire_len(),
            captured_len,
        )
    }
}

/// libpcap's name for a link type without `DLT_`, such as `EN10MB`. `None` if unknown.
#[must_use]
pub fn link_type_name(link_type: LinkType) -> Option<&'static str> {
    let link = LinkContext::new(link_type, 0, FilterMode::Savefile);
    CompileHandle::open(&link).ok()?.link_type_name()
}

/// An open `pcap_t` that compiles for one link type and reads no packets.
pub(crate) struct CompileHandle {
    pcap: NonNull<OpaquePcap>,
    netmask: c_uint,
    /// The file header of a savefile handle. The header must outlive `pcap`, which `Drop` closes
    /// first.
    _header: Box<[u8; HEADER_BYTES]>,
}

impl CompileHandle {
    /// A savefile handle comes from a file header in memory, so that libpcap treats the expression
    /// as `tcpdump -r` does. A live handle takes the `DLT_` value and the snap length that libpcap
    /// derives from that header.
    ///
    /// # Errors
    /// libpcap's message, or our message if memory runs out.
    pub(crate) fn open(link: &LinkContext) -> Result<Self, String> {
        let savefile = Self::open_savefile(link)?;
        match link.mode {
            FilterMode::Savefile => Ok(savefile),
            FilterMode::Live => savefile.into_live(),
        }
    }

    fn open_savefile(link: &LinkContext) -> Result<Self, String> {
        let mut header = Box::new(file_header(link));
        // SAFETY: `header` has `HEADER_BYTES` and is boxed, so it does not move. The header lives
        // until after the stream is closed. The mode is a C string and only reads.
        let file = unsafe {
            libc::fmemopen(
                header.as_mut_ptr().cast::<c_void>(),
                HEADER_BYTES,
                c"r".as_ptr(),
            )
        };
        if file.is_null() {
            return Err("out of memory".to_owned());
        }
        let mut errbuf: [c_char; ERRBUF_BYTES] = [0; ERRBUF_BYTES];
        // SAFETY: `file` is an open stream that nobody else uses; `errbuf` has the size that
        // libpcap requires. On success the stream belongs to the returned handle.
        let pcap = unsafe { pcap_fopen_offline(file, errbuf.as_mut_ptr()) };
        let Some(pcap) = NonNull::new(pcap) else {
            // SAFETY: on failure the stream is still ours, open, and used nowhere else.
            unsafe { libc::fclose(file) };
            // SAFETY: `errbuf` was zeroed, and libpcap ends its text with a NUL.
            let message = unsafe { CStr::from_ptr(errbuf.as_ptr()) };
            return Err(message.to_string_lossy().into_owned());
        };
        Ok(Self {
            pcap,
            netmask: 0,
            _header: header,
        })
    }

    pub(crate) fn link_type_name(&self) -> Option<&'static str> {
        // SAFETY: the handle is open and activated.
        let dlt = unsafe { pcap_datalink(self.pcap.as_ptr()) };
        // SAFETY: takes an integer, which libpcap looks up.
        let name = unsafe { pcap_datalink_val_to_name(dlt) };
        if name.is_null() {
            return None;
        }
        // SAFETY: a C string in a constant table of libpcap, which stays loaded.
        unsafe { CStr::from_ptr(name) }.to_str().ok()
    }

    fn into_live(self) -> Result<Self, String> {
        // SAFETY: the handle is open and activated.
        let dlt = unsafe { pcap_datalink(self.pcap.as_ptr()) };
        // SAFETY: the handle is open and activated.
        let snaplen = unsafe { pcap_snapshot(self.pcap.as_ptr()) };
        // SAFETY: takes two integers; libpcap checks them.
        let pcap = unsafe { pcap_open_dead(dlt, snaplen) };
        let pcap = NonNull::new(pcap).ok_or_else(|| "out of memory".to_owned())?;
        Ok(Self {
            pcap,
            netmask: NETMASK_UNKNOWN,
            _header: Box::new([0; HEADER_BYTES]),
        })
    }

    /// # Errors
    /// libpcap's message.
    pub(crate) fn compile(
        &mut self,
        text: &CStr,
        optimize: bool,
    ) -> Result<Vec<Instruction>, String> {
        let mut program = BpfProgram {
            len: 0,
            instructions: std::ptr::null_mut(),
        };
        // SAFETY: the handle is open and `&mut self` excludes other threads. `program` is writable
        // and `text` ends with a NUL; libpcap keeps no pointer to either.
        let status = unsafe {
            pcap_compile(
                self.pcap.as_ptr(),
                &raw mut program,
                text.as_ptr(),
                c_int::from(optimize),
                self.netmask,
            )
        };
        if status != 0 {
            // SAFETY: the handle is open; the result is a string inside it.
            let message = unsafe { pcap_geterr(self.pcap.as_ptr()) };
            // SAFETY: the NUL-terminated string does not change while `&mut self` is held.
            let message = unsafe { CStr::from_ptr(message) };
            return Err(message.to_string_lossy().into_owned());
        }
        let instructions = if program.instructions.is_null() {
            Vec::new()
        } else {
            // SAFETY: on success libpcap points at `len` initialized instructions with the layout
            // of `Instruction`, valid until `pcap_freecode` below.
            unsafe { slice::from_raw_parts(program.instructions, program.len as usize) }.to_vec()
        };
        // SAFETY: `program` came from a successful `pcap_compile` and is freed once.
        unsafe { pcap_freecode(&raw mut program) };
        Ok(instructions)
    }
}

impl Drop for CompileHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, used nowhere else, and closed once. The header outlives this
        // call.
        unsafe { pcap_close(self.pcap.as_ptr()) };
    }
}

/// The header of an empty pcap file: microseconds, byte order of this machine.
fn file_header(link: &LinkContext) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[0..4].copy_from_slice(&0xa1b2_c3d4_u32.to_ne_bytes());
    header[4..6].copy_from_slice(&2_u16.to_ne_bytes());
    header[6..8].copy_from_slice(&4_u16.to_ne_bytes());
    header[16..20].copy_from_slice(&link.snaplen.to_ne_bytes());
    header[20..24].copy_from_slice(&u32::from(link.link_type.0).to_ne_bytes());
    header
}

#[cfg(test)]
#[path = "sys/reference_tests.rs"]
pub(crate) mod reference;
