//! The alerts of a dump: the frame that each alert is about, and whether the dump has that frame.
//!
//! A pcapng file usually marks the frames of alerts that arrived in time. The sidecar lists alerts,
//! and the number of each frame in the file if known.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use retroscope_alert::{Alert, AlertIdentity};
use retroscope_packet::LinkType;
use serde::Serialize;

use super::{
    active::ActiveDump,
    fragments::KeptBytes,
    order::CloseOrder,
    packet::PacketMeta,
    report::{DumpReport, Missing},
};
use crate::{
    analysis::alerts::is_alerted,
    control::{
        alerts::{AlertCounters, AlertNews, AlertOutcome, shared},
        time::rfc3339,
    },
};

/// Maximum number of written packets that one dump remembers, for alerts that arrive later.
const WRITTEN_MAX: usize = 1 << 20;
/// Maximum number of alerts of one dump that are compared with its packets. An alert takes about 1
/// KiB.
const TRACKED_MAX: usize = 4096;
/// Maximum number of alerts that a sidecar lists.
const LISTED_MAX: usize = 1000;

/// The alerts of one dump, and the written packets among which the dump looks for their frames.
#[derive(Debug)]
pub(super) struct DumpAlerts {
    /// The alert that opened the dump.
    first: Option<Arc<Alert>>,
    /// The first [`TRACKED_MAX`] alerts that arrived, sorted by stamp, µs, and then by arrival.
    alerts: BTreeMap<(i64, usize), TrackedAlert>,
    /// Number of alerts that arrived after the first [`TRACKED_MAX`] alerts.
    untracked: u64,
    /// The newest written packets.
    written: VecDeque<WrittenPacket>,
    /// Number of written packets that are no longer remembered, and their latest ring time, ns.
    forgotten: (u64, i64),
    bytes: KeptBytes,
    /// The earliest stamp of a written packet, µs.
    first_us: Option<i64>,
    /// If the dump has no packet: the outcome of its alerts, and the reason.
    unmatched: Option<(AlertOutcome, String)>,
}

#[derive(Debug)]
struct TrackedAlert {
    alert: Arc<Alert>,
    /// Only records from this number on are marked.
    unread: u64,
    is_found: bool,
    /// The number of the alert's frame in the file, from 1.
    packet: Option<u64>,
}

#[derive(Debug)]
struct WrittenPacket {
    /// Place in the file: ring time, ns, then source.
    place: (i64, usize),
    stamp_us: i64,
    /// Whether the packet can be the first alert's frame, apart from its stamp.
    is_forward: bool,
}

/// An alert in a sidecar.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AlertEntry {
    #[serde(flatten, serialize_with = "shared")]
    identity: Arc<AlertIdentity>,
    /// Whether the alert's frame is in the dump. `None`: the alert is about no frame on the wire,
    /// or the dump does not know. It may have forgotten stamps of written packets, or may have
    /// failed before it wrote the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) frame: Option<bool>,
    /// The number of the alert's frame in the file, from 1, if the number is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) packet: Option<u64>,
}

impl DumpAlerts {
    pub(super) fn new(first: Option<&Arc<Alert>>, bytes: &KeptBytes) -> Self {
        let mut alerted = Self {
            first: first.cloned(),
            alerts: BTreeMap::new(),
            untracked: 0,
            written: VecDeque::new(),
            forgotten: (0, i64::MIN),
            bytes: bytes.clone(),
            first_us: None,
            unmatched: None,
        };
        if let Some(first) = first {
            alerted.add(Arc::clone(first), 0);
        }
        alerted
    }

    /// Adds an alert. `unread`: only records from this number on are marked.
    pub(super) fn add(&mut self, alert: Arc<Alert>, unread: u64) {
        if self.alerts.len() >= TRACKED_MAX {
            self.untracked += 1;
            return;
        }
        let key = (micros(alert.time_ns), self.alerts.len());
        let known = TrackedAlert {
            alert,
            unread,
            is_found: false,
            packet: None,
        };
        self.alerts.insert(key, known);
    }

