//! What a dump knows of the alerts that it is of: which frames they are about, and which were found.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use retroscope_alert::{Alert, Identity};
use retroscope_packet::LinkType;
use serde::Serialize;

use super::{
    active::Active,
    order::CloseOrder,
    report::{DumpReport, Missing},
};
use crate::{
    analysis::alerts::is_alerted,
    control::{
        alerts::{AlertCounters, AlertNews, AlertOutcome, shared},
        time::{rfc3339, seconds},
    },
};

/// Stamps of packets that are remembered, for alerts about them that come later.
const STAMPS_MAX: usize = 1 << 20;
/// Alerts that a sidecar lists.
const LISTED_MAX: usize = 1000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Alerted {
    alerts: Vec<(Arc<Alert>, bool)>,
    /// Which of them are about a packet with this stamp, µs.
    by_stamp: HashMap<i64, Vec<usize>>,
    /// Stamps of packets that the sinks have, µs.
    given: HashSet<i64>,
    first_us: Option<i64>,
}

/// What was known when the dump was opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AlertFacts {
    /// The oldest packet in the ring, ns of ring time; `None`: it was empty.
    pub(crate) oldest_ns: Option<i64>,
    /// Packets of the window in the ring, about, …
    pub(crate) before: u64,
    /// … and all that were recorded by then.
    pub(crate) recorded: u64,
}

/// An alert as a sidecar lists it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AlertEntry {
    #[serde(flatten, serialize_with = "shared")]
    identity: Arc<Identity>,
    /// Whether the frame that it is about is in the dump, marked; absent where it is about none on the wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    frame: Option<bool>,
}

impl Alerted {
    pub(super) fn is_any(&self) -> bool {
        !self.alerts.is_empty()
    }

    /// One more alert. Whether a packet of its stamp was given to the sinks already.
    pub(super) fn add(&mut self, alert: Arc<Alert>) -> bool {
        let stamp_us = alert.time_ns.div_euclid(1000);
        let index = self.alerts.len();
        let is_given = alert.is_on_wire && self.given.contains(&stamp_us);
        if alert.is_on_wire {
            self.by_stamp.entry(stamp_us).or_default().push(index);
        }
        self.alerts.push((alert, is_given));
        is_given
    }

    /// Whether a packet that the dump takes is one that an alert is about.
    pub(super) fn marks(&self, stamp_ns: i64, link_type: LinkType, data: &[u8]) -> bool {
        let about = self.by_stamp.get(&stamp_ns.div_euclid(1000));
        about.is_some_and(|about| {
            let mut alerts = about.iter().map(|index| &self.alerts[*index].0);
            alerts.any(|alert| is_alerted(alert, link_type, data))
        })
    }

    /// The sinks were given a packet. `is_marked`: an alert is about it.
    pub(super) fn gave(
        &mut self,
        stamp_ns: i64,
        is_marked: bool,
        (link_type, data): (LinkType, &[u8]),
    ) {
        let stamp_us = stamp_ns.div_euclid(1000);
        self.first_us = Some(
            self.first_us
                .map_or(stamp_us, |first_us| first_us.min(stamp_us)),
        );
        if self.given.len() < STAMPS_MAX {
            self.given.insert(stamp_us);
        }
        if !is_marked {
            return;
        }
        for index in self.by_stamp.get(&stamp_us).into_iter().flatten() {
            let (alert, is_found) = &mut self.alerts[*index];
            *is_found = *is_found || is_alerted(alert, link_type, data);
        }
    }

    /// For the sidecar.
    pub(super) fn entries(&self) -> Vec<AlertEntry> {
        let listed = self.alerts.iter().take(LISTED_MAX);
        let entry = |(alert, is_found): &(Arc<Alert>, bool)| AlertEntry {
            identity: Arc::clone(&alert.identity),
            frame: alert.is_on_wire.then_some(*is_found),
        };
        listed.map(entry).collect()
    }

    /// Sentences about frames that are not in a dump that has packets.
    pub(super) fn notes(&self) -> Vec<String> {
        let missing = self.alerts.iter();
        let mut missing = missing.filter(|(alert, is_found)| alert.is_on_wire && !is_found);
        let count = missing.clone().count();
        let first = missing.next().map(|(alert, _)| {
            let more = if count > 1 { format!(", and of {} more", count - 1) } else { String::new() };
            format!(
                "the frame of alert {} at {} is not in it{more}: no packet of its flow has that stamp (another clock, or it was not recorded here)",
                alert.identity.name(),
                rfc3339(alert.time_ns)
            )
        });
        first.into_iter().collect()
    }

