//! Turns an expression into entries of tables.
//!
//! An expression becomes an `or` of conjunctions. One part of each conjunction is looked up: a
//! whole flow if the conjunction requires one, otherwise the primitive that, by a rough estimate,
//! the fewest packets and rules share. The rest of the conjunction is compared with the headers.
//!
//! If an `and` would give too many conjunctions, only one of its operands is looked up, and the
//! whole expression is evaluated for the found packets. If some conjunction has nothing to look up
//! (`not port 22`, `ip[8] < 5`), every packet is tested.

use std::{net::IpAddr, sync::Arc};

use retroscope_packet::FlowKey;

use crate::filled::FlowTerm;

use super::{
    atom::{Atom, AtomInput, EndQualifier, Expr},
    key::{SCTP, TCP, TagView, UDP, frame_flags, kind, proto_flag},
    look_up_key::{ALL_ORIENTATIONS, FiveTuple, Flow4Key, LookUpKey},
};

/// Maximum number of conjunctions of an expression, plus two for each of its primitives.
const CONJUNCTIONS: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct Literal {
    pub(super) atom: Atom,
    pub(super) negated: bool,
}

/// The part of a conjunction that is compared after the look-up.
#[derive(Debug, Clone)]
pub(super) struct Remainder {
    pub(super) view: TagView,
    pub(super) literals: Box<[Literal]>,
}

#[derive(Debug, Clone)]
pub(super) struct RulePart {
    pub(super) look_up: LookUpKey,
    /// A frame matches only if its flags are a subset of these bits.
    pub(super) need: u16,
    /// For IPv4 flows: bit mask of the orientations that match (see [`Flow4Key::new`]).
    pub(super) orientations: u8,
    pub(super) remainder: Option<Arc<Remainder>>,
}

#[derive(Debug)]
pub(super) struct LookUps {
    /// `None` if every packet must be tested.
    pub(super) parts: Option<Vec<RulePart>>,
    /// Whether the whole expression must be evaluated for each found packet.
    pub(super) is_partial: bool,
}

impl RulePart {
    fn new(look_up: LookUpKey, need: u16) -> Self {
        Self {
            look_up,
            need,
            orientations: ALL_ORIENTATIONS,
            remainder: None,
        }
    }

    pub(super) fn compared(&self) -> usize {
        self.remainder
            .as_ref()
            .map_or(0, |remainder| remainder.literals.len())
    }

    /// Whether this part belongs to `$flow` or `$communityId`, and thus applies under any link type
    /// and tags.
    pub(super) fn is_of_term(&self) -> bool {
        !matches!(self.look_up, LookUpKey::One(_)) && self.need == frame_flags::ALL
    }
}

impl Remainder {
    /// A literal whose bytes were not captured does not hold.
    #[inline]
    pub(super) fn holds(&self, input: &AtomInput<'_>) -> bool {
        self.literals
            .iter()
            .all(|literal| literal.atom.holds(self.view, input) == Some(!literal.negated))
    }
}

pub(super) type Conjunction = Vec<Literal>;

/// `entries_under` returns the number of existing entries under a key.
pub(super) fn look_ups(
    expr: &Expr,
    view: TagView,
    entries_under: &dyn Fn(&LookUpKey) -> usize,
) -> LookUps {
    let mut atoms = 0;
    let mut has_opaque = false;
    expr.atoms(&mut |atom| {
        atoms += 1;
        has_opaque |= matches!(atom, Atom::Opaque);
    });
    let limit = CONJUNCTIONS + 2 * atoms;
    let whole = conjunctions(expr, false, limit);
    let is_partial = has_opaque || whole.is_none();
    let covering = whole.or_else(|| covering(expr, limit));
    let planner = Planner {
        view,
        entries_under,
    };
    let parts = covering.and_then(|covering| {
        let mut parts = Vec::with_capacity(covering.len());
        for conjunction in &covering {
            parts.extend(planner.parts(conjunction)?);
        }
        Some(parts)
    });
    LookUps { parts, is_partial }
}

