//! Stores that go past the cache: whole lines, which need not be read before they are replaced.
//!
//! x86-64 has `movntdq` (SSE2, which every such CPU has; wider ones were measured to be no faster), aarch64 `stnp`, which is
//! a hint. Elsewhere, under loom, and under the sanitizers, which do not see through intrinsics, they are regular copies.
#![expect(unsafe_code, reason = "stores by address")]

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// Copies `bytes`, a multiple of [`LINE_BYTES`], to an address that is one, too.
///
/// Other threads may see these stores before earlier ones and after later ones, until [`fence`].
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `bytes`, nobody else accesses the latter, and they do not overlap. `to`
/// is a multiple of [`LINE_BYTES`].
#[cfg(all(target_arch = "x86_64", not(any(loom, retroscope_sanitize))))]
#[inline]
pub(super) unsafe fn copy_lines(to: *mut u8, from: *const u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for done in (0..bytes).step_by(size_of::<__m128i>()) {
        // SAFETY: inside what the caller vouches for, since `bytes` is a multiple of a line.
        let source = unsafe { from.add(done) }.cast::<__m128i>();
        // SAFETY: as above.
        let target = unsafe { to.add(done) }.cast::<__m128i>();
        // SAFETY: valid for reads.
        let word = unsafe { _mm_loadu_si128(source) };
        // SAFETY: valid for writes, and aligned to 16 bytes, as `to` is.
        unsafe { _mm_stream_si128(target, word) };
    }
}

/// See the x86-64 form.
///
/// # Safety
/// As there.
#[cfg(all(target_arch = "aarch64", not(any(loom, retroscope_sanitize))))]
#[inline]
pub(super) unsafe fn copy_lines(to: *mut u8, from: *const u8, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        // SAFETY: inside what the caller vouches for, since `bytes` is a multiple of a line.
        let source = unsafe { from.add(done) };
        // SAFETY: as above.
        let target = unsafe { to.add(done) };
        // SAFETY: loads and stores the 64 bytes of one line, and touches nothing but the registers named.
        unsafe {
            std::arch::asm!(
                "ldp {a:q}, {b:q}, [{source}]",
                "ldp {c:q}, {d:q}, [{source}, #32]",
                "stnp {a:q}, {b:q}, [{target}]",
                "stnp {c:q}, {d:q}, [{target}, #32]",
                source = in(reg) source,
                target = in(reg) target,
                a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
                options(nostack, preserves_flags),
            );
        }
        done += LINE_BYTES;
    }
}

/// See the x86-64 form.
///
/// # Safety
/// As there.
#[cfg(any(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    loom,
    retroscope_sanitize
))]
pub(super) unsafe fn copy_lines(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, bytes) };
}

/// Puts the stores of [`copy_lines`] before all later ones of this thread. A Release store alone does not, on x86-64.
#[inline]
pub(super) fn fence() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, retroscope_sanitize))))]
    // SAFETY: a barrier between stores, which every x86-64 has; accesses nothing.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(all(target_arch = "aarch64", not(any(loom, retroscope_sanitize))))]
    // SAFETY: a barrier between stores; accesses nothing.
    unsafe {
        std::arch::asm!("dmb ishst", options(nostack, preserves_flags));
    }
}

/// Tells the threads that live at a time apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thread(usize);

impl Thread {
    /// The one that asks.
    #[inline]
    pub(super) fn current() -> Self {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        Self(PLACE.with(|place| std::ptr::from_ref(place).addr()))
    }
}

/// Asks for the line at an address to be read soon. Any address may be given: it is a hint and faults on none.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which faults on no address and changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(loom)))]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), loom))]
    let _ = address;
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_differ() {
        let here = Thread::current();
        let there = std::thread::spawn(Thread::current).join().unwrap();
        assert_eq!(here, Thread::current());
        assert_ne!(here, there);
    }

    #[repr(align(64))]
    struct Lines([u8; 64 * 5]);

    #[test]
    fn lines_arrive_from_any_place_and_their_neighbours_stay() {
        let from: Vec<u8> = (0..=207_u8).collect();
        for shift in 0..16 {
            let mut to = Lines([0xee; 64 * 5]);
            // SAFETY: three lines, starting with the second one of five, from a longer source.
            unsafe { copy_lines(to.0[64..].as_mut_ptr(), from[shift..].as_ptr(), 64 * 3) };
            fence();
            assert_eq!(to.0[64..256], from[shift..shift + 192]);
            let around = to.0[..64].iter().chain(&to.0[256..]);
            assert!(around.copied().all(|byte| byte == 0xee));
        }
    }
}
