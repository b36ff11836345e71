//! Whether an interface has an address: getifaddrs(3).
#![expect(unsafe_code, reason = "a list of C structures")]

use std::{ffi::CStr, io, ptr};

/// Whether `interface` has an IPv4 address, or an IPv6 address that is not link-local (every interface that is up has
/// one of those), in the calling thread's network namespace.
pub(super) fn has_address(interface: &str) -> io::Result<bool> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` is writable.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut next = list;
    let mut found = false;
    // SAFETY: null, or an entry of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_name.is_null() {
            continue;
        }
        // SAFETY: every entry's name is a C string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if name.to_bytes() == interface.as_bytes() {
            found |= is_global(entry.ifa_addr);
        }
    }
    // SAFETY: the list came from getifaddrs, and nothing borrows it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// `address` is null or an address of the list that is being walked.
fn is_global(address: *const libc::sockaddr) -> bool {
    // SAFETY: null, or a socket address of the list, which lives during the call.
    let Some(family) = (unsafe { address.as_ref() }).map(|address| i32::from(address.sa_family))
    else {
        return false;
    };
    if family != libc::AF_INET6 {
        return family == libc::AF_INET;
    }
    let address: *const libc::sockaddr_in6 = address.cast();
    // SAFETY: the family says that it is one, and getifaddrs aligns its addresses for any of them.
    let octets = unsafe { (*address).sin6_addr.s6_addr };
    !(octets[0] == 0xfe && octets[1] & 0xc0 == 0x80)
}
