//! A shard: all that looks at packets. It tries the trigger rules and scripts on batches that it is handed, learns fragments, and tells
//! [`Findings`] what it found, in the order of the packets.
//!
//! It has no thread, reads no clock and no ring, and may move to another thread between two batches. 64 packets are looked at together,
//! to find those that concern anything, which are then looked at one by one: most packets match no rule and are no fragments. What it
//! finds depends on the packets alone. What becomes of it is for the findings to say.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, atomic::AtomicU64},
};

use retroscope_filter::Template;
use retroscope_flow::{Attribution, Key};
use retroscope_packet::LinkType;
use retroscope_ring::Packet;

use crate::{
    analysis::{
        chunk::{Chunk, SelectedPackets, fragments},
        derivation::Derivation,
        director::HitOrder,
        flows::ShardFlows,
        predicate::DumpExpression,
        trigger_scripts::TriggerScripts,
        triggers::{BoxedRules, RuleChange, RuleHit, Triggers},
    },
    control::{hits::HitRefusal, ring_time::StampRestorer},
    intake::{
        interfaces::{InterfaceCache, RecordedInterface},
        marks::Marks,
    },
};

/// A packet and the number of its record.
pub(crate) type NumberedPacket<'p> = (u64, Packet<'p>);

/// The packets of records that follow each other, with the records' numbers.
#[derive(Debug, Clone)]
pub(crate) struct NumberedPackets<I> {
    next: u64,
    packets: I,
}

impl<I> NumberedPackets<I> {
    /// The first packet's record is `first`.
    pub(crate) fn from(first: u64, packets: I) -> Self {
        Self {
            next: first,
            packets,
        }
    }
}

impl<'p, I: Iterator<Item = Packet<'p>>> Iterator for NumberedPackets<I> {
    type Item = NumberedPacket<'p>;

    // By `zip` it is a call, which gives each packet back through memory: the look at one of 64 bytes took 23 instead of 13 ns.
    #[inline(always)]
    fn next(&mut self) -> Option<NumberedPacket<'p>> {
        let packet = self.packets.next()?;
        let number = self.next;
        self.next += 1;
        Some((number, packet))
    }

    #[inline]
    fn nth(&mut self, count: usize) -> Option<NumberedPacket<'p>> {
        let packet = self.packets.nth(count)?;
        let number = self.next + count as u64;
        self.next = number + 1;
        Some((number, packet))
    }
}

/// A hit: where it was found, and what it would dump.
pub(crate) type FoundHit = (HitOrder, Result<DumpExpression, HitRefusal>);

/// Who hears what a shard finds.
pub(crate) trait Findings {
    /// Whether hits are wanted. One may change that.
    fn are_wanted(&self) -> bool;

    /// A rule or a script takes a packet, and what it would dump, if the shard says so.
    fn hit(&mut self, order: HitOrder, expression: Option<Result<DumpExpression, HitRefusal>>);

    /// Before a record, a module found that a flow is over.
    fn flow_ended(&mut self, record: u64, over: FlowEnded);
}

/// A flow that a module wanted dumped is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowEnded {
    /// The module's number.
    pub(crate) rule: usize,
    pub(crate) flow: Key,
    /// When that was found, and until when packets are wanted, ns of ring time.
    pub(crate) now_ns: i64,
    pub(crate) until_ns: i64,
}

/// What is known of a rule or script that there is.
#[derive(Debug)]
pub(crate) struct KnownRule {
    /// What messages and files call it.
    pub(crate) name: String,
    /// Whether its matches are hits.
    pub(crate) is_enabled: bool,
    /// Packets that matched, for anyone to read; ordered with nothing. Those of scripts are not counted.
    pub(crate) hits: Option<Arc<AtomicU64>>,
    /// Dumps that it may have open at once, if it has a limit of its own.
    pub(crate) dumps_max: Option<u64>,
}

/// Rules that a shard no longer has, and their templates. An inserter must not drop thousands of
/// rules: that takes milliseconds.
#[derive(Debug, Default)]
pub(crate) struct RemovedRules {
    rules: BoxedRules,
    templates: Vec<Arc<Template>>,
}

