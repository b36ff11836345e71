//! The ring that fits into the available memory, and the limit on locked memory.

use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, Severity};
use crate::{
    memory::{available, default_ring, largest_ring},
    units::show_size,
};

pub(super) const CHECK: &str = "memory";
pub(super) const CHECK_LOCKED: &str = "memlock";

/// Minimum useful ring size in bytes: about a tenth of a second at 10 Gbit/s.
const RING_BYTES_MIN: u64 = 128 << 20;

/// Bytes a second on a link of 1 Gbit/s.
const GIGABIT_BYTES: u64 = 125_000_000;

/// Findings about the ring's memory and the limit on locked memory.
pub(super) fn findings() -> [Finding; 2] {
    let locked = match getrlimit(Resource::Memlock).current {
        None => "no limit on locked memory".to_owned(),
        Some(bytes) => format!(
            "at most {} may be locked, which matters to AF_XDP without CAP_IPC_LOCK only",
            show_size(bytes)
        ),
    };
    [ring(available()), Finding::ok(CHECK_LOCKED, locked)]
}

/// `available`: bytes of memory that the kernel and the limits of the control groups still allow.
/// `None`: unknown.
fn ring(available: Option<u64>) -> Finding {
    let Some(available) = available else {
        return Finding::note(
            CHECK,
            "cannot tell how much memory is available",
            "give the ring's size: record --ring 1GiB",
        );
    };
    let ring = default_ring(Some(available));
    let what = format!(
        "{} available: the ring has {} unless told otherwise, {} s at 1 Gbit/s",
        show_size(available),
        show_size(ring),
        ring / GIGABIT_BYTES
    );
    if ring < RING_BYTES_MIN {
        Finding::warn(
            CHECK,
            what,
            "free memory or raise the control group's memory.max; bursts do not fit into this ring",
        )
    } else if ring < default_ring(None) {
        let advice = "free memory, or give the size: record --ring SIZE";
        Finding::note(CHECK, what, advice)
    } else {
        let largest = show_size(largest_ring(available));
        let advice =
            format!("nothing to do; for more history: record --ring SIZE, up to {largest}");
        Finding::new(Severity::Ok, CHECK, what, advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_ring_should_fit() {
        let severity = |available| ring(available).severity;
        assert_eq!(severity(Some(64 << 30)), Severity::Ok);
        assert_eq!(severity(Some(4 << 30)), Severity::Ok);
        assert_eq!(severity(Some(2 << 30)), Severity::Note);
        assert_eq!(severity(Some(512 << 20)), Severity::Note);
        assert_eq!(severity(Some(511 << 20)), Severity::Warn);
        assert_eq!(severity(Some(0)), Severity::Warn);
        assert_eq!(severity(None), Severity::Note);
    }

    #[test]
    fn history_is_in_seconds() {
        let what = ring(Some(8 << 30)).what;
        assert!(
            what.contains("1 GiB") && what.contains("8 s at 1 Gbit/s"),
            "{what}"
        );
    }
}
