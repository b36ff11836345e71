//! Metrics about alerts of an IDS.

use retroscope_recorder::{AgeHistogram, AlertOutcome, RecorderStatus};

use super::{
    exposition::Exposition,
    families::{below, seconds},
};

pub(super) fn alerts(exposition: &mut Exposition, status: &RecorderStatus) {
    let alerts = &status.alerts;
    let lines = &alerts.lines;
    let mut family = exposition.counter(
        "retroscope_alert_lines",
        "Lines of the alert sources, by kind.",
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
        "Alerts by outcome. An alert whose dump ends without a packet counts twice: for the dump, then for the reason.",
    );
    for outcome in AlertOutcome::ALL {
        family.add(&[("outcome", outcome.as_str())], Some(alerts.of(outcome)));
    }
    let mut family = exposition.counter(
        "retroscope_alert_frames",
        "Frames of alerts with a finished dump that has packets, by whether the dump contains the frame.",
    );
    for (found, count) in [("yes", alerts.frames_found), ("no", alerts.frames_missing)] {
        family.add(&[("found", found)], Some(count));
    }
    let mut family = exposition.counter(
        "retroscope_alert_flow_starts",
        "Alerts in finished dumps that report the start of their flow, by whether the dump has a packet from that start or earlier.",
    );
    let missing = alerts.with_start.saturating_sub(alerts.found_start);
    for (found, count) in [("yes", alerts.found_start), ("no", missing)] {
        family.add(&[("found", found)], Some(count));
    }
    exposition
        .counter(
            "retroscope_alert_other_community_ids",
            "Alerts whose Community ID differs from the ID of their addresses and ports with seed 0.",
        )
        .add(&[], Some(alerts.other_community_id));
    exposition
        .histogram(
            "retroscope_alert_age_seconds",
            "Delay from an alert's time to the recorder's action. Live only.",
        )
        .add_histogram(
            &[],
            below(&AgeHistogram::BELOW_NS, &alerts.ages),
            Some(seconds(alerts.ages_sum_ns)),
        );
}
