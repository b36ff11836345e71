//! Huge pages for the ring: explicit ones if enough are free, else transparent ones, else none.
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

/// The huge pages that the ring asks for, in bytes.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// What was found.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The line in `transparent_hugepage/enabled`, which marks one of `always madvise never`; `None`: not built in.
    pub(super) transparent: Option<String>,
    /// The line in `transparent_hugepage/shmem_enabled`, for rings in a memfd; `None`: not built in.
    pub(super) shared: Option<String>,
    /// Explicit huge pages of 2 MiB that nobody uses.
    pub(super) free: Option<u64>,
    /// Bytes of the default ring.
    pub(super) ring_bytes: u64,
}

impl Facts {
    pub(super) fn gather() -> Self {
        Self {
            transparent: read("/sys/kernel/mm/transparent_hugepage/enabled"),
            shared: read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            free: read_number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
            ring_bytes: default_ring(available()),
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let needed = self.ring_bytes.div_ceil(HUGE_PAGE_BYTES);
        let free = self.free.unwrap_or(0);
        let mode = self.transparent.as_deref().and_then(marked);
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
                format!(
                    "transparent huge pages ({mode}) hold the ring; {free} explicit ones are free"
                ),
            )
        } else {
            Finding::note(
                CHECK,
                format!(
                    "no huge pages for a ring of {}: filling its memory at the start takes longer",
                    show_size(self.ring_bytes)
                ),
                format!(
                    "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled, or: \
                     sudo sysctl vm.nr_hugepages={needed}"
                ),
            )
        };
        // A memfd has a setting of its own.
        let shared = match self.shared.as_deref().and_then(marked) {
            _ if is_enough => {
                Finding::ok(CHECK_SHARED, "a ring in a memfd has explicit huge pages")
            }
            Some(mode @ ("always" | "within_size" | "advise" | "force")) => Finding::ok(
                CHECK_SHARED,
                format!("transparent huge pages ({mode}) hold a ring in a memfd"),
            ),
            _ => Finding::new(
                Severity::Ok,
                CHECK_SHARED,
                "a ring in a memfd has 4 KiB pages: filling it at the start takes longer",
                "for record --ring-memfd: \
                 echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled",
            ),
        };
        vec![finding, shared]
    }
}

/// The word in brackets.
fn marked(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(transparent: Option<&str>, free: Option<u64>) -> Finding {
        let facts = Facts {
            transparent: transparent.map(str::to_owned),
            shared: None,
            free,
            ring_bytes: 1 << 30,
        };
        let [finding, _] = <[_; 2]>::try_from(facts.findings()).unwrap();
        finding
    }

    #[test]
    fn a_memfd_has_a_setting_of_its_own() {
        let shared = |line: &str, free| {
            let facts = Facts {
                transparent: None,
                shared: Some(line.to_owned()),
                free: Some(free),
                ring_bytes: 1 << 30,
            };
            facts.findings().remove(1)
        };
        let advise = shared("always within_size [advise] never deny force", 0);
        assert!(advise.what.starts_with("transparent"), "{}", advise.what);
        let never = shared("always within_size advise [never] deny force", 511);
        assert!(never.advice.contains("shmem_enabled"), "{}", never.advice);
        assert_eq!(
            never.severity,
            Severity::Ok,
            "not every recorder has such a ring"
        );
        let explicit = shared("always within_size advise [never] deny force", 512);
        assert!(explicit.what.contains("explicit"), "{}", explicit.what);
    }

    #[test]
    fn one_kind_of_huge_pages_is_enough() {
        let never = Some("always madvise [never]");
        assert_eq!(
            finding(Some("always [madvise] never"), Some(0)).severity,
            Severity::Ok
        );
        assert_eq!(
            finding(Some("[always] madvise never"), None).severity,
            Severity::Ok
        );
        assert_eq!(finding(never, Some(512)).severity, Severity::Ok);
        assert_eq!(finding(None, Some(600)).severity, Severity::Ok);
        assert_eq!(finding(never, Some(511)).severity, Severity::Note);
        assert_eq!(finding(None, None).severity, Severity::Note);
    }

    #[test]
    fn advice_gives_the_number() {
        let advice = finding(None, None).advice;
        assert!(advice.contains("vm.nr_hugepages=512"), "{advice}");
        assert!(advice.contains("transparent_hugepage/enabled"), "{advice}");
    }
}
