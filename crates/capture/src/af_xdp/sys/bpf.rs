//! bpf(2): maps, the program, and the link that attaches the program.
#![expect(unsafe_code, reason = "a system call that takes pointers in integers")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use crate::{netlink::until_nul, sys::check};

/// Commands of bpf(2).
const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const MAP_DELETE: i32 = 3;
const PROG_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const LINK_DETACH: i32 = 34;

/// `BPF_PROG_TYPE_XDP`, `BPF_XDP`.
const TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program accepts packets of several buffers. Since Linux 5.18.
const HAS_FRAGMENTS: u32 = 1 << 5;
/// `BPF_F_XDP_DEV_BOUND_ONLY`: the program is for one interface, and may call functions of its
/// driver. Since Linux 6.3.
const DEVICE_BOUND: u32 = 1 << 6;

/// Further attempts to load a program after `EAGAIN`: a signal to the thread ends the verifier
/// (commit c3494801cd17). Limited, because continuous signals must not block the start.
const AGAIN_MAX: usize = 9;

/// Bytes for the verifier's message about a program that it refuses.
const LOG_BYTES: usize = 64 << 10;

/// `struct bpf_insn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct EbpfInstruction {
    pub(crate) code: u8,
    /// Destination register in the lower four bits, source register in the upper four bits.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

const _: () = assert!(size_of::<EbpfInstruction>() == 8);

/// A map with keys and values of fixed sizes.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) descriptor: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

/// `union bpf_attr` for `BPF_MAP_CREATE`.
#[repr(C)]
struct MapRequest {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

/// `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
struct LoadRequest {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

const _: () = assert!(size_of::<LoadRequest>() == 72);

/// `union bpf_attr` for the commands on elements of a map.
#[repr(C)]
struct ElementRequest {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// `union bpf_attr` for `BPF_LINK_CREATE`.
#[repr(C)]
struct LinkRequest {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

impl Map {
    /// `BPF_MAP_TYPE_ARRAY` with `BPF_F_MMAPABLE`: since Linux 5.5.
    pub(crate) const ARRAY: (u32, u32) = (2, 1 << 10);
    /// `BPF_MAP_TYPE_LRU_HASH`.
    pub(crate) const LRU_HASH: (u32, u32) = (9, 0);
    /// `BPF_MAP_TYPE_XSKMAP`, whose values are descriptors of sockets.
    pub(crate) const SOCKETS: (u32, u32) = (17, 0);

    /// Makes a map of one of the kinds above.
    pub(crate) fn new(
        (kind, flags): (u32, u32),
        key_bytes: usize,
        value_bytes: usize,
        entries_max: u32,
    ) -> io::Result<Self> {
        let request = MapRequest {
            kind,
            key_bytes: u32::try_from(key_bytes).map_err(io::Error::other)?,
            value_bytes: u32::try_from(value_bytes).map_err(io::Error::other)?,
            entries_max,
            flags,
        };
        // SAFETY: the attributes of MAP_CREATE begin with these five numbers; the kernel treats
        // missing attributes as 0.
        let descriptor = unsafe { call_for_descriptor(MAP_CREATE, &request) }?;
        Ok(Self {
            descriptor,
            key_bytes,
            value_bytes,
        })
    }

    pub(crate) fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.change(key, Some(value))
    }

    pub(crate) fn remove(&self, key: &[u8]) -> io::Result<()> {
        self.change(key, None)
    }