impl RemovedRules {
    pub(crate) fn append(&mut self, mut more: Self) {
        self.rules.append(&mut more.rules);
        self.templates.append(&mut more.templates);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) rules: Triggers,
    pub(crate) scripts: TriggerScripts,
    /// `None`: who takes its hits says what they would dump.
    pub(crate) derivation: Option<Derivation>,
    /// `None`: flows are not counted.
    flows: Option<ShardFlows>,
    /// Where flows that a rule or script takes are marked, and those that it shunts; `None`: nothing is shed.
    marking: Option<Marking>,
    names: InterfaceCache,
    stamps: StampRestorer,
}

/// What marks flows.
#[derive(Debug)]
struct Marking {
    marks: Arc<Marks>,
    /// Knows the flows of later fragments, as those who shed do.
    attribution: Attribution,
}

impl Marking {
    /// Sees the fragments of a chunk.
    fn learn(&mut self, chunk: &Chunk<'_>, names: &mut InterfaceCache) {
        for (interface, run) in chunk.runs() {
            let Some(interface) = names.interface(interface) else {
                continue;
            };
            let mut found = fragments(interface.link_type, chunk.frames(run.clone()));
            for (time_ns, frame) in chunk.packets(run) {
                if found & 1 == 1 {
                    let (data, wire_len) = (frame.data(), frame.wire_len());
                    let _ = (self.attribution).frame(interface.link_type, data, time_ns, wire_len);
                }
                found >>= 1;
                if found == 0 {
                    break;
                }
            }
        }
    }

    /// The flow of a packet, where that can be told.
    fn key(&mut self, link_type: LinkType, packet: &Packet<'_>) -> Option<Key> {
        let (data, time_ns) = (packet.data, packet.time_ns);
        let its = self
            .attribution
            .frame(link_type, data, time_ns, packet.wire_len);
        its.map(|its| its.ends.key)
    }
}

impl Shard {
    /// Its rules have the first numbers, then its scripts.
    pub(crate) fn new(
        (rules, scripts): (Triggers, TriggerScripts),
        derivation: Option<Derivation>,
        names: InterfaceCache,
        stamps: StampRestorer,
    ) -> Self {
        Self {
            rules,
            scripts,
            derivation,
            flows: None,
            marking: None,
            names,
            stamps,
        }
    }

    /// Counts the flows of its packets.
    pub(crate) fn with_flows(mut self, flows: Option<ShardFlows>) -> Self {
        self.flows = flows;
        self
    }

    /// Marks the flows of its hits, and those that are shunted.
    pub(crate) fn marking(mut self, marks: Option<Arc<Marks>>) -> Self {
        self.marking = marks.map(|marks| Marking {
            marks,
            attribution: Attribution::new(true, true),
        });
        self
    }

    /// Whether it looks at packets also where no hits are wanted: for flows.
    pub(crate) fn looks_always(&self) -> bool {
        self.flows.is_some() || self.scripts.has_modules()
    }

    /// As [`ShardFlows::pass`]. Returns what modules found to be over.
    pub(crate) fn pass(&mut self, mono_ns: i64) -> Vec<FlowEnded> {
        if let Some(flows) = &mut self.flows {
            flows.pass(mono_ns);
        }
        self.scripts.pass_time(mono_ns);
        self.scripts
            .take_ended_flows(usize::MAX, self.rules.at_start())
    }

    /// No packet comes any more: ends all flows.
    pub(crate) fn end_flows(&mut self) {
        self.flows = None;
        self.scripts.finish();
    }