/// The expression, or with `negated` its negation, as an `or` of at most `limit` conjunctions, if
/// possible.
pub(super) fn conjunctions(expr: &Expr, negated: bool, limit: usize) -> Option<Vec<Conjunction>> {
    let (list, is_or) = match expr {
        Expr::Atom(atom) => {
            let literal = Literal {
                atom: *atom,
                negated,
            };
            return Some(vec![vec![literal]]);
        }
        Expr::Not(inner) => return conjunctions(inner, !negated, limit),
        // De Morgan's laws.
        Expr::And(list) => (list, negated),
        Expr::Or(list) => (list, !negated),
    };
    let mut all: Vec<Conjunction> = if is_or { Vec::new() } else { vec![Vec::new()] };
    for expr in list {
        let its = conjunctions(expr, negated, limit)?;
        if is_or {
            all.extend(its);
        } else if let [only] = its.as_slice() {
            all.iter_mut().for_each(|left| left.extend(only));
        } else {
            if all.len() * its.len() > limit {
                return None;
            }
            let product = all.iter().flat_map(|left| {
                let joined = |right: &Conjunction| left.iter().chain(right).copied().collect();
                its.iter().map(joined)
            });
            all = product.collect();
        }
        if all.len() > limit {
            return None;
        }
    }
    Some(all)
}

/// Conjunctions with something to look up, of which at least one holds whenever the expression
/// holds. `None` if this function finds no such list.
fn covering(expr: &Expr, limit: usize) -> Option<Vec<Conjunction>> {
    if let Some(all) = conjunctions(expr, false, limit) {
        let is_useful = |all: &Conjunction| all.iter().any(|literal| rank(literal) < RANKS);
        return all.iter().all(is_useful).then_some(all);
    }
    match expr {
        Expr::And(list) => {
            let each = list.iter().filter_map(|expr| covering(expr, limit));
            let worst = |all: &Vec<Conjunction>| {
                let best = |one: &Conjunction| one.iter().map(rank).min();
                (all.iter().filter_map(best).max(), all.len())
            };
            each.min_by_key(worst)
        }
        Expr::Or(list) => {
            let mut all = Vec::new();
            for expr in list {
                all.extend(covering(expr, limit)?);
            }
            Some(all)
        }
        Expr::Atom(_) | Expr::Not(_) => None,
    }
}

/// The [`rank`] of a primitive that cannot be looked up.
const RANKS: usize = 1 << 20;

/// A rough estimate, without a unit, of how many packets a primitive matches.
fn rank(literal: &Literal) -> usize {
    if literal.negated {
        return RANKS;
    }
    match literal.atom {
        Atom::Flow(_) => 0,
        Atom::V4 { bits, .. } => 4 << ((32 - usize::from(bits)) / 4),
        Atom::V6 { bits, .. } => 4 << ((128 - usize::from(bits)) / 16),
        Atom::Mac { .. } => 6,
        Atom::Ports { low, high, .. } if low == high && low < 1024 => 32,
        Atom::Ports { low, high, .. } if low == high => 8,
        Atom::Ports { low, high, .. } => 64 + usize::from(high - low) / 8,
        Atom::Kinds(kinds) if kinds & (kind::V4 | kind::V6) == 0 => 128,
        Atom::Proto {
            number: TCP | UDP, ..
        } => 8192,
        Atom::Vlan(Some(_)) | Atom::Proto { .. } => 128,
        Atom::Interface(_) | Atom::Kinds(_) => 16_384,
        Atom::Vlan(None) | Atom::Opaque => RANKS,
    }
}

struct Planner<'c> {
    view: TagView,
    entries_under: &'c dyn Fn(&LookUpKey) -> usize,
}

/// A look-up for a conjunction, and the indexes of the literals that need no further test.
type PlannedLookUp = (RulePart, Vec<usize>);

