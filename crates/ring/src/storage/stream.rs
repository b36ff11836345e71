//! Stores that go past the cache: they replace whole lines without reading the lines first.
//!
//! x86-64 has `movntdq` (SSE2, and wider variants), aarch64 has `stnp`, which is a hint. Under loom
//! and the sanitizers, which do not see through assembly, these are regular copies.
#![expect(unsafe_code, reason = "stores by address")]

/// Bytes of a cache line of most processors, smaller under loom.
pub(super) const LINE_BYTES: usize = if cfg!(loom) { 16 } else { 64 };

/// Copies lines past the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyLines {
    /// x86-64 with AVX-512VL: two stores a line instead of four. On a Zen 4 this stored 590-byte
    /// records in a tenth less time. SSE instructions cannot name the registers `ymm16` and
    /// `ymm17`: a switch between AVX and SSE code then costs nothing.
    is_wide: bool,
}

impl CopyLines {
    pub(super) fn detect() -> Self {
        #[cfg(all(target_arch = "x86_64", not(any(loom, retroscope_sanitize))))]
        let is_wide = std::arch::is_x86_feature_detected!("avx512vl");
        #[cfg(not(all(target_arch = "x86_64", not(any(loom, retroscope_sanitize)))))]
        let is_wide = false;
        Self { is_wide }
    }

    /// Copies `bytes`, a multiple of [`LINE_BYTES`], to an address that is also a multiple.
    ///
    /// Without [`fence`], other threads may see later stores before these stores.
    ///
    /// # Safety
    /// `from` is valid for reads and `to` for writes of `bytes` bytes, nobody else accesses the
    /// target, and the ranges do not overlap. `to` is a multiple of [`LINE_BYTES`].
    #[inline]
    pub(super) unsafe fn copy(self, to: *mut u8, from: *const u8, bytes: usize) {
        if self.is_wide {
            // SAFETY: the caller's promise; the processor has AVX-512VL.
            unsafe { copy_each::<true>(to, from, bytes) };
        } else {
            // SAFETY: the caller's promise.
            unsafe { copy_each::<false>(to, from, bytes) };
        }
    }
}

/// # Safety
/// As for [`CopyLines::copy`]; with `WIDE`, the processor has AVX-512VL.
#[inline(always)]
unsafe fn copy_each<const WIDE: bool>(to: *mut u8, from: *const u8, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        // SAFETY: inside the range that the caller guarantees, since `bytes` is a multiple of a
        // line.
        let target = unsafe { to.add(done) };
        // SAFETY: inside the range that the caller guarantees, as `target` is.
        let source = unsafe { from.add(done) };
        // SAFETY: both lines are inside the caller's ranges; `to` is a multiple of a line, and so
        // is `done`.
        unsafe { copy_one::<WIDE>(target, source) };
        done += LINE_BYTES;
    }
}

/// # Safety
/// As for [`copy_each`], of one line.
#[cfg(all(target_arch = "x86_64", not(any(loom, retroscope_sanitize))))]
#[inline(always)]
unsafe fn copy_one<const WIDE: bool>(to: *mut u8, from: *const u8) {
    // Assembly for a whole line: intrinsics would need a separate register for the address of each
    // store.
    if WIDE {
        // SAFETY: loads and stores the 64 bytes of one line, which the caller guarantees, and
        // changes only the named registers. The caller knows that the processor and the system have
        // these registers. `vmovntdq` requires addresses that are multiples of 32.
        unsafe {
            std::arch::asm!(
                "vmovdqu64 ymm16, [{from}]",
                "vmovdqu64 ymm17, [{from} + 32]",
                "vmovntdq [{to}], ymm16",
                "vmovntdq [{to} + 32], ymm17",
                from = in(reg) from,
                to = in(reg) to,
                out("xmm16") _, out("xmm17") _,
                options(nostack, preserves_flags),
            );
        }
    } else {
        // SAFETY: loads and stores the 64 bytes of one line, which the caller guarantees, in words
        // of 16 bytes, which every x86-64 has. Changes only the named registers.
        unsafe {
            std::arch::asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                from = in(reg) from,
                to = in(reg) to,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// # Safety
/// As for [`copy_each`], of one line.
#[cfg(all(target_arch = "aarch64", not(any(loom, retroscope_sanitize))))]
#[inline(always)]
unsafe fn copy_one<const WIDE: bool>(to: *mut u8, from: *const u8) {
    // SAFETY: loads and stores the 64 bytes of one line, which the caller guarantees, and changes
    // only the named registers.
    unsafe {
        std::arch::asm!(
            "ldp {a:q}, {b:q}, [{from}]",
            "ldp {c:q}, {d:q}, [{from}, #32]",
            "stnp {a:q}, {b:q}, [{to}]",
            "stnp {c:q}, {d:q}, [{to}, #32]",
            from = in(reg) from,
            to = in(reg) to,
            a = out(vreg) _, b = out(vreg) _, c = out(vreg) _, d = out(vreg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// As for [`copy_each`], of one line.
#[cfg(any(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    loom,
    retroscope_sanitize
))]
unsafe fn copy_one<const WIDE: bool>(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, LINE_BYTES) };
}

/// Orders this thread's stores past the cache before all its later stores. On x86-64 a Release
/// store does not.
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

/// Identifies a thread among all threads that live at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thread(usize);

impl Thread {
    #[inline]
    pub(super) fn current() -> Self {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        Self(PLACE.with(|place| std::ptr::from_ref(place).addr()))
    }
}

/// Prefetches the line at an address. Any address is allowed: the hint never faults.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which faults on no address and changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(loom)))]
    // SAFETY: a hint, which faults on no address and changes nothing.
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
    struct Place([u8; 64 * 5]);

    #[test]
    fn lines_arrive_from_any_place_and_their_neighbours_stay() {
        let from: Vec<u8> = (0..=207_u8).collect();
        for lines in [CopyLines { is_wide: false }, CopyLines::detect()] {
            for shift in 0..16 {
                let mut to = Place([0xee; 64 * 5]);
                let (place, source) = (to.0[64..].as_mut_ptr(), from[shift..].as_ptr());
                // SAFETY: three lines, starting with the second of five lines, from a longer
                // source.
                unsafe { lines.copy(place, source, 64 * 3) };
                fence();
                assert_eq!(to.0[64..256], from[shift..shift + 192]);
                let around = to.0[..64].iter().chain(&to.0[256..]);
                assert!(around.copied().all(|byte| byte == 0xee));
            }
        }
    }
}
