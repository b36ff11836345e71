//! A shard: all that looks at packets. It tries the trigger rules and scripts on batches that it is handed, learns fragments, and tells
//! [`Findings`] what it found, in the order of the packets.
//!
//! It has no thread, reads no clock and no ring, and may move to another thread between two batches. 64 packets are looked at together,
//! to find those that concern anything, and then one by one. Live, most packets match no rule, are no fragments, and come after
//! every window that is over. That can be told from packets alone, without the state of the findings. From files every packet is looked at:
//! there it moves the clock.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use retroscope_filter::Template;
use retroscope_packet::LinkType;
use retroscope_ring::{Packet, Packets};

use crate::{
    analysis::{
        chunk::{Chunk, Walk, fragments},
        director::HitOrder,
        dump_script::DumpFunction,
        fragments::FirstFragments,
        functions::Functions,
        predicate::Expression,
        prepared::{context, mode},
        triggers::{RuleHit, Triggers},
    },
    control::{hits::Refusal, ring_time::Stamps},
    intake::interfaces::InterfaceCache,
};

/// Who hears what a shard finds.
pub(crate) trait Findings {
    /// What packets of a producer are looked for. Any call of the others may change it.
    fn sought(&self, producer: usize) -> Sought;

    /// A rule or a script may take some of the next packets of this producer.
    fn before_hits(&mut self);

    /// A packet that is looked at closely, before its hits: from files each one, in their order.
    fn packet(&mut self, place: (usize, u64), packet: &Packet<'_>);

    /// A rule or a script takes a packet.
    fn hit(&mut self, order: HitOrder, expression: Result<Expression, Refusal>);
}

/// What is looked for among packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sought {
    /// Packets that match a rule.
    pub(crate) hits: bool,
    /// Packets of this time or before, ns of ring time.
    pub(crate) until_ns: Option<i64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shard {
    live: bool,
    pub(crate) rules: Triggers,
    pub(crate) scripts: Functions,
    template: Arc<Template>,
    names: InterfaceCache,
    stamps: Stamps,
    fragments: FirstFragments,
}

impl Shard {
    /// Its rules have the first numbers, then its scripts.
    pub(crate) fn new(
        (rules, scripts): (Triggers, Functions),
        template: Arc<Template>,
        names: InterfaceCache,
        stamps: Stamps,
        live: bool,
    ) -> Self {
        Self {
            live,
            rules,
            scripts,
            fragments: FirstFragments::new(&template),
            template,
            names,
            stamps,
        }
    }

    /// Whether nothing of a producer is wanted.
    pub(crate) fn wants_nothing(&self, sought: Sought) -> bool {
        self.wanted(sought).nothing()
    }

    /// Looks at the next packets, `most` of them: from files at each, live at those that concern anything. `first` is the producer and
    /// the number of the first of them. Returns how many there were.
    pub(crate) fn look(
        &mut self,
        first: (usize, u64),
        packets: &mut Packets<'_>,
        most: usize,
        findings: &mut impl Findings,
    ) -> usize {
        let mut chunk = Chunk::new();
        chunk.most = most;
        let mut walk = Walk::new(packets.clone());
        let asked = packets.clone().take(most);
        self.ask_scripts(first, asked, findings.sought(first.0).hits);
        let count = chunk.fill(packets);
        for (interface, run) in chunk.runs() {
            self.look_at_run(first, &chunk, (interface, run), &mut walk, findings);
        }
        count
    }

    /// Asks the trigger scripts about the next chunk of packets.
    fn ask_scripts<'p>(
        &mut self,
        first: (usize, u64),
        packets: impl Iterator<Item = Packet<'p>>,
        is_armed: bool,
    ) {
        let scripts = &mut self.scripts.triggers;
        if scripts.is_empty() {
            return;
        }
        if is_armed {
            scripts.ask(first, packets, &mut self.names, &mut self.stamps);
        } else {
            scripts.pass();
        }
    }

