//! Evaluates expressions with own terms, on one packet or on many packets together.
//!
//! The bits of a `u64` are a set of packets. Each operand of an `and` or `or` decides only about
//! packets whose result the operands before it leave open.

use std::cell::OnceCell;

use retroscope_packet::{LinkType, Parsed, community_id, parse};

use crate::{
    FilterFrame, FlowState, Program, Variable,
    filled::{CommunityTerm, TermValues},
    plan::EvaluationPlan,
};

/// If the result of fewer packets is open, a program runs on each of these packets. Otherwise the
/// program runs on all packets together, including packets that are already decided.
const TOGETHER_MIN: u32 = 8;

/// At most `N` packets of one link type and interface.
pub(crate) struct Evaluation<'b, 'p, const N: usize> {
    link_type: LinkType,
    interface: u16,
    terms: &'b TermValues,
    programs: &'b [Program],
    frames: &'b [FilterFrame<'p>],
    /// Parsed headers, filled in on demand.
    parsed: [OnceCell<Parsed>; N],
}

/// Sets of packets in Kleene's three-valued logic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KleeneSets {
    /// Packets that match.
    pub(crate) matching: u64,
    /// Packets that match or may match. Includes `matching`.
    pub(crate) possible: u64,
}

impl From<u64> for KleeneSets {
    /// No packet is undecided.
    fn from(matching: u64) -> Self {
        let possible = matching;
        Self { matching, possible }
    }
}

impl<'b, 'p, const N: usize> Evaluation<'b, 'p, N> {
    /// Panics if there are more than `N` frames.
    pub(crate) fn new(
        (link_type, interface): (LinkType, u16),
        terms: &'b TermValues,
        programs: &'b [Program],
        frames: &'b [FilterFrame<'p>],
    ) -> Self {
        assert!(frames.len() <= N);
        Self {
            link_type,
            interface,
            terms,
            programs,
            frames,
            parsed: [const { OnceCell::new() }; N],
        }
    }

    pub(crate) fn all(&self) -> u64 {
        (0..self.frames.len()).fold(0, |set, index| set | 1 << index)
    }

    pub(crate) fn parsed(&self, index: usize) -> &Parsed {
        self.parsed[index].get_or_init(|| parse(self.link_type, self.frames[index].data()))
    }

    /// Evaluates `plan` for the packets in `among`. `state` holds the known fragments.
    pub(crate) fn find(&self, plan: &EvaluationPlan, among: u64, state: &FlowState) -> KleeneSets {
        if among == 0 {
            return KleeneSets::from(0);
        }
        match plan {
            EvaluationPlan::Piece(index) => self.piece(*index, among).into(),
            EvaluationPlan::Term(term) => self.term(*term, among, state),
            EvaluationPlan::Payload(test) => self.payload(among, |payload| test.holds(payload)),
            EvaluationPlan::AnyString(strings) => {
                self.payload(among, |payload| strings.holds(payload))
            }
            EvaluationPlan::Not(inner) => {
                let found = self.find(inner, among, state);
                KleeneSets {
                    matching: among & !found.possible,
                    possible: among & !found.matching,
                }
            }
            EvaluationPlan::All(parts) => {
                parts.iter().fold(KleeneSets::from(among), |left, part| {
                    let found = self.find(part, left.possible, state);
                    KleeneSets {
                        matching: left.matching & found.matching,
                        possible: found.possible,
                    }
                })
            }
            EvaluationPlan::Any(parts) => parts.iter().fold(KleeneSets::from(0), |before, part| {
                let found = self.find(part, among & !before.matching, state);
                KleeneSets {
                    matching: before.matching | found.matching,
                    possible: before.possible | found.possible,
                }
            }),
        }
    }

    fn piece(&self, index: usize, among: u64) -> u64 {
        let Some(program) = self.programs.get(index) else {
            return 0;
        };
        if among.count_ones() >= TOGETHER_MIN {
            return among & program.run_many(self.frames);
        }
        let keeps = |index: usize| Some(program.keeps(&self.frames[index]));
        select(among, keeps).matching
    }

    /// The packets of `among` whose payload satisfies `holds`. A packet with an unknown payload
    /// does not match; an empty payload is tested.
    fn payload(&self, among: u64, holds: impl Fn(&[u8]) -> bool) -> KleeneSets {
        select(among, |index| {
            let payload = self.parsed(index).payload(self.frames[index].data());
            Some(payload.is_some_and(&holds))
        })
    }

    fn term(&self, term: Variable, among: u64, state: &FlowState) -> KleeneSets {
        let flow = match term {
            Variable::Iface if self.terms.interface == Some(self.interface) => return among.into(),
            Variable::Flow => self.terms.flow,
            Variable::CommunityId => self.terms.community_flow(),
            // `$iface` of another interface does not match. All other variables are pcap-filter
            // text.
            _ => return KleeneSets::from(0),
        };
        match (flow, term, &self.terms.community) {
            (Some(flow), ..) => select(among, |index| state.belongs(flow, self.parsed(index))),
            (None, Variable::CommunityId, Some(CommunityTerm::Id(id))) => select(among, |index| {
                Some(community_id(self.parsed(index), 0).as_ref() == Some(id))
            }),
            _ => KleeneSets::from(0),
        }
    }
}