    /// Notes a packet that is written next. Returns whether to mark the packet as an alert's frame.
    pub(super) fn write(&mut self, meta: &PacketMeta, link_type: LinkType, data: &[u8]) -> bool {
        let Some(first) = &self.first else {
            return false;
        };
        let stamp_us = micros(meta.stamp_ns);
        let packet = WrittenPacket {
            place: (meta.key.time_ns, meta.key.source),
            stamp_us,
            is_forward: is_alerted(first, link_type, data),
        };
        let mut is_marked = false;
        for known in of_stamp(&mut self.alerts, stamp_us) {
            let is_it =
                known.unread <= meta.key.record && is_alerted(&known.alert, link_type, data);
            known.is_found |= is_it;
            is_marked |= is_it;
        }
        self.first_us = Some(self.first_us.map_or(stamp_us, |us| us.min(stamp_us)));
        self.remember(packet);
        is_marked
    }

    fn remember(&mut self, packet: WrittenPacket) {
        let bytes = size_of::<WrittenPacket>();
        self.written.push_back(packet);
        if self.written.len() <= WRITTEN_MAX && self.bytes.has_room(bytes) {
            self.bytes.add(bytes);
        } else if let Some(oldest) = self.written.pop_front() {
            let (count, latest_ns) = self.forgotten;
            self.forgotten = (count + 1, latest_ns.max(oldest.place.0));
        }
    }

    /// After the last packet: finds the frames of alerts that arrived late, and the numbers of
    /// frames in the file.
    fn number(&mut self) {
        // A finished file has its packets in this order.
        let mut written: Vec<_> = std::mem::take(&mut self.written).into();
        self.bytes
            .take_back(written.len() * size_of::<WrittenPacket>());
        written.sort_by_key(|packet| packet.place);
        for (packet, number) in written.iter().zip(self.forgotten.0 + 1..) {
            for known in of_stamp(&mut self.alerts, packet.stamp_us) {
                let first = self.first.as_ref();
                let is_forward = first.is_some_and(|first| {
                    (first.tuple, first.icmp) == (known.alert.tuple, known.alert.icmp)
                });
                if packet.is_forward == is_forward && packet.place.0 > self.forgotten.1 {
                    known.is_found = true;
                    known.packet.get_or_insert(number);
                }
            }
        }
    }

    /// Whether the frame of an alert is in the dump. `None`: the alert is about no frame, or the
    /// dump no longer knows.
    fn has_frame(&self, known: &TrackedAlert) -> Option<bool> {
        let is_known = known.is_found || self.forgotten.0 == 0;
        (known.alert.is_on_wire && is_known).then_some(known.is_found)
    }

    pub(super) fn entries(&self) -> Vec<AlertEntry> {
        let listed = self.alerts.values().take(LISTED_MAX);
        let entry = |known: &TrackedAlert| AlertEntry {
            identity: Arc::clone(&known.alert.identity),
            frame: self.has_frame(known),
            packet: known.packet,
        };
        listed.map(entry).collect()
    }

    /// A sentence about alert frames that the dump lacks.
    fn note(&self) -> Option<String> {
        let all = self.alerts.values();
        let mut missing = all.filter(|known| self.has_frame(known) == Some(false));
        let alert = &missing.next()?.alert;
        let more = match missing.count() {
            0 => String::new(),
            more => format!(", and of {more} more"),
        };
        Some(format!(
            "the frame of alert {} at {} is not in it{more}: no packet of its flow has that stamp (another clock, or it was not recorded here)",
            alert.identity.name(),
            rfc3339(alert.time_ns)
        ))
    }

    fn note_untracked(&self) -> Option<String> {
        (self.untracked > 0).then(|| {
            format!(
                "it has {} more alerts, which were not compared with its packets",
                self.untracked
            )
        })
    }

    /// Counts the alerts of a finished dump by result, and forgets the tracked alerts. Returns news
    /// about them if the dump has no packet. `is_whole`: all packets that the dump got are in its
    /// files.
    pub(super) fn count(
        &mut self,
        counters: &AlertCounters,
        number: u64,
        is_whole: bool,
    ) -> Vec<AlertNews> {
        let add = |count: &AtomicU64| _ = count.fetch_add(1, Relaxed);
        let mut news = Vec::new();
        if let Some((outcome, _)) = &self.unmatched {
            (0..self.untracked).for_each(|_| counters.add(*outcome));
        }
        for known in std::mem::take(&mut self.alerts).into_values() {
            if let Some(start_ns) = known.alert.start_ns {
                add(&counters.with_start);
                if self.first_us.is_some_and(|us| us <= micros(start_ns)) {
                    add(&counters.found_start);
                }
            }
            match (&self.unmatched, self.has_frame(&known)) {
                (Some((outcome, why)), _) => {
                    counters.add(*outcome);
                    news.push(AlertNews {
                        identity: Arc::clone(&known.alert.identity),
                        outcome: *outcome,
                        dump: Some(number),
                        reason: Some(why.clone()),
                    });
                }
                (None, Some(true)) if is_whole => add(&counters.frames_found),
                (None, Some(false)) => add(&counters.frames_missing),
                (None, _) => {}
            }
        }
        news
    }
}

