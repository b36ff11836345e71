//! Opens a dump.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use retroscope_ring::Reservation;

use super::{
    super::{
        active::ActiveDump,
        captures::Captures,
        dump_alerts::DumpAlerts,
        file::{DumpFile, FileFacts},
        fragments::KeptFragments,
        order::DumpOrder,
        output::WrittenTotals,
        reading::WindowReading,
        report::PROGRAM,
        sidecar::{Origin, TriggerPacket},
        stream::Heading,
        template::NameFacts,
    },
    Dumper,
};
use crate::control::time::rfc3339;

impl Dumper {
    pub(super) fn open(&mut self, (mut order, reservation): (DumpOrder, Reservation)) {
        if let Some((producer, ..)) = order.trigger {
            self.parts.common.record_age(producer, order.trigger_ns);
        }
        let trigger_ns = order.trigger_ns.saturating_add(order.offset_ns);
        self.parts.common.triggers.add(trigger_ns);
        let is_compiling = self
            .compiler
            .hand_over(&order, &self.scanner, self.names.link_types());
        if !is_compiling {
            self.scanner.add(&mut order);
        }
        let interface = order.trigger.map_or_else(
            || self.names.interface(0).map(|_| 0),
            |(_, _, interface)| Some(interface),
        );
        let described = interface.and_then(|id| self.names.interface(id));
        let by_packet = described.filter(|_| order.trigger.is_some());
        let parts = &mut self.parts;
        let facts = FileFacts {
            names: NameFacts {
                trigger_ns,
                rule: order.rule.clone(),
                interface: by_packet.map(|interface| interface.name.clone()),
            },
            number: order.id,
            name_number: self.next_number.fetch_add(1, Ordering::Relaxed),
            next_number: Arc::clone(&self.next_number),
            rule_name: order.rule_name.clone(),
            heading: Heading {
                headline: headline(&order, &parts.origin),
                recording: parts.origin.recording,
                expected: expected_verdict(&parts.common.intake.unknown_losses()),
            },
        };
        let directory = parts.directory.below(order.into.as_ref());
        let mut captures = Captures::new(directory.format, facts.heading.clone());
        if let Some((id, described)) = interface.zip(described) {
            captures.interface(id, described);
        }
        let file = Box::new(DumpFile::new(&directory, facts));
        let sink = parts.pool.open(order.id, (captures, &directory), file);
        let trigger_packet = by_packet.map(|interface| TriggerPacket::new(&interface.name));
        let lost = *reservation.evicted_before();
        // If a dump of all packets of an interface exempted their flows, nothing could be shed.
        let marks = (parts.marks.clone()).filter(|_| !order.predicate.selects_no_flow());
        if let Some((marks, filter)) = marks.as_ref().zip(order.predicate.filter()) {
            marks.open_dump(order.id, filter, self.names.link_types());
        }
        self.active.insert(ActiveDump {
            alerted: DumpAlerts::new(order.alert.as_ref(), &self.written_bytes),
            end_ns: order.to_ns,
            order,
            marks,
            is_compiling,
            sink,
            interface,
            trigger_packet,
            reading: Some(WindowReading::new(reservation)),
            unread_ns: i64::MIN,
            reached_ns: i64::MIN,
            waiting: Vec::new(),
            oldest_ns: i64::MAX,
            listed_ns: i64::MAX,
            is_changed: false,
            is_stalled: false,
            kept: KeptFragments::new(&self.kept_bytes),
            is_start_lost: lost.packets > 0 || lost.unknown_before_ns.is_some(),
            lost,
            gap: None,
            late_after_full: 0,
            taken: WrittenTotals::default(),
            per_interface: BTreeMap::new(),
            reported_bytes: 0,
            close: None,
            judge_by_ns: None,
        });
    }
}

/// The first comment of a pcapng file: the trigger, the window and the origin.
fn headline(order: &DumpOrder, origin: &Origin) -> String {
    let stamp = |ring_ns: i64| rfc3339(ring_ns.saturating_add(order.offset_ns));
    let told = |what: &str, text: &Option<Arc<str>>| {
        let text = text.as_ref();
        text.map_or_else(String::new, |text| format!(", {what} {text:?}"))
    };
    format!(
        "{PROGRAM}: trigger {:?} at {}{}{}, window {} to {}, dump {:?}{}",
        order.rule,
        stamp(order.trigger_ns),
        told("asked by", &order.asked_by),
        told("because", &order.reason),
        stamp(order.from_ns),
        stamp(order.to_ns),
        order.expression,
        origin.description(),
    )
}

/// The verdict that a complete dump usually gets. `unknown`: a sentence for each source whose
/// losses no counter reports.
fn expected_verdict(unknown: &[String]) -> String {
    let unknown = unknown.iter().map(|unknown| format!("; {unknown}"));
    format!("verdict: complete{}", unknown.collect::<String>())
}
