//! Asks the kernel to prefer one NUMA node for the pages of a mapping (mbind(2)).
#![expect(unsafe_code, reason = "makes a system call on an address")]

use std::{io, ptr::NonNull};

use crate::Numa;

/// Bits in the node mask, as many as Linux has nodes at most (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: u32 = 1024;
const WORD_BITS: u32 = libc::c_ulong::BITS;

/// Prefers a node for all untouched pages of a mapping.
pub(super) fn prefer(base: NonNull<u8>, bytes: usize, node: u32) -> Numa {
    let refused = |errno| Numa::Refused { node, errno };
    if node >= NODES_MAX {
        return refused(libc::EINVAL);
    }
    let mut mask: [libc::c_ulong; (NODES_MAX / WORD_BITS) as usize] =
        [0; (NODES_MAX / WORD_BITS) as usize];
    mask[(node / WORD_BITS) as usize] = 1 << (node % WORD_BITS);
    // SAFETY: the call reads `NODES_MAX` bits of `mask` (the kernel takes one bit less than the
    // argument) and changes no memory, only the future origin of the pages of this range. For an
    // unmapped range it returns an error.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            base.as_ptr(),
            bytes,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            libc::c_ulong::from(NODES_MAX) + 1,
            0,
        )
    };
    if result == 0 {
        return Numa::Preferred { node };
    }
    refused(
        io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL),
    )
}