    /// Why a dump without packets has none, as outcome and sentence. `newest_ns`: what the clock of ring time showed at the end; `seen`: packets of the window that were
    /// looked at, about.
    pub(super) fn why_empty(
        &self,
        facts: &AlertFacts,
        (time_ns, to_ns): (i64, i64),
        newest_ns: i64,
        seen: u64,
    ) -> (AlertOutcome, String) {
        let odd = self.alerts.first().and_then(|(alert, _)| oddity(alert));
        let odd = odd.map_or_else(String::new, |odd| format!("; {odd}"));
        match facts.oldest_ns {
            Some(oldest_ns) if oldest_ns > to_ns.max(time_ns) => {
                let by = seconds(oldest_ns - time_ns);
                let why = format!("aged out: the ring began {by} after it{odd}");
                (AlertOutcome::AgedOut, why)
            }
            _ if seen == 0 && time_ns > newest_ns => {
                let why = format!("not recorded: the recording ended before it{odd}");
                (AlertOutcome::NotRecorded, why)
            }
            _ if seen == 0 => {
                let why = format!("not recorded: no packet was recorded in its window{odd}");
                (AlertOutcome::NotRecorded, why)
            }
            _ => {
                let hint = if odd.is_empty() {
                    "; its addresses may be others than on the wire (NAT, xff overwrite), or it is of other traffic"
                } else {
                    &odd
                };
                let why = format!("nothing matched of about {seen} packets in its window{hint}");
                (AlertOutcome::NothingMatched, why)
            }
        }
    }

    /// Counts what a finished dump has of its alerts. Returns news of those that it has nothing of.
    pub(super) fn count(
        &self,
        counters: &AlertCounters,
        number: u64,
        unmatched: Option<(AlertOutcome, &str)>,
    ) -> Vec<AlertNews> {
        let add = |count: &AtomicU64| _ = count.fetch_add(1, Relaxed);
        let mut news = Vec::new();
        for (alert, is_found) in &self.alerts {
            if let Some(start_ns) = alert.start_ns {
                add(&counters.with_start);
                let start_us = start_ns.div_euclid(1000);
                if self.first_us.is_some_and(|first_us| first_us <= start_us) {
                    add(&counters.found_start);
                }
            }
            match unmatched {
                Some((outcome, why)) => {
                    counters.add(outcome);
                    news.push(AlertNews {
                        identity: Arc::clone(&alert.identity),
                        outcome,
                        dump: Some(number),
                        reason: Some(why.to_owned()),
                    });
                }
                None if !alert.is_on_wire => {}
                None if *is_found => add(&counters.frames_found),
                None => add(&counters.frames_missing),
            }
        }
        news
    }
}

impl Active {
    /// What a dump of alerts says of them. One without a packet is never complete: why it has none is returned.
    pub(super) fn judge_alerts(
        &self,
        close: &CloseOrder,
        report: &mut DumpReport,
    ) -> Option<(AlertOutcome, String)> {
        let (_, facts) = self.order.alert.as_ref()?;
        if self.taken.packets > 0 {
            report.notes.extend(self.alerted.notes());
            return None;
        }
        let (from_ns, to_ns) = (self.order.from_ns, self.end_ns);
        let after = close.recorded.saturating_sub(facts.recorded);
        let times = (self.order.trigger_ns, to_ns);
        let why = (self.alerted).why_empty(facts, times, close.clock_ns, facts.before + after);
        let stamp = |ring_ns: i64| ring_ns.saturating_add(self.order.offset_ns);
        let missing = Missing::new("unmatched", stamp(from_ns), stamp(to_ns), None);
        report.missing.push(missing);
        report.notes.push(why.1.clone());
        Some(why)
    }
}

/// What is odd about an alert: a sentence.
pub(crate) fn oddity(alert: &Alert) -> Option<&'static str> {
    (alert.has_community_id_of_tuple() == Some(false)).then_some(
        "its community_id is not that of its addresses and ports: either the IDS has another seed than 0, or it wrote other addresses than were on the wire (xff overwrite)",
    )
}