    /// Looks at the next packets of a producer, [`Chunk::most`] of them, but for those that it is told to look past. Returns how many there were.
    /// `chunk` holds them then; one is made for many calls.
    pub(crate) fn look<'p>(
        &mut self,
        producer: usize,
        packets: &mut (impl Iterator<Item = NumberedPacket<'p>> + Clone),
        chunk: &mut Chunk<'p>,
        findings: &mut impl Findings,
    ) -> usize {
        let mut walk = SelectedPackets::new(packets.clone());
        let mut shunted = None;
        let are_wanted = findings.are_wanted();
        if !self.scripts.is_empty() && (are_wanted || self.scripts.has_modules()) {
            let asked = packets.clone().take(chunk.most);
            let (names, stamps) = (&mut self.names, &mut self.stamps);
            self.scripts.ask(producer, asked, names, stamps, are_wanted);
            let is_any = self.marking.is_some() && self.scripts.shunted() != 0;
            shunted = is_any.then(|| packets.clone());
        }
        let of_flows = self.flows.as_ref().and_then(|_| packets.clone().next());
        let count = chunk.fill(packets.by_ref().map(|(_, packet)| packet));
        if let Some((first, _)) = of_flows {
            self.count_flows((producer, first), chunk);
        }
        if let Some(marking) = &mut self.marking {
            marking.learn(chunk, &mut self.names);
        }
        if let Some(shunted) = shunted {
            self.shunt(shunted);
        }
        if findings.are_wanted() {
            for (interface, run) in chunk.runs() {
                self.look_at_run((producer, interface), chunk, run, &mut walk, findings);
            }
        }
        for over in self
            .scripts
            .take_ended_flows(usize::MAX, self.rules.at_start())
        {
            findings.flow_ended(0, over);
        }
        count
    }

