//! Huge pages for a ring without `--ring-file`: explicit ones if enough are free, else transparent
//! ones, else none.
//!
//! See the kernel's Documentation/admin-guide/mm/hugetlbpage.rst and transhuge.rst.

use super::{
    finding::{Finding, Severity},
    read, read_number,
};
use crate::{
    memory::{available, default_ring},
    units::show_size,
};

pub(super) const CHECK: &str = "pages";
pub(super) const CHECK_SHARED: &str = "shared-pages";

/// Size of the huge pages that the ring requests, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Findings about the pages of a ring, and about the pages of a ring in a memfd.
pub(super) fn findings() -> [Finding; 2] {
    let mode = |file| {
        let line = read(format!("/sys/kernel/mm/transparent_hugepage/{file}"));
        line.as_deref().and_then(marked).map(str::to_owned)
    };
    let free = read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    judge(
        mode("enabled").as_deref(),
        mode("shmem_enabled").as_deref(),
        free.unwrap_or(0),
        default_ring(available()),
    )
}

/// `mode`: the kernel's setting for transparent huge pages; `shared`: the setting for rings in a
/// memfd. `None`: the setting cannot be read, for example because the kernel has no transparent
/// huge pages. `free`: unused explicit huge pages.
fn judge(mode: Option<&str>, shared: Option<&str>, free: u64, ring_bytes: u64) -> [Finding; 2] {
    let needed = ring_bytes.div_ceil(HUGE_PAGE_BYTES);
    let is_enough = free > 0 && free >= needed;
    let finding = if is_enough {
        Finding::ok(
            CHECK,
            format!(
                "{free} explicit huge pages of 2 MiB are free, {needed} are enough for the ring"
            ),
        )
    } else if let Some(mode @ ("always" | "madvise")) = mode {
        Finding::ok(
            CHECK,
            format!("transparent huge pages ({mode}) hold the ring; {free} explicit ones are free"),
        )
    } else {
        Finding::note(
            CHECK,
            format!(
                "no huge pages for a ring of {}: filling its memory at the start takes longer",
                show_size(ring_bytes)
            ),
            format!(
                "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled, or: \
                 sudo sysctl vm.nr_hugepages={needed}"
            ),
        )
    };
    // A ring in a memfd has a separate setting. Not every recorder uses a memfd, so this finding is
    // never worse than `ok`.
    let shared = match shared {
        _ if is_enough => Finding::ok(CHECK_SHARED, "a ring in a memfd has explicit huge pages"),
        Some(mode @ ("always" | "within_size" | "advise" | "force")) => Finding::ok(
            CHECK_SHARED,
            format!("transparent huge pages ({mode}) hold a ring in a memfd"),
        ),
        _ => Finding::new(
            Severity::Ok,
            CHECK_SHARED,
            "a ring in a memfd has 4 KiB pages: filling it at the start takes longer",
            "for ring-memfd: \
             echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
    };
    [finding, shared]
}

/// The word in brackets, which is the mode that the kernel uses.
fn marked(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING_BYTES: u64 = 1 << 30;

    fn finding(mode: Option<&str>, free: u64) -> Finding {
        let [finding, _] = judge(mode, None, free, RING_BYTES);
        finding
    }

    #[test]
    fn the_mode_is_the_word_in_brackets() {
        assert_eq!(marked("always [madvise] never"), Some("madvise"));
        assert_eq!(marked("always madvise never"), None);
    }

    #[test]
    fn a_memfd_has_a_setting_of_its_own() {
        let shared = |mode, free| {
            let [_, shared] = judge(None, Some(mode), free, RING_BYTES);
            shared
        };
        let advise = shared("advise", 0);
        assert!(advise.what.starts_with("transparent"), "{}", advise.what);
        let never = shared("never", 511);
        assert!(never.advice.contains("shmem_enabled"), "{}", never.advice);
        assert_eq!(never.severity, Severity::Ok);
        let explicit = shared("never", 512);
        assert!(explicit.what.contains("explicit"), "{}", explicit.what);
    }

    #[test]
    fn one_kind_of_huge_pages_is_enough() {
        let severity = |mode, free| finding(mode, free).severity;
        assert_eq!(severity(Some("madvise"), 0), Severity::Ok);
        assert_eq!(severity(Some("always"), 0), Severity::Ok);
        assert_eq!(severity(Some("never"), 512), Severity::Ok);
        assert_eq!(severity(None, 600), Severity::Ok);
        assert_eq!(severity(Some("never"), 511), Severity::Note);
        assert_eq!(severity(None, 0), Severity::Note);
    }

    #[test]
    fn advice_gives_the_number() {
        let advice = finding(None, 0).advice;
        assert!(advice.contains("vm.nr_hugepages=512"), "{advice}");
        assert!(advice.contains("transparent_hugepage/enabled"), "{advice}");
    }
}