/// The packets of `among` that satisfy `holds`. A packet for which `holds` returns `None` is
/// undecided.
fn select(among: u64, holds: impl Fn(usize) -> Option<bool>) -> KleeneSets {
    ones(among).fold(KleeneSets::from(0), |found, index| {
        let holds = holds(index);
        KleeneSets {
            matching: found.matching | u64::from(holds == Some(true)) << index,
            possible: found.possible | u64::from(holds != Some(false)) << index,
        }
    })
}

/// Indexes of the bits that are set.
pub(crate) fn ones(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(index)
    })
}

#[cfg(test)]
mod tests {
    use retroscope_packet::flow_of;

    use super::*;
    use crate::{Aux, filled::FlowTerm};

    /// UDP over raw IPv4. `None` makes a later fragment, whose ports are unknown.
    fn packet(port: Option<u8>) -> Vec<u8> {
        let mut packet = vec![0; 28];
        (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, 64, 17);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[7] = if port.is_some() { 0 } else { 2 };
        packet[23] = port.unwrap_or(0);
        packet[25] = 8;
        packet
    }

    fn tree(random: &mut fastrand::Rng, depth: u32) -> EvaluationPlan {
        let kind = if depth == 0 { 3 } else { random.u8(..4) };
        let mut part = || tree(random, depth - 1);
        match kind {
            0 => EvaluationPlan::Not(Box::new(part())),
            1 => EvaluationPlan::All(vec![part(), part(), part()]),
            2 => EvaluationPlan::Any(vec![part(), part(), part()]),
            _ => EvaluationPlan::Term(match random.u8(..4) {
                0 => Variable::Iface,
                1 => Variable::SrcPort,
                _ => Variable::Flow,
            }),
        }
    }

    /// Expected result of `plan` if `$flow` has the result `flow`. 0: no match, 1: undecided, 2:
    /// match.
    fn said(plan: &EvaluationPlan, flow: u8) -> u8 {
        match plan {
            EvaluationPlan::Term(Variable::Flow) => flow,
            EvaluationPlan::Term(Variable::Iface) => 2,
            EvaluationPlan::Not(inner) => 2 - said(inner, flow),
            EvaluationPlan::All(parts) => parts.iter().map(|part| said(part, flow)).min().unwrap(),
            EvaluationPlan::Any(parts) => parts.iter().map(|part| said(part, flow)).max().unwrap(),
            _ => 0,
        }
    }

    /// Compares the evaluation of random plans with an independent implementation.
    #[test]
    fn trees_are_evaluated_in_three_valued_logic() {
        let packets = [packet(Some(7)), packet(None), packet(Some(9))];
        let key = flow_of(&parse(LinkType::RAW, &packets[2])).unwrap();
        let trigger = None;
        let terms = TermValues {
            flow: Some(FlowTerm::Key { key, trigger }),
            interface: Some(3),
            community: None,
        };
        let state = FlowState::new(&terms);
        let mut random = fastrand::Rng::with_seed(1);
        let mut seen = [0; 3];
        for _ in 0..1000 {
            let plan = tree(&mut random, 4);
            let flows: Vec<u8> = (0..64).map(|_| random.u8(..3)).collect();
            let frame =
                |flow: &u8| FilterFrame::new(&packets[usize::from(*flow)], 28, Aux::default());
            let frames: Vec<FilterFrame<'_>> = flows.iter().map(frame).collect();
            let at = (LinkType::RAW, 3);
            let many: Evaluation<'_, '_, 64> = Evaluation::new(at, &terms, &[], &frames);
            let many = many.find(&plan, many.all(), &state);
            for (index, flow) in flows.iter().enumerate() {
                let one: Evaluation<'_, '_, 1> =
                    Evaluation::new(at, &terms, &[], &frames[index..=index]);
                let one = one.find(&plan, 1, &state);
                let expected = said(&plan, *flow);
                let of = |known: KleeneSets, bit: usize| {
                    (known.matching >> bit & 1) + (known.possible >> bit & 1)
                };
                assert_eq!(of(one, 0), u64::from(expected), "{plan:?}");
                assert_eq!(of(many, index), u64::from(expected), "{plan:?}");
                seen[usize::from(expected)] += 1;
            }
        }
        assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
    }

    #[test]
    fn a_community_id_stands_for_no_flow() {
        let packet = packet(Some(9));
        let id = community_id(&parse(LinkType::RAW, &packet), 0).unwrap();
        let terms = TermValues {
            community: Some(CommunityTerm::Id(id)),
            ..TermValues::default()
        };
        let frames = [FilterFrame::new(&packet, 28, Aux::default())];
        let batch: Evaluation<'_, '_, 1> =
            Evaluation::new((LinkType::RAW, 0), &terms, &[], &frames);
        for (term, matching) in [(Variable::CommunityId, 1), (Variable::Flow, 0)] {
            let found = batch.find(&EvaluationPlan::Term(term), 1, &FlowState::new(&terms));
            assert_eq!(
                (found.matching, found.possible),
                (matching, matching),
                "{term}"
            );
        }
    }
}