    /// Marks the flows that scripts and modules shunted. Where a packet of them is a hit as well, they are exempt later.
    fn shunt<'p>(&mut self, mut packets: impl Iterator<Item = NumberedPacket<'p>>) {
        let Some(marking) = &mut self.marking else {
            return;
        };
        let (mut shunted, mut next) = (self.scripts.shunted(), 0);
        while shunted != 0 {
            let at = shunted.trailing_zeros() as usize;
            shunted &= shunted - 1;
            let Some((_, packet)) = packets.nth(at - next) else {
                return;
            };
            next = at + 1;
            if let Some(interface) = self.names.interface(packet.interface) {
                let key = marking.key(interface.link_type, &packet);
                key.inspect(|key| marking.marks.shunt(*key, packet.time_ns));
            }
        }
    }

    /// Counts the flows of a chunk of records that follow each other from `first` on.
    fn count_flows(&mut self, (producer, first): (usize, u64), chunk: &Chunk<'_>) {
        for (number, run) in chunk.runs() {
            if let Some(flows) = &mut self.flows
                && let Some(interface) = self.names.interface(number)
            {
                let (stamps, source) = (&mut self.stamps, interface.source);
                flows.count((number, interface), chunk, run, |at| {
                    stamps.offset_ns(producer, source, first + at as u64)
                });
            }
        }
    }

    /// Looks at those records of a chunk that are of one interface.
    fn look_at_run<'p>(
        &mut self,
        (producer, interface): (usize, u16),
        chunk: &Chunk<'_>,
        run: Range<usize>,
        walk: &mut SelectedPackets<impl Iterator<Item = NumberedPacket<'p>>>,
        findings: &mut impl Findings,
    ) {
        // An interface that no inserter registered is unknown.
        let Some(known) = self.names.interface(interface) else {
            return;
        };
        let link_type = known.link_type;
        let frames = chunk.frames(run.clone());
        let mut found = self.rules.find(link_type, interface, frames);
        found |= self.scripts.found(&run);
        if self.learns() {
            found |= fragments(link_type, frames);
        }
        if found == 0 {
            return;
        }
        let hits = std::mem::take(&mut self.rules.hits);
        let mut left = hits.as_slice();
        while found != 0 {
            let frame = found.trailing_zeros() as usize;
            found &= found - 1;
            let Some((record, packet)) = walk.to(run.start + frame) else {
                break;
            };
            left = &left[left.partition_point(|hit| hit.frame < frame)..];
            let (its, behind_it) = left.split_at(left.partition_point(|hit| hit.frame == frame));
            left = behind_it;
            self.look_closely(
                (producer, record),
                run.start + frame,
                &packet,
                its,
                findings,
            );
        }
        self.rules.hits = hits;
    }

    /// Learns from a packet, and tells its hits: those of rules, and of scripts. It is the one at `at` of its chunk.
    fn look_closely(
        &mut self,
        place: (usize, u64),
        at: usize,
        packet: &Packet<'_>,
        hits: &[RuleHit],
        findings: &mut impl Findings,
    ) {
        for over in self.scripts.take_ended_flows(at, self.rules.at_start()) {
            findings.flow_ended(place.1, over);
        }
        if !findings.are_wanted() {
            return;
        }
        if let Some(derivation) = &mut self.derivation
            && let Some(interface) = self.names.interface(packet.interface)
        {
            let fragments = &mut derivation.fragments;
            fragments.see(interface.link_type, packet.time_ns, packet.data);
        }
        let mut scripts = 0..self.scripts.len();
        if let Some(marking) = &mut self.marking
            && let Some(interface) = self.names.interface(packet.interface)
            && (!hits.is_empty() || scripts.any(|script| self.scripts.takes(script, at)))
        {
            let key = marking.key(interface.link_type, packet);
            key.inspect(|key| marking.marks.exempt(*key));
        }
        for hit in hits {
            let rule = self.rules.number(hit);
            self.tell(rule, place, packet, findings);
        }
        for script in 0..self.scripts.len() {
            if self.scripts.takes(script, at) {
                self.tell_script(script, at, place, packet, findings);
            }
        }
    }

    /// Tells that a script takes the packet at `at` of its chunk.
    fn tell_script(
        &mut self,
        script: usize,
        at: usize,
        place: (usize, u64),
        packet: &Packet<'_>,
        findings: &mut impl Findings,
    ) {
        let rule = self.rules.at_start() + script;
        let (filter, flow) = self.scripts.wanted(script, at);
        let Some(interface) = self.names.interface(packet.interface) else {
            return;
        };
        let mut expression = match (&mut self.derivation, filter) {
            (None, _) => None,
            (Some(derivation), Some(filter)) => Some(derivation.of_text(filter, interface, packet)),
            (Some(derivation), None) => {
                match derivation.expression(rule, interface, place, packet) {
                    None => return,
                    expression => expression,
                }
            }
        };
        if let Some(Ok(expression)) = &mut expression {
            expression.flow = flow;
        }
        findings.hit(order(rule, place, interface, packet), expression);
    }

    /// Tells that a rule takes a packet, and what it would dump.
    fn tell(
        &mut self,
        rule: usize,
        (producer, record): (usize, u64),
        packet: &Packet<'_>,
        findings: &mut impl Findings,
    ) {
        let Some(interface) = self.names.interface(packet.interface) else {
            return;
        };
        let expression = match &mut self.derivation {
            None => None,
            Some(derivation) => {
                match derivation.expression(rule, interface, (producer, record), packet) {
                    None => return,
                    expression => expression,
                }
            }
        };
        let order = order(rule, (producer, record), interface, packet);
        findings.hit(order, expression);
    }

    /// Takes up what changed in the rules, and what they dump. Returns what it no longer has.
    pub(crate) fn change(&mut self, changes: Vec<RuleChange>) -> RemovedRules {
        let mut gone = RemovedRules::default();
        if let Some(derivation) = &mut self.derivation {
            let templates = changes.iter().filter_map(|it| derivation.change(it));
            gone.templates.extend(templates);
            derivation.changed();
        }
        gone.rules = self.rules.change(changes);
        gone
    }

    /// Whether it is to see fragments.
    fn learns(&self) -> bool {
        let derivation = self.derivation.as_ref();
        derivation.is_some_and(|derivation| derivation.fragments.wanted)
    }

    /// Its rules and scripts, by their numbers.
    pub(crate) fn known_rules(&self) -> BTreeMap<usize, KnownRule> {
        let rules = self.rules.iter();
        let rules = rules.map(|rule| (rule.number, rule.known()));
        let scripts = self.scripts.names().enumerate();
        let scripts = scripts.map(|(script, (name, dumps_max))| {
            let known = KnownRule {
                name: name.to_owned(),
                is_enabled: true,
                hits: None,
                dumps_max,
            };
            (self.rules.at_start() + script, known)
        });
        rules.chain(scripts).collect()
    }

    /// What rules and scripts have to say.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let mut notices = self.rules.take_notices();
        notices.extend(self.scripts.take_notices());
        notices.extend(
            self.derivation
                .iter_mut()
                .flat_map(Derivation::take_notices),
        );
        notices
    }
}

/// Where the hit of a rule on a packet, the record of a producer, stands among all others.
fn order(
    rule: usize,
    (producer, record): (usize, u64),
    interface: &RecordedInterface,
    packet: &Packet<'_>,
) -> HitOrder {
    HitOrder {
        time_ns: packet.time_ns,
        source: interface.source,
        producer,
        record,
        rule,
    }
}