/// The alerts about a frame on the wire with this stamp, µs.
fn of_stamp(
    alerts: &mut BTreeMap<(i64, usize), TrackedAlert>,
    stamp_us: i64,
) -> impl Iterator<Item = &mut TrackedAlert> {
    let of_stamp = alerts.range_mut((stamp_us, 0)..=(stamp_us, usize::MAX));
    let known = of_stamp.map(|(_, known)| known);
    known.filter(|known| known.alert.is_on_wire)
}

fn micros(ns: i64) -> i64 {
    ns.div_euclid(1000)
}

impl ActiveDump {
    /// Adds notes about alerts to the report. A dump that an alert opened and that has no packet is
    /// never complete.
    pub(super) fn judge_alerts(&mut self, close: &CloseOrder, report: &mut DumpReport) {
        let Some(alert) = &self.alerted.first else {
            return;
        };
        let time_ns = self.order.trigger_ns;
        let odd = oddity(alert);
        self.alerted.number();
        if self.taken.packets > 0 {
            report.notes.extend(self.alerted.note());
            report.notes.extend(self.alerted.note_untracked());
            return;
        }
        let gone_ns = self.lost.last_ns.max(self.lost.unknown_before_ns);
        let (outcome, why) = if self.end_ns < close.start_ns || close.clock_ns < time_ns {
            let why = "not recorded: its time is before or after the recording";
            (AlertOutcome::NotRecorded, why)
        } else if gone_ns.is_some_and(|gone_ns| time_ns <= gone_ns) {
            let why = "aged out: the ring had overwritten the packets of its time";
            (AlertOutcome::AgedOut, why)
        } else {
            let why = "nothing matched in its window: its addresses may be others than on the wire (NAT, xff overwrite), or it is of other traffic";
            (AlertOutcome::NothingMatched, why)
        };
        let why = match odd {
            Some(odd) => format!("{why}; {odd}"),
            None => why.to_owned(),
        };
        let stamp = |ring_ns: i64| ring_ns.saturating_add(self.order.offset_ns);
        let (from_ns, to_ns) = (stamp(self.order.from_ns), stamp(self.end_ns));
        report
            .missing
            .push(Missing::new("unmatched", from_ns, to_ns, None));
        report.notes.push(why.clone());
        self.alerted.unmatched = Some((outcome, why));
    }
}

/// A sentence about a suspicious property of the alert.
pub(crate) fn oddity(alert: &Alert) -> Option<&'static str> {
    (alert.has_community_id_of_tuple() == Some(false)).then_some(
        "its community_id is not that of its addresses and ports: either the IDS has another seed than 0, or it wrote other addresses than were on the wire (xff overwrite)",
    )
}

#[cfg(test)]
mod tests {
    use retroscope_alert::{ParsedLine, read};

    use super::*;
    use crate::{
        dump::packet::PacketKey,
        tests::rig::{MS, udp},
    };

    /// An alert about a packet at a time, ns, from port 5 to port 9, or back.
    fn alert(time_ns: i64, is_back: bool) -> Arc<Alert> {
        let mut ends = [("10.0.0.1", 5), ("10.0.0.2", 9)];
        if is_back {
            ends.reverse();
        }
        let [(src, from), (dst, to)] = ends;
        let line = format!(
            r#"{{"timestamp":"{}","event_type":"alert","src_ip":"{src}","src_port":{from},"dest_ip":"{dst}","dest_port":{to},"proto":"UDP"}}"#,
            rfc3339(time_ns)
        );
        let ParsedLine::Alert { alert, .. } = read(line.as_bytes()) else {
            panic!("{line}");
        };
        Arc::from(alert)
    }

