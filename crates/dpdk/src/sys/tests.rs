//! Packets of any shape for `net_ring`.

use super::*;

/// The layout of a test packet: `struct rsd_shape`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Shape {
    /// Bytes that the packet's head claims in addition to the existing bytes.
    pub(crate) more: u32,
    /// Bytes of the packet that go into each buffer, 1 to 2048. The last buffer gets the rest.
    pub(crate) segment: u16,
    pub(crate) tci: u16,
    pub(crate) is_tagged: bool,
}

unsafe extern "C" {
    fn rsd_feed(ring: *const c_char, bytes: *const u8, length: u32, shape: *const Shape) -> c_int;
}

/// Puts a packet into a ring of `net_ring`, in buffers that do not belong to the engine. Returns
/// whether there was room.
pub(crate) fn feed(_: &Environment, ring: &CStr, bytes: &[u8], shape: &Shape) -> io::Result<bool> {
    assert!((1..=2048).contains(&shape.segment));
    let _alone = PortsLock::acquire();
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    // SAFETY: the environment runs, `ring` ends with NUL, `bytes` has `length` bytes. They are
    // copied in segments that fit a buffer, as asserted; the lock keeps other threads out.
    let taken = unsafe { rsd_feed(ring.as_ptr(), bytes.as_ptr(), length, shape) };
    check(taken).map(|()| taken == 1)
}
