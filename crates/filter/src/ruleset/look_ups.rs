//! From an expression to entries of tables.
//!
//! An expression becomes an `or` of conjunctions. Of each, the part that fewest packets and fewest other rules share is
//! looked up; what remains of the conjunction is compared with the headers. Where an expression would become too many
//! conjunctions, they are taken from one operand of each `and` only, and the whole expression is asked about what they find.
//! An expression of which some conjunction has nothing to look up (`not port 22`, `ip[8] < 5`) is left to its program.

use std::{net::IpAddr, sync::Arc};

use retroscope_packet::FlowKey;

use crate::filled::FlowTerm;

use super::{
    atom::{Atom, Ends, Expr, Subject},
    key::{SCTP, TCP, UDP, View, kind, proto_trait, traits},
    sought::{ALL_WAYS, Flow, Flow4Key, Sought},
};

/// Conjunctions that an expression of few primitives may become.
const CONJUNCTIONS: usize = 64;

/// A primitive or its opposite.
#[derive(Debug, Clone, Copy)]
pub(super) struct Literal {
    pub(super) atom: Atom,
    pub(super) negated: bool,
}

/// What a look-up leaves to be compared.
#[derive(Debug, Clone)]
pub(super) struct Remainder {
    pub(super) view: View,
    pub(super) literals: Box<[Literal]>,
}

/// One look-up of a rule.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) sought: Sought,
    /// Traits beyond which a packet does not match.
    pub(super) need: u16,
    /// Of flows over IPv4: which of the four ways match.
    pub(super) ways: u8,
    pub(super) remainder: Option<Arc<Remainder>>,
}

/// What becomes of an expression.
#[derive(Debug)]
pub(super) struct LookUps {
    /// Its look-ups; `None`: it has none, every packet must be asked.
    pub(super) parts: Option<Vec<Part>>,
    /// Finding a part does not decide: the whole expression must be asked.
    pub(super) is_partial: bool,
}

impl Part {
    fn new(sought: Sought, need: u16) -> Self {
        Self {
            sought,
            need,
            ways: ALL_WAYS,
            remainder: None,
        }
    }

    /// How many primitives are compared after the look-up.
    pub(super) fn compared(&self) -> usize {
        self.remainder
            .as_ref()
            .map_or(0, |remainder| remainder.literals.len())
    }

    /// Whether it is one of `$flow`, made on every link type and under any tags.
    pub(super) fn is_of_term(&self) -> bool {
        !matches!(self.sought, Sought::One(_)) && self.need == traits::ALL
    }
}

impl Remainder {
    /// Whether all of it holds, with every byte that it needs.
    #[inline]
    pub(super) fn holds(&self, subject: &Subject<'_>) -> bool {
        self.literals
            .iter()
            .all(|literal| literal.atom.holds(self.view, subject) == Some(!literal.negated))
    }
}

pub(super) type Conjunction = Vec<Literal>;

/// The look-ups of an expression. `crowd` tells how many entries there are under a key already.
pub(super) fn look_ups(expr: &Expr, view: View, crowd: &dyn Fn(&Sought) -> usize) -> LookUps {
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
    let planner = Planner { view, crowd };
    let parts = covering.and_then(|covering| {
        let mut parts = Vec::with_capacity(covering.len());
        for conjunction in &covering {
            parts.extend(planner.parts(conjunction)?);
        }
        Some(parts)
    });
    LookUps { parts, is_partial }
}

/// The expression as an `or` of at most `limit` conjunctions.
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

/// Conjunctions one of which holds wherever the expression does, though not only there.
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

/// How many packets a primitive lets through compared with others: a rank, not a count. [`RANKS`]: it cannot be looked up.
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
    view: View,
    crowd: &'c dyn Fn(&Sought) -> usize,
}

/// A way to find a conjunction: the look-up, and the literals that it takes care of.
type Candidate = (Part, Vec<usize>);