    /// Writes a packet of port 5 to port 9. Returns whether it is marked.
    fn write(alerted: &mut DumpAlerts, time_ns: i64, record: u64) -> bool {
        let meta = PacketMeta {
            key: PacketKey {
                time_ns,
                source: 0,
                producer: 0,
                record,
            },
            stamp_ns: time_ns,
            wire_len: 0,
            interface: 0,
            direction: 0,
            is_trigger: false,
        };
        alerted.write(&meta, LinkType::RAW, &udp(5, 9, 0))
    }

    /// Whether the frame of each alert is in the dump, and its number.
    fn frames(alerted: &mut DumpAlerts) -> Vec<(Option<bool>, Option<u64>)> {
        alerted.number();
        let entries = alerted.entries().into_iter();
        entries.map(|entry| (entry.frame, entry.packet)).collect()
    }

    #[test]
    fn alerts_mark_what_is_not_written_and_number_the_rest() {
        let mut alerted = DumpAlerts::new(Some(&alert(3 * MS, false)), &KeptBytes::new(true));
        assert!(!write(&mut alerted, 2 * MS, 0));
        assert!(write(&mut alerted, 3 * MS + 999, 1));
        alerted.add(alert(2 * MS, false), 0);
        alerted.add(alert(5 * MS, true), 0);
        // The third packet arrives late: in the finished file it is the first packet.
        assert!(!write(&mut alerted, MS, 2));
        // Record 3 was analyzed before the alert arrived, so its packet gets no mark.
        alerted.add(alert(4 * MS, false), 4);
        assert!(!write(&mut alerted, 4 * MS, 3));
        assert!(!write(&mut alerted, 5 * MS, 4), "of the other direction");
        let found = |number| (Some(true), Some(number));
        let expected = [found(2), found(3), found(4), (Some(false), None)];
        assert_eq!(frames(&mut alerted), expected);
        assert!(alerted.note().unwrap().contains("is not in it"));
    }

    #[test]
    fn alerts_of_one_dump_are_bounded() {
        let mut alerted = DumpAlerts::new(Some(&alert(0, false)), &KeptBytes::new(true));
        let joined = alert(MS, false);
        for _ in 0..TRACKED_MAX + 9 {
            alerted.add(Arc::clone(&joined), 0);
        }
        assert_eq!(alerted.alerts.len(), TRACKED_MAX);
        assert!(alerted.note_untracked().unwrap().contains(" 10 "));
        let counters = AlertCounters::default();
        alerted.unmatched = Some((AlertOutcome::AgedOut, String::new()));
        let news = alerted.count(&counters, 1, true);
        assert_eq!(news.len(), TRACKED_MAX);
        let all = TRACKED_MAX as u64 + 10;
        assert_eq!(counters.counts().of(AlertOutcome::AgedOut), all);
    }

    #[test]
    fn written_packets_are_remembered_within_a_budget() {
        let all = KeptBytes::new(true);
        let mut dumps: Vec<_> = (0..3)
            .map(|_| DumpAlerts::new(Some(&alert(0, false)), &all))
            .collect();
        let packets = WRITTEN_MAX as i64 + 10;
        for alerted in &mut dumps {
            for number in 0..packets {
                write(alerted, number * 1000, number.cast_unsigned());
            }
        }
        let remembered: Vec<_> = dumps.iter().map(|it| it.written.len()).collect();
        assert!(!all.has_room(size_of::<WrittenPacket>()));
        assert_eq!(remembered, [WRITTEN_MAX, WRITTEN_MAX, 0]);
        for alerted in &mut dumps {
            alerted.add(alert(5000, false), 0);
            alerted.add(alert((packets - 1) * 1000, false), 0);
        }
        let (marked, unknown) = ((Some(true), None), (None, None));
        let newest = (Some(true), Some(packets.unsigned_abs()));
        assert_eq!(frames(&mut dumps[0]), [marked, unknown, newest]);
        assert_eq!(frames(&mut dumps[2]), [marked, unknown, unknown]);
        assert_eq!(dumps[0].note(), None, "nothing is known to be missing");
        drop(frames(&mut dumps[1]));
        assert!(all.has_room(64 << 20), "all of it is given back");
    }
}
