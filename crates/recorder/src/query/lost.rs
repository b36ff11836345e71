//! Packets that a live recorder shed, or lost before its ring, for example in the kernel.

use super::contents::{QueryWindow, RegionContents};
use crate::{Missing, control::common::RecorderShared, rfc3339};

/// The losses of a window, and the time up to which all losses are known. `to`: end of the window.
pub(super) fn lost_before_the_ring(
    recorder: &RecorderShared,
    contents: &RegionContents,
    window: &QueryWindow,
    to: Option<&String>,
) -> (Vec<Missing>, Option<String>) {
    let offset_ns = contents.latest_offset_ns();
    // The window has stamps, and losses have ring time. If clocks differ or were set, a window may
    // have several ranges of ring time.
    let mut parts = if window.from_ns == i64::MIN && window.to_ns == i64::MAX {
        vec![(i64::MIN, i64::MAX)]
    } else {
        recorder.ring_times(window.all())
    };
    parts.sort_unstable();
    parts.dedup_by(|next, before| {
        let touches = next.0 <= before.1;
        if touches {
            before.1 = before.1.max(next.1);
        }
        touches
    });
    let now_ns = recorder.clock.now().ring_ns;
    if parts.first().is_some_and(|part| part.0 > now_ns) {
        return (Vec::new(), None); // the whole window is in the future
    }
    parts.retain(|part| part.0 <= now_ns);
    if window.to_ns == i64::MAX {
        let end_ns = contents.known_ring_ns();
        parts
            .iter_mut()
            .for_each(|part| part.1 = part.1.min(end_ns));
    }
    let end_ns = parts.iter().map(|part| part.1).max();
    for part in &mut parts {
        part.0 = part.0.max(window.from_ring_ns);
    }
    let (mut lost, known_ns) = recorder.intake.known_losses(&parts, offset_ns);
    if !contents.steps.is_empty() {
        // The setting of the clock that applied to the lost packets is not known here.
        let (from_ns, to_ns) = window.all();
        for entry in &mut lost {
            (entry.from, entry.to) = (rfc3339(from_ns), rfc3339(to_ns));
        }
    }
    let uncounted = recorder.intake.unknown_losses();
    let known_ns = known_ns.filter(|_| uncounted.is_empty());
    let known_to = known_ns.and_then(|known_ns| match end_ns {
        Some(end_ns) if known_ns < end_ns => Some(rfc3339(known_ns.saturating_add(offset_ns))),
        _ => to.cloned(),
    });
    (lost, known_to)
}