impl Planner<'_> {
    /// The look-ups of a conjunction, without those that others make needless; `None` if it has none.
    fn parts(&self, conjunction: &Conjunction) -> Option<Vec<Part>> {
        let term = conjunction.iter().find_map(|literal| match literal.atom {
            Atom::Flow(term) if !literal.negated => Some(term),
            _ => None,
        });
        if let Some(term) = term {
            return Some(followed(term));
        }
        let (part, done) = self.flow(conjunction).or_else(|| self.least(conjunction))?;
        let left = conjunction.iter().enumerate().filter(|(index, literal)| {
            !done.contains(index) && !self.is_implied(literal, &part.sought)
        });
        let literals: Box<[Literal]> = left.map(|(_, literal)| *literal).collect();
        let view = self.view;
        let remainder = (!literals.is_empty()).then(|| Arc::new(Remainder { view, literals }));
        Some(vec![Part { remainder, ..part }])
    }

    /// Whether a packet found by `sought` in this view cannot but satisfy the literal.
    fn is_implied(&self, literal: &Literal, sought: &Sought) -> bool {
        // The whole expression is asked about what is opaque.
        if matches!(literal.atom, Atom::Opaque) {
            return true;
        }
        if literal.negated {
            return false;
        }
        match (literal.atom, *sought) {
            // Only packets of the view are found.
            (Atom::Vlan(None), sought) => {
                self.view == View::Tagged && !matches!(sought, Sought::One(Atom::Interface(_)))
            }
            (Atom::Kinds(kinds), Sought::Flow4(_)) => kinds & kind::V4 != 0,
            (Atom::Kinds(kinds), Sought::Flow6(_) | Sought::One(Atom::V6 { .. })) => {
                kinds & kind::V6 != 0
            }
            (Atom::Proto { number, kinds }, Sought::Flow4(flow)) => {
                number == flow.proto && kinds & kind::V4 != 0
            }
            (Atom::Proto { number, kinds }, Sought::Flow6(flow)) => {
                number == flow.proto && kinds & kind::V6 != 0
            }
            _ => false,
        }
    }

    fn need(&self, of_view: u16) -> u16 {
        let view = match self.view {
            View::Plain => traits::PLAIN,
            View::Tagged => traits::TAGGED,
        };
        of_view & !(traits::PLAIN | traits::TAGGED) | view
    }

    fn flow(&self, conjunction: &Conjunction) -> Option<Candidate> {
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
        let need = self.need(traits::ALL);
        if let Some((flow, ways, done)) = flow(conjunction, v4) {
            let part = Part {
                ways,
                ..Part::new(Sought::Flow4(flow), need)
            };
            return Some((part, done));
        }
        // IPv6 flows are found by a hash, so all that the conjunction says is compared.
        let (flow, _, _) = flow(conjunction, v6)?;
        Some((Part::new(Sought::Flow6(flow), need), Vec::new()))
    }

    /// The one literal that lets the fewest packets and rules through.
    fn least(&self, conjunction: &Conjunction) -> Option<Candidate> {
        let useful = (0..conjunction.len()).filter(|index| rank(&conjunction[*index]) < RANKS);
        let candidates = useful.filter_map(|index| {
            let (part, is_done) = self.by_literal(&conjunction[index])?;
            let crowd = (self.crowd)(&part.sought);
            let weight = rank(&conjunction[index]).saturating_mul(1 + crowd);
            let done = if is_done { vec![index] } else { Vec::new() };
            Some((weight, (part, done)))
        });
        let least = candidates.min_by_key(|(weight, _)| *weight);
        least.map(|(_, candidate)| candidate)
    }

    /// The look-up of a literal, and whether nothing of the literal remains.
    fn by_literal(&self, literal: &Literal) -> Option<(Part, bool)> {
        let any = traits::ALL;
        let (need, is_done) = match literal.atom {
            Atom::V4 { ends, kinds, .. } => {
                let (sides, is_done) = sides(ends);
                (sides & (u16::from(kinds) | any & !traits::KINDS), is_done)
            }
            Atom::V6 { ends, .. } => (sides(ends).0, false),
            Atom::Ports { ends, protos, .. } => {
                let (sides, is_done) = sides(ends);
                let others = any & !(traits::ANY_PORTS | traits::NO_PORTS);
                (sides & (others | protos), is_done)
            }
            Atom::Mac { ends, .. } => sides(ends),
            Atom::Vlan(None) | Atom::Flow(_) | Atom::Opaque => return None,
            Atom::Vlan(Some(_)) | Atom::Proto { .. } | Atom::Kinds(_) | Atom::Interface(_) => {
                (any, true)
            }
        };
        let need = match (literal.atom, self.view) {
            // Hardware addresses stand in front of tags.
            (Atom::Interface(_), _) | (Atom::Mac { .. }, View::Plain) => need,
            _ => self.need(need),
        };
        Some((Part::new(Sought::One(literal.atom), need), is_done))
    }
}

/// Which look-ups find a literal about these ends, and whether that decides it.
fn sides(ends: Ends) -> (u16, bool) {
    let other = traits::ALL & !(traits::SRC | traits::DST);
    match ends {
        Ends::Src => (other | traits::SRC, true),
        Ends::Dst => (other | traits::DST, true),
        Ends::Either => (traits::ALL, true),
        Ends::Both => (other | traits::SRC, false),
    }
}