    /// Sets the value of a key; `None`: removes the key.
    fn change(&self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        assert_eq!(key.len(), self.key_bytes);
        assert!(value.is_none_or(|value| value.len() == self.value_bytes));
        let command = value.map_or(MAP_DELETE, |_| MAP_UPDATE);
        let request = ElementRequest {
            map: number(self.descriptor.as_fd()),
            padding: 0,
            key: key.as_ptr() as u64,
            value: value.map_or(0, |value| value.as_ptr() as u64),
            flags: 0,
        };
        // SAFETY: the pointers lead to as many bytes as the map's keys have and, for an update, as
        // its values have, as asserted.
        unsafe { call(command, &request) }?;
        Ok(())
    }
}

/// A loaded program. The kernel keeps the program while a descriptor or link refers to it.
#[derive(Debug)]
pub(crate) struct XdpProgram(OwnedFd);

/// Loads an XDP program. `with_fragments`: for packets of several buffers. `device`: the index of
/// the only interface to which the program can be attached; `None`: any interface.
///
/// # Errors
/// The kernel's error, if possible with the last line of the verifier's message.
pub(crate) fn load_program(
    instructions: &[EbpfInstruction],
    with_fragments: bool,
    device: Option<i32>,
) -> io::Result<XdpProgram> {
    let length = |len: usize| u32::try_from(len).map_err(io::Error::other);
    let instruction_count = length(instructions.len())?;
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let flags = flag(with_fragments, HAS_FRAGMENTS) | flag(device.is_some(), DEVICE_BOUND);
    let program = explained(|log| {
        let (log_level, log_bytes, log) = match log {
            Some(log) => (1, length(log.len())?, log.as_mut_ptr() as u64),
            None => (0, 0, 0),
        };
        let request = LoadRequest {
            kind: TYPE_XDP,
            instruction_count,
            instructions: instructions.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level,
            log_bytes,
            log,
            kernel_version: 0,
            flags,
            name: *b"retroscope\0\0\0\0\0\0",
            interface: device.map_or(0, i32::cast_unsigned),
            attach_type: ATTACH_XDP,
        };
        // SAFETY: the three pointers lead to the instructions, a C string and the log, with the
        // lengths in the request, and live across the call. The kernel writes only to the log,
        // which nobody else borrows.
        unsafe { call_for_descriptor(PROG_LOAD, &request) }
    });
    program.map(XdpProgram)
}

/// Loads without the verifier's log, and after a failure other than `EAGAIN` again with a log. With
/// a log, the kernel refuses a good program whose log does not fit (`ENOSPC`).
fn explained<T>(mut load: impl FnMut(Option<&mut [u8]>) -> io::Result<T>) -> io::Result<T> {
    let error = match try_again(|| load(None)) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => error,
        outcome => return outcome,
    };
    let mut log = vec![0_u8; LOG_BYTES];
    let outcome = try_again(|| {
        // The message of an earlier attempt does not explain this attempt.
        log[0] = 0;
        load(Some(&mut log))
    });
    let again = match outcome {
        Ok(program) => return Ok(program),
        Err(again) => again,
    };
    if again.raw_os_error() != error.raw_os_error() {
        // The log does not explain the first error: this attempt failed for another reason.
        return Err(error);
    }
    let words = until_nul(&log);
    Err(match words.lines().rev().find(|line| !line.is_empty()) {
        Some(line) => io::Error::new(error.kind(), format!("{error}: {line}")),
        None => error,
    })
}

fn try_again<T>(mut load: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..AGAIN_MAX {
        match load() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            outcome => return outcome,
        }
    }
    load()
}

/// An attached program. The kernel detaches the program when the last copy of the descriptor is
/// closed.
#[derive(Debug)]
pub(crate) struct XdpLink(OwnedFd);

impl Drop for XdpLink {
    /// Detaches the program explicitly: a child process may have a copy of the descriptor until it
    /// executes another program (close-on-exec).
    ///
    /// Before Linux 5.19, where `kernel.unprivileged_bpf_disabled` is not 0, a process without
    /// privileges cannot detach, and only closes the descriptor.
    fn drop(&mut self) {
        let link = number(self.0.as_fd());
        // SAFETY: the attributes of LINK_DETACH are the descriptor's number; no pointers. After a
        // failure, closing the descriptor is all that can be done.
        let _ = unsafe { call(LINK_DETACH, &link) };
    }
}

/// Attaches a program to an interface of the calling thread's network namespace; `flags` are
/// `XDP_FLAGS_`. Since Linux 5.9.
pub(crate) fn attach(
    program: &XdpProgram,
    interface_index: i32,
    flags: u32,
) -> io::Result<XdpLink> {
    let request = LinkRequest {
        program: number(program.0.as_fd()),
        interface: interface_index.cast_unsigned(),
        attach_type: ATTACH_XDP,
        flags,
    };
    // SAFETY: the attributes of LINK_CREATE begin with these four numbers; no pointers.
    unsafe { call_for_descriptor(LINK_CREATE, &request) }.map(XdpLink)
}

/// # Safety
/// As [`call`]; the command returns a new descriptor.
unsafe fn call_for_descriptor<T>(command: i32, request: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees what `call` requires.
    let descriptor = unsafe { call(command, request) }?;
    // SAFETY: the kernel just returned this descriptor, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// # Safety
/// `request` is laid out as `union bpf_attr` for `command`, from its start. Its pointers lead to
/// memory that the command may read and write.
unsafe fn call<T>(command: i32, request: &T) -> io::Result<i32> {
    let pointer: *const T = request;
    // SAFETY: `pointer` leads to `size_of::<T>()` bytes; the caller guarantees their content.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, size_of::<T>()) };
    // The kernel returns an int.
    check(i32::try_from(result).map_err(io::Error::other)?)
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_signal_ended_is_tried_again_and_not_for_ever() {
        let tries = |interrupted: usize, then: io::ErrorKind| {
            let mut count = 0;
            let outcome = try_again(|| -> io::Result<()> {
                count += 1;
                let kind = if count <= interrupted {
                    io::ErrorKind::WouldBlock
                } else {
                    then
                };
                Err(kind.into())
            });
            (count, outcome.unwrap_err().kind())
        };
        let refused = io::ErrorKind::PermissionDenied;
        assert_eq!(tries(0, refused), (1, refused));
        assert_eq!(tries(AGAIN_MAX, refused), (AGAIN_MAX + 1, refused));
        let interrupted = io::ErrorKind::WouldBlock;
        assert_eq!(tries(usize::MAX, refused), (AGAIN_MAX + 1, interrupted));
    }

    /// Returns which loads had a log, and the outcome.
    fn loads(
        mut answer: impl FnMut(Option<&mut [u8]>) -> io::Result<()>,
    ) -> (Vec<bool>, io::Result<()>) {
        let mut logs = Vec::new();
        let outcome = explained(|log| {
            logs.push(log.is_some());
            answer(log)
        });
        (logs, outcome)
    }

    #[test]
    fn a_log_that_is_cut_off_fails_no_good_program() {
        let no_room = || io::Error::from_raw_os_error(libc::ENOSPC);
        let (logs, outcome) = loads(|log| log.map_or(Ok(()), |_| Err(no_room())));
        assert!(outcome.is_ok());
        assert_eq!(logs, [false], "nobody asked for words");
    }

    #[test]
    fn words_are_asked_for_after_a_failure() {
        let refused = || io::Error::from_raw_os_error(libc::EACCES);
        let (logs, outcome) = loads(|log| {
            if let Some(log) = log {
                log[..14].copy_from_slice(b"R1\nR2 is bad\n\0");
            }
            Err(refused())
        });
        assert_eq!(logs, [false, true]);
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(error.to_string().ends_with(": R2 is bad"), "{error}");
        // If the log does not fit, the first error stays.
        let (_, outcome) = loads(|log| match log {
            Some(log) => {
                log[..3].copy_from_slice(b"R1\0");
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            }
            None => Err(refused()),
        });
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EACCES));
        // Without privileges there is no message.
        let (_, outcome) = loads(|_| Err(io::Error::from_raw_os_error(libc::EPERM)));
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
