//! Code for processors with AVX-512 VBMI.
#![expect(unsafe_code, reason = "runs code that not every processor can")]

/// Proof that this processor has AVX-512 BW and VBMI, and BMI2 (most Intel Xeon since Ice Lake, AMD
/// since Zen 4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512Vbmi(());

impl Avx512Vbmi {
    /// `None` without these extensions, under loom, and under ThreadSanitizer, which does not see
    /// accesses of more than 16 bytes.
    pub(super) fn detect() -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", not(any(loom, retroscope_sanitize = "thread"))))]
        let is_there = std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512vbmi")
            && std::arch::is_x86_feature_detected!("bmi2");
        #[cfg(not(all(target_arch = "x86_64", not(any(loom, retroscope_sanitize = "thread")))))]
        let is_there = false;
        is_there.then_some(Self(()))
    }

    /// Runs `work`. The compiler may use the extensions in code that it inlines here.
    #[inline]
    pub(crate) fn run<R>(self, work: impl FnOnce() -> R) -> R {
        // SAFETY: the processor has the features: `detect` makes the only values.
        unsafe { compiled_for_it(work) }
    }
}

/// # Safety
/// The processor has the features.
#[cfg_attr(
    target_arch = "x86_64",
    target_feature(enable = "avx512bw,avx512vbmi,bmi2")
)]
unsafe fn compiled_for_it<R>(work: impl FnOnce() -> R) -> R {
    work()
}
