//! Non-temporal stores: the only code of this crate that writes around the caches.
//!
//! On x86-64 the stores use SSE2's `MOVNTDQ`, which every x86-64 CPU has. Elsewhere they are
//! ordinary stores, so figures named after non-temporal stores mean nothing there.
//!
//! Callers work on slices of [`Unit`]s, whose type guarantees the alignment, so that this module is
//! safe to call.
#![expect(
    unsafe_code,
    reason = "non-temporal stores are intrinsics or assembly; with ordinary stores an insert of 64 bytes takes twice as long (FACTS)"
)]

/// The unit of one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(16))]
pub(crate) struct Unit(pub [u8; 16]);

/// Bytes of a [`Unit`].
pub(crate) const UNIT_BYTES: usize = size_of::<Unit>();
const _: () = assert!(UNIT_BYTES == 16 && align_of::<Unit>() == 16);

/// The aligned part of `bytes`, as units.
pub(crate) fn units(bytes: &mut [u8]) -> &mut [Unit] {
    // SAFETY: a `Unit` is 16 bytes without padding, and any bytes are a valid `Unit`.
    let (_, units, _) = unsafe { bytes.align_to_mut::<Unit>() };
    units
}

/// Stores a value around the caches.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn stream(to: &mut Unit, value: &[u8; UNIT_BYTES]) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    // SAFETY: `value` is 16 readable bytes; an unaligned load needs no more. SSE2 is part of
    // x86-64.
    let value = unsafe { _mm_loadu_si128(value.as_ptr().cast::<__m128i>()) };
    // SAFETY: `to` is 16 writable bytes on a multiple of 16. The store is weakly ordered: the
    // caller must run `fence` before it hands the memory to another thread. This thread sees its
    // own stores in order.
    unsafe { _mm_stream_si128(std::ptr::from_mut(to).cast::<__m128i>(), value) };
}

/// Stores a value.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn stream(to: &mut Unit, value: &[u8; UNIT_BYTES]) {
    to.0 = *value;
}

/// Orders the stores around the caches before later stores of this thread, such as a lock's release
/// or a store of an index.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: SFENCE is part of SSE, which x86-64 includes; it touches no memory.
        unsafe { core::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Fills memory with a byte, without a fence.
pub(crate) fn fill(to: &mut [Unit], byte: u8) {
    let value = [byte; UNIT_BYTES];
    to.iter_mut().for_each(|unit| stream(unit, &value));
}

/// Copies as many whole units as both slices have, without a fence.
#[inline(always)]
pub(crate) fn copy(to: &mut [Unit], from: &[u8]) {
    let (values, _) = from.as_chunks::<UNIT_BYTES>();
    let count = values.len().min(to.len());
    let (to, values) = (&mut to[..count], &values[..count]);
    let mut lines = to.chunks_exact_mut(4);
    let mut value_lines = values.chunks_exact(4);
    for (line, values) in (&mut lines).zip(&mut value_lines) {
        for (unit, value) in line.iter_mut().zip(values) {
            stream(unit, value);
        }
    }
    for (unit, value) in lines
        .into_remainder()
        .iter_mut()
        .zip(value_lines.remainder())
    {
        stream(unit, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_the_aligned_part() {
        let mut bytes = vec![0; 1000];
        let offset = bytes.as_ptr().align_offset(16);
        let units = units(&mut bytes[offset + 1..offset + 65]);
        assert_eq!(units.len(), 3);
    }

    #[test]
    fn what_is_copied_arrives_and_no_more() {
        for bytes in [0, 15, 16, 64, 100, 128, 1514] {
            let from: Vec<u8> = (0..bytes)
                .map(|at: usize| at.to_le_bytes()[0] | 1)
                .collect();
            let mut to = vec![Unit::default(); 100];
            copy(&mut to, &from);
            fence();
            let whole = bytes / UNIT_BYTES * UNIT_BYTES;
            let arrived: Vec<u8> = to.iter().flat_map(|unit| unit.0).collect();
            assert_eq!(arrived[..whole], from[..whole]);
            assert!(arrived[whole..].iter().all(|&byte| byte == 0));
        }
        let mut short = vec![Unit::default(); 2];
        copy(&mut short, &[1; 64]);
        fill(&mut short[1..], 9);
        fence();
        assert_eq!(short, [Unit([1; 16]), Unit([9; 16])]);
    }
}