    /// Looks at records of one interface. `first` is the number of the chunk's first record.
    fn look_at_run(
        &mut self,
        (producer, first): (usize, u64),
        chunk: &Chunk<'_>,
        (interface, run): (u16, Range<usize>),
        walk: &mut Walk<'_>,
        findings: &mut impl Findings,
    ) {
        // An interface that no inserter registered is unknown.
        let interface_info = self.names.interface(interface);
        let link_type = interface_info.map(|interface| interface.link_type);
        let mut wanted = self.wanted(findings.sought(producer));
        let mut of_rules = 0;
        let mut hits = Vec::new();
        if let Some(link_type) = link_type
            && wanted.hits
        {
            let frames = chunk.frames(run.clone());
            of_rules = self.rules.find(link_type, interface, frames);
            hits = std::mem::take(&mut self.rules.hits);
        }
        let live = self.live;
        // What scripts take is found like what rules take.
        of_rules |= self.scripts.triggers.found(&run);
        let find = |wanted: Wanted| match link_type {
            _ if !live => u64::MAX >> (u64::BITS as usize - run.len()),
            Some(link_type) => wanted.find(of_rules, link_type, chunk, run.clone()),
            None => 0,
        };
        let (mut found, mut behind) = (find(wanted), u64::MAX);
        let mut left = hits.as_slice();
        if of_rules != 0 {
            findings.before_hits();
        }
        while found & behind != 0 {
            let frame = (found & behind).trailing_zeros();
            behind = (u64::MAX << frame) << 1;
            let frame = frame as usize;
            let Some(packet) = walk.to(run.start + frame) else {
                break;
            };
            left = &left[left.partition_point(|hit| hit.frame < frame)..];
            let (its, behind_it) = left.split_at(left.partition_point(|hit| hit.frame == frame));
            left = behind_it;
            let record = first + (run.start + frame) as u64;
            findings.packet((producer, record), &packet);
            if findings.sought(producer).hits {
                let place = (producer, record, run.start + frame);
                self.look_closely(place, &packet, its, findings);
            }
            let wanted_now = self.wanted(findings.sought(producer));
            if wanted_now != wanted {
                wanted = wanted_now;
                found = find(wanted);
            }
        }
        self.rules.hits = hits;
    }

    fn wanted(&self, sought: Sought) -> Wanted {
        Wanted {
            hits: sought.hits,
            fragments: sought.hits && self.fragments.wanted,
            until_ns: sought.until_ns,
        }
    }

    /// Learns from a packet, and tells its hits: those of rules, and of scripts. It is the one at `at` of its chunk.
    fn look_closely(
        &mut self,
        (producer, record, at): (usize, u64, usize),
        packet: &Packet<'_>,
        hits: &[RuleHit],
        findings: &mut impl Findings,
    ) {
        if let Some(interface) = self.names.interface(packet.interface) {
            self.fragments
                .see(interface.link_type, packet.time_ns, packet.data);
        }
        for hit in hits {
            let rule = self.rules.count(hit);
            self.tell(rule, (producer, record), packet, findings);
        }
        for script in 0..self.scripts.triggers.len() {
            if self.scripts.triggers.takes(script, at) {
                let rule = self.rules.at_start() + script;
                self.tell(rule, (producer, record), packet, findings);
            }
        }
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
        let expression = match &mut self.scripts.dump {
            None => Expression::new(&self.template, interface, packet, &self.fragments)
                .map_err(Refusal::Variable),
            Some(script) => {
                let live = self.live;
                // What libpcap is slow at is compiled beside the dumps; why it refuses it, their reports say.
                let check = |template: &Template, link_type: LinkType| {
                    let link = context(link_type, mode(!live));
                    if live && !template.checks_at_once(link) {
                        return Ok(());
                    }
                    template.check(link)
                };
                let offset_ns = self.stamps.offset_ns(producer, interface.source, record);
                let stamp_ns = packet.time_ns.wrapping_add(offset_ns);
                match script.expression(interface, packet, stamp_ns, &self.fragments, check) {
                    Some(expression) => expression,
                    None => return,
                }
            }
        };
        let order = HitOrder {
            time_ns: packet.time_ns,
            source: interface.source,
            producer,
            record,
            rule,
        };
        findings.hit(order, expression);
    }

