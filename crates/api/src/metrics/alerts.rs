//! Metrics about alerts of an IDS.

use retroscope_recorder::{AgeHistogram, AlertOutcome, RecorderStatus};

use super::{
    exposition::Exposition,
    families::{below, seconds},
};

/// Lines of alert sources, results of alerts, and their delay.
pub(super) fn alerts(exposition: &mut Exposition, status: &RecorderStatus) {
    let alerts = &status.alerts;
    let lines = &alerts.lines;
    let mut family = exposition.counter(
        "retroscope_alert_lines",
        "Lines of the sources of alerts, by what they were.",
    );
    for (kind, count) in [
        ("alert", lines.alerts),
        ("ignored", lines.ignored),
        ("lost", lines.lost),
        ("torn", lines.torn),
        ("wrong", lines.wrong),
    ] {
        family.add(&[("kind", kind)], Some(count));
    }
    let mut family = exposition.counter(
        "retroscope_alerts",
        "Alerts by what became of them; one whose dump ends without a packet counts twice, at last by why.",
    );
    for outcome in AlertOutcome::ALL {
        family.add(&[("outcome", outcome.as_str())], Some(alerts.of(outcome)));
    }
    let mut family = exposition.counter(
        "retroscope_alert_frames",
        "Frames that alerts are about, of finished dumps that have packets, by whether they are in them.",
    );
    for (found, count) in [("yes", alerts.frames_found), ("no", alerts.frames_missing)] {
        family.add(&[("found", found)], Some(count));
    }
    let mut family = exposition.counter(
        "retroscope_alert_flow_starts",
        "Alerts in finished dumps that tell when their flow began, by whether the dump has its first packet.",
    );
    let missing = alerts.with_start.saturating_sub(alerts.found_start);
    for (found, count) in [("yes", alerts.found_start), ("no", missing)] {
        family.add(&[("found", found)], Some(count));
    }
    exposition
        .counter(
            "retroscope_alert_other_community_ids",
            "Alerts whose Community ID is not that of their addresses and ports with seed 0.",
        )
        .add(&[], Some(alerts.other_community_id));
    exposition
        .histogram(
            "retroscope_alert_age_seconds",
            "How long after their time alerts were acted on. Live.",
        )
        .add_histogram(
            &[],
            below(&AgeHistogram::BELOW_NS, &alerts.ages),
            Some(seconds(alerts.ages_sum_ns)),
        );
}
