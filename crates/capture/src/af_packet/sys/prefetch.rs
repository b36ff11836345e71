//! Prefetch hints to the processor.
#![expect(unsafe_code, reason = "an instruction that takes an address")]

/// Requests the cache line of `bytes` at `index` for the cache of this level, 1 or 2. The index may
/// be beyond the end. Does nothing on processors other than x86-64 and AArch64.
#[inline(always)]
pub(crate) fn prefetch<const LEVEL: u8>(bytes: &[u8], index: usize) {
    const { assert!(LEVEL == 1 || LEVEL == 2) };
    let address = bytes.as_ptr().wrapping_add(index);
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        if LEVEL == 1 {
            // SAFETY: a hint, which faults on no address and changes nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        } else {
            // SAFETY: a hint, which faults on no address and changes nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which faults on no address and changes nothing.
    unsafe {
        std::arch::asm!("prfm pldl{level}keep, [{0}]", in(reg) address, level = const LEVEL, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