fn port(literal: &Literal) -> Option<(Ends, u16)> {
    match literal.atom {
        Atom::Ports {
            ends, low, high, ..
        } if low == high => Some((ends, low)),
        _ => None,
    }
}

/// The only protocol with ports that a conjunction allows.
fn proto(conjunction: &Conjunction) -> Option<u8> {
    let mut allowed = traits::ANY_PORTS;
    for literal in conjunction.iter().filter(|literal| !literal.negated) {
        match literal.atom {
            Atom::Proto { number, .. } => allowed &= proto_trait(number),
            Atom::Ports { protos, .. } => allowed &= protos,
            _ => {}
        }
    }
    [TCP, UDP, SCTP]
        .into_iter()
        .find(|proto| allowed == proto_trait(*proto))
}

/// Two values that a conjunction fixes at both ends.
struct Fixed<T> {
    values: [T; 2],
    /// Bit 0: the source has the low one; bit 1: the high one.
    ways: u8,
    /// Literals that say so.
    done: Vec<usize>,
}

/// The flow that a conjunction fixes, the ways of it that match, and literals that say so.
fn flow<A: Copy + Ord>(
    conjunction: &Conjunction,
    address: impl Fn(&Literal) -> Option<(Ends, A)>,
) -> Option<(Flow<A>, u8, Vec<usize>)> {
    let proto = proto(conjunction)?;
    let hosts = fixed(conjunction, address)?;
    let ports = fixed(conjunction, port)?;
    // Bit `addresses exchanged + 2 * ports exchanged`.
    let mut ways = 0;
    for (bit, exchanged) in [(1, 0), (2, 1)] {
        if ports.ways & bit != 0 {
            ways |= hosts.ways << (2 * exchanged);
        }
    }
    let flow = Flow::new(proto, hosts.values, ports.values);
    Some((flow, ways, [hosts.done, ports.done].concat()))
}

fn fixed<T: Copy + Ord>(
    conjunction: &Conjunction,
    value: impl Fn(&Literal) -> Option<(Ends, T)>,
) -> Option<Fixed<T>> {
    let mut src: Option<(usize, T)> = None;
    let mut dst: Option<(usize, T)> = None;
    let mut either: Vec<(usize, T)> = Vec::new();
    for (index, literal) in conjunction.iter().enumerate() {
        let Some((ends, value)) = value(literal).filter(|_| !literal.negated) else {
            continue;
        };
        match ends {
            Ends::Src => _ = src.get_or_insert((index, value)),
            Ends::Dst => _ = dst.get_or_insert((index, value)),
            Ends::Either => either.push((index, value)),
            Ends::Both => {}
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
    let ways = match (is_directed, a.1 > b.1) {
        (false, _) => 0b11,
        (true, false) => 0b01,
        (true, true) => 0b10,
    };
    Some(Fixed {
        values: [a.1, b.1],
        ways,
        done: vec![a.0, b.0],
    })
}

/// Where packets of a flow are found, and those that may be its fragments.
fn followed(term: FlowTerm) -> Vec<Part> {
    let part = |sought| Part::new(sought, traits::ALL);
    let key = match term {
        FlowTerm::Datagram(datagram) => {
            return vec![part(Sought::Pair([datagram.src, datagram.dst]))];
        }
        FlowTerm::Key { key, .. } => key,
    };
    match key {
        FlowKey::Ip { low, high, .. } => vec![part(Sought::Pair([low, high]))],
        FlowKey::Mac { .. } | FlowKey::Link { .. } => vec![part(Sought::Link(key))],
        FlowKey::Ports { proto, low, high } => {
            let (hosts, ports) = ([low.addr, high.addr], [low.port, high.port]);
            // Forth and back.
            let mut ways = ALL_WAYS;
            let flow = match hosts {
                [IpAddr::V4(a), IpAddr::V4(b)] => {
                    let hosts = [a.to_bits(), b.to_bits()];
                    let way = |[src, dst]: [usize; 2]| {
                        let ports = (ports[src], ports[dst]);
                        Flow4Key::new(proto_trait(proto), hosts[src], hosts[dst], ports).1
                    };
                    ways = way([0, 1]) | way([1, 0]);
                    Sought::Flow4(Flow::new(proto, hosts, ports))
                }
                [IpAddr::V6(a), IpAddr::V6(b)] => {
                    let hosts = [a.to_bits(), b.to_bits()];
                    Sought::Flow6(Flow::new(proto, hosts, ports))
                }
                // Keys of packets have one family.
                _ => return vec![part(Sought::Pair(hosts))],
            };
            let flow = Part { ways, ..part(flow) };
            vec![flow, part(Sought::Fragments(hosts))]
        }
    }
}