impl Planner<'_> {
    /// `None` if no literal of the conjunction can be looked up.
    fn parts(&self, conjunction: &Conjunction) -> Option<Vec<RulePart>> {
        let term = conjunction.iter().find_map(|literal| match literal.atom {
            Atom::Flow(term) if !literal.negated => Some(term),
            _ => None,
        });
        if let Some(term) = term {
            return Some(parts_of_flow(term));
        }
        let (part, done) = self.flow(conjunction).or_else(|| self.least(conjunction))?;
        let left = conjunction.iter().enumerate().filter(|(index, literal)| {
            !done.contains(index) && !self.is_implied(literal, &part.look_up)
        });
        let literals: Box<[Literal]> = left.map(|(_, literal)| *literal).collect();
        let view = self.view;
        let remainder = (!literals.is_empty()).then(|| Arc::new(Remainder { view, literals }));
        Some(vec![RulePart { remainder, ..part }])
    }

    /// Whether every packet that `look_up` finds in this view satisfies the literal.
    fn is_implied(&self, literal: &Literal, look_up: &LookUpKey) -> bool {
        // For opaque primitives the whole expression is evaluated later.
        if matches!(literal.atom, Atom::Opaque) {
            return true;
        }
        if literal.negated {
            return false;
        }
        match (literal.atom, *look_up) {
            // In the tagged view, look-ups except those of interfaces find only tagged packets.
            (Atom::Vlan(None), look_up) => {
                self.view == TagView::Tagged
                    && !matches!(look_up, LookUpKey::One(Atom::Interface(_)))
            }
            (Atom::Kinds(kinds), LookUpKey::Flow4(_)) => kinds & kind::V4 != 0,
            (Atom::Kinds(kinds), LookUpKey::Flow6(_) | LookUpKey::One(Atom::V6 { .. })) => {
                kinds & kind::V6 != 0
            }
            (Atom::Proto { number, kinds }, LookUpKey::Flow4(flow)) => {
                number == flow.proto && kinds & kind::V4 != 0
            }
            (Atom::Proto { number, kinds }, LookUpKey::Flow6(flow)) => {
                number == flow.proto && kinds & kind::V6 != 0
            }
            _ => false,
        }
    }

    fn need(&self, of_view: u16) -> u16 {
        let view = match self.view {
            TagView::Plain => frame_flags::PLAIN,
            TagView::Tagged => frame_flags::TAGGED,
        };
        of_view & !(frame_flags::PLAIN | frame_flags::TAGGED) | view
    }

    fn flow(&self, conjunction: &Conjunction) -> Option<PlannedLookUp> {
        let v4 = |literal: &Literal| match literal.atom {
            Atom::V4 {
                ends,
                addr,
                bits: 32,
                kinds,
            } if kinds & kind::V4 != 0 => Some((ends, addr)),
            _ => None,
        };
        let v6 = |literal: &Literal| match literal.atom {
            Atom::V6 {
                ends,
                addr,
                bits: 128,
            } => Some((ends, addr)),
            _ => None,
        };
        let need = self.need(frame_flags::ALL);
        if let Some((flow, orientations, done)) = flow(conjunction, v4) {
            let part = RulePart {
                orientations,
                ..RulePart::new(LookUpKey::Flow4(flow), need)
            };
            return Some((part, done));
        }
        // The key of an IPv6 flow is a hash, so addresses and ports are compared later.
        let (flow, _, _) = flow(conjunction, v6)?;
        Some((RulePart::new(LookUpKey::Flow6(flow), need), Vec::new()))
    }

    /// The look-up that, by a rough estimate, the fewest packets and rules share.
    fn least(&self, conjunction: &Conjunction) -> Option<PlannedLookUp> {
        let useful = (0..conjunction.len()).filter(|index| rank(&conjunction[*index]) < RANKS);
        let candidates = useful.filter_map(|index| {
            let (part, is_done) = self.by_literal(&conjunction[index])?;
            let entries_under = (self.entries_under)(&part.look_up);
            let weight = rank(&conjunction[index]).saturating_mul(1 + entries_under);
            let done = if is_done { vec![index] } else { Vec::new() };
            Some((weight, (part, done)))
        });
        let least = candidates.min_by_key(|(weight, _)| *weight);
        least.map(|(_, candidate)| candidate)
    }

    /// The look-up of a literal, and whether the look-up decides the literal.
    fn by_literal(&self, literal: &Literal) -> Option<(RulePart, bool)> {
        let any = frame_flags::ALL;
        let (need, is_done) = match literal.atom {
            Atom::V4 { ends, kinds, .. } => {
                let (sides, is_done) = sides(ends);
                (
                    sides & (u16::from(kinds) | any & !frame_flags::KINDS),
                    is_done,
                )
            }
            Atom::V6 { ends, .. } => (sides(ends).0, false),
            Atom::Ports { ends, protos, .. } => {
                let (sides, is_done) = sides(ends);
                let others = any & !(frame_flags::ANY_PORTS | frame_flags::NO_PORTS);
                (sides & (others | protos), is_done)
            }
            Atom::Mac { ends, .. } => sides(ends),
            Atom::Vlan(None) | Atom::Flow(_) | Atom::Opaque => return None,
            Atom::Vlan(Some(_)) | Atom::Proto { .. } | Atom::Kinds(_) | Atom::Interface(_) => {
                (any, true)
            }
        };
        let need = match (literal.atom, self.view) {
            // Interfaces do not depend on tags, and hardware addresses precede the tags.
            (Atom::Interface(_), _) | (Atom::Mac { .. }, TagView::Plain) => need,
            _ => self.need(need),
        };
        Some((RulePart::new(LookUpKey::One(literal.atom), need), is_done))
    }
}