    /// What its rules and scripts are called, by their numbers.
    pub(crate) fn rule_names(&self) -> BTreeMap<usize, String> {
        let rules = self.rules.iter();
        let rules = rules.map(|rule| (rule.number, rule.text.as_str()));
        let scripts = &self.scripts.triggers;
        let scripts = (0..scripts.len()).filter_map(|script| {
            let name = scripts.name(script)?;
            Some((self.rules.at_start() + script, name))
        });
        let names = rules.chain(scripts);
        names.map(|(rule, name)| (rule, name.to_owned())).collect()
    }

    /// Whether packets may be hits.
    pub(crate) fn are_rules(&self) -> bool {
        self.rules.are_any() || !self.scripts.triggers.is_empty()
    }

    /// What rules and scripts have to say.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let mut notices = self.rules.take_notices();
        let Functions { triggers, dump } = &mut self.scripts;
        notices.extend(triggers.take_notices());
        notices.extend(dump.iter_mut().flat_map(DumpFunction::take_notices));
        notices
    }
}

/// What is looked for among packets, with fragments where flows are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    /// Packets that match a rule.
    hits: bool,
    /// Packets that may be fragments.
    fragments: bool,
    /// Packets of this time or before, ns.
    until_ns: Option<i64>,
}

impl Wanted {
    /// Whether nothing is.
    fn nothing(self) -> bool {
        !self.hits && !self.fragments && self.until_ns.is_none()
    }

    /// Which of the records of `chunk` at `run`, all of one link type, are wanted: bit `n` is that of the `n`th of them.
    /// `of_rules` are those that match a rule.
    fn find(self, of_rules: u64, link_type: LinkType, chunk: &Chunk<'_>, run: Range<usize>) -> u64 {
        let mut found = if self.hits { of_rules } else { 0 };
        if let Some(until_ns) = self.until_ns {
            found |= chunk.those(run.clone(), |time_ns| time_ns <= until_ns);
        }
        if self.fragments {
            found |= fragments(link_type, chunk.frames(run));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::rig::udp;

    const NOTHING: Wanted = Wanted {
        hits: false,
        fragments: false,
        until_ns: None,
    };

    /// Finds among packets with these time stamps and bytes, of which 1 and 3 match a rule.
    fn found(wanted: Wanted, link_type: LinkType, packets: &[(i64, &[u8])]) -> u64 {
        let packets = packets.iter().map(|&(time_ns, data)| Packet {
            time_ns,
            wire_len: 100,
            interface: 0,
            direction: 0,
            tag_restored: false,
            shard: 0,
            data,
        });
        let mut chunk = Chunk::new();
        let count = chunk.fill(packets);
        wanted.find(0b1010, link_type, &chunk, 0..count)
    }

    #[test]
    fn it_finds_what_is_wanted_and_nothing_else() {
        let mut ethernet = vec![0; 34];
        ethernet[11..14].copy_from_slice(&[1, 8, 0]);
        let arp = [&[0; 12][..], &[8, 6], &[0; 20]].concat();
        let mut fragment = ethernet.clone();
        fragment[20] = 0x20;
        let packets: [(i64, &[u8]); 5] = [
            (10, &ethernet),
            (11, &arp),
            (12, &fragment),
            (5, &ethernet[..10]),
            (13, &arp),
        ];
        let found = |wanted| found(wanted, LinkType::ETHERNET, &packets);
        assert!(NOTHING.nothing());
        assert_eq!(found(NOTHING), 0);
        let hits = Wanted {
            hits: true,
            ..NOTHING
        };
        assert_eq!(found(hits), 0b1010);
        let late = Wanted {
            until_ns: Some(10),
            ..NOTHING
        };
        assert_eq!(found(late), 0b1001);
        let fragments = Wanted {
            fragments: true,
            ..NOTHING
        };
        assert_eq!(found(fragments), 0b1100, "one that is cut short may be one");
        let all = Wanted {
            until_ns: Some(10),
            fragments: true,
            ..hits
        };
        assert_eq!(found(all), 0b1111);
        assert!(!hits.nothing() && !late.nothing() && !fragments.nothing());
    }

    #[test]
    fn of_raw_ip_every_packet_may_be_a_fragment() {
        let packet = udp(1, 7, 0);
        let fragments = Wanted {
            fragments: true,
            ..NOTHING
        };
        assert_eq!(found(fragments, LinkType::RAW, &[(1, &packet)]), 1);
    }
}