/// The frame flags that a look-up with these ends allows, and whether the look-up decides the
/// literal.
fn sides(ends: EndQualifier) -> (u16, bool) {
    let other = frame_flags::ALL & !(frame_flags::SRC | frame_flags::DST);
    match ends {
        EndQualifier::Src => (other | frame_flags::SRC, true),
        EndQualifier::Dst => (other | frame_flags::DST, true),
        EndQualifier::Either => (frame_flags::ALL, true),
        EndQualifier::Both => (other | frame_flags::SRC, false),
    }
}

fn port(literal: &Literal) -> Option<(EndQualifier, u16)> {
    match literal.atom {
        Atom::Ports {
            ends, low, high, ..
        } if low == high => Some((ends, low)),
        _ => None,
    }
}

/// The protocol with ports that a conjunction allows. `None` if the conjunction allows several
/// protocols or no protocol.
fn proto(conjunction: &Conjunction) -> Option<u8> {
    let mut allowed = frame_flags::ANY_PORTS;
    for literal in conjunction.iter().filter(|literal| !literal.negated) {
        match literal.atom {
            Atom::Proto { number, .. } => allowed &= proto_flag(number),
            Atom::Ports { protos, .. } => allowed &= protos,
            _ => {}
        }
    }
    [TCP, UDP, SCTP]
        .into_iter()
        .find(|proto| allowed == proto_flag(*proto))
}

/// Two values that a conjunction requires, one at each end.
struct RequiredPair<T> {
    values: [T; 2],
    /// Bit 0: the source may have the low value. Bit 1: the source may have the high value.
    orientations: u8,
    /// Indexes of the literals that require the values.
    done: Vec<usize>,
}

/// The flow that a conjunction requires, its orientations, and the indexes of the literals that
/// require the flow.
fn flow<A: Copy + Ord>(
    conjunction: &Conjunction,
    address: impl Fn(&Literal) -> Option<(EndQualifier, A)>,
) -> Option<(FiveTuple<A>, u8, Vec<usize>)> {
    let proto = proto(conjunction)?;
    let hosts = required_pair(conjunction, address)?;
    let ports = required_pair(conjunction, port)?;
    // Bit number: 1 if the source has the higher address, plus 2 if the source has the higher port.
    let mut orientations = 0;
    for (bit, exchanged) in [(1, 0), (2, 1)] {
        if ports.orientations & bit != 0 {
            orientations |= hosts.orientations << (2 * exchanged);
        }
    }
    let flow = FiveTuple::new(proto, hosts.values, ports.values);
    Some((flow, orientations, [hosts.done, ports.done].concat()))
}

fn required_pair<T: Copy + Ord>(
    conjunction: &Conjunction,
    value: impl Fn(&Literal) -> Option<(EndQualifier, T)>,
) -> Option<RequiredPair<T>> {
    let mut src: Option<(usize, T)> = None;
    let mut dst: Option<(usize, T)> = None;
    let mut either: Vec<(usize, T)> = Vec::new();
    for (index, literal) in conjunction.iter().enumerate() {
        let Some((ends, value)) = value(literal).filter(|_| !literal.negated) else {
            continue;
        };
        match ends {
            EndQualifier::Src => _ = src.get_or_insert((index, value)),
            EndQualifier::Dst => _ = dst.get_or_insert((index, value)),
            EndQualifier::Either => either.push((index, value)),
            EndQualifier::Both => {}
        }
    }
    let other = |than: T| either.iter().copied().find(|(_, value)| *value != than);
    let (a, b, is_directed) = match (src, dst) {
        (Some(src), Some(dst)) => (src, dst, true),
        (Some(src), None) => (src, other(src.1)?, true),
        (None, Some(dst)) => (other(dst.1)?, dst, true),
        (None, None) => {
            let first = *either.first()?;
            (first, other(first.1)?, false)
        }
    };
    let orientations = match (is_directed, a.1 > b.1) {
        (false, _) => 0b11,
        (true, false) => 0b01,
        (true, true) => 0b10,
    };
    Some(RequiredPair {
        values: [a.1, b.1],
        orientations,
        done: vec![a.0, b.0],
    })
}

/// Look-ups for the packets of a flow, and for packets that may be fragments of the flow.
fn parts_of_flow(term: FlowTerm) -> Vec<RulePart> {
    let part = |look_up| RulePart::new(look_up, frame_flags::ALL);
    let key = match term {
        FlowTerm::Datagram(datagram) => {
            return vec![part(LookUpKey::Pair([datagram.src, datagram.dst]))];
        }
        FlowTerm::Key { key, .. } => key,
    };
    match key {
        FlowKey::Ip { low, high, .. } => vec![part(LookUpKey::Pair([low, high]))],
        FlowKey::Mac { .. } | FlowKey::Link { .. } => vec![part(LookUpKey::Link(key))],
        FlowKey::Ports { proto, low, high } => {
            let (hosts, ports) = ([low.addr, high.addr], [low.port, high.port]);
            // Both directions match.
            let mut orientations = ALL_ORIENTATIONS;
            let flow = match hosts {
                [IpAddr::V4(a), IpAddr::V4(b)] => {
                    let hosts = [a.to_bits(), b.to_bits()];
                    let orientation = |[src, dst]: [usize; 2]| {
                        let ports = (ports[src], ports[dst]);
                        Flow4Key::new(proto_flag(proto), hosts[src], hosts[dst], ports).1
                    };
                    orientations = orientation([0, 1]) | orientation([1, 0]);
                    LookUpKey::Flow4(FiveTuple::new(proto, hosts, ports))
                }
                [IpAddr::V6(a), IpAddr::V6(b)] => {
                    let hosts = [a.to_bits(), b.to_bits()];
                    LookUpKey::Flow6(FiveTuple::new(proto, hosts, ports))
                }
                // The key of a packet has addresses of one family only.
                _ => return vec![part(LookUpKey::Pair(hosts))],
            };
            let flow = RulePart {
                orientations,
                ..part(flow)
            };
            vec![flow, part(LookUpKey::Fragments(hosts))]
        }
    }
}
