//! The primitives and own terms that look-ups understand, and boolean expressions.

use std::ops::RangeInclusive;

use crate::{filled::FlowTerm, structure::Joiner};

use super::key::{HeaderKey, TagView, frame_flags, has, kind, proto_flag};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum EndQualifier {
    Src,
    Dst,
    Either,
    Both,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Atom {
    /// `ip`, `ip6`, `arp`, `rarp`: the network protocol is in this set of [`kind`]s.
    Kinds(u8),
    /// `tcp`, `proto 17`, `ip proto 1`: IPv4's protocol, or IPv6's next header, also after one
    /// fragment header.
    Proto { number: u8, kinds: u8 },
    /// `host`, `net` with an IPv4 address: its first `bits` bits, 1 to 32, in packets of these
    /// [`kind`]s.
    V4 {
        ends: EndQualifier,
        addr: u32,
        bits: u8,
        kinds: u8,
    },
    /// `host`, `net` with an IPv6 address: its first `bits` bits, 1 to 128.
    V6 {
        ends: EndQualifier,
        addr: u128,
        bits: u8,
    },
    /// `port`, `portrange`: `low <= high`, in a packet of one of these protocols (bits of
    /// [`frame_flags`]).
    Ports {
        ends: EndQualifier,
        low: u16,
        high: u16,
        protos: u16,
    },
    /// `ether host`.
    Mac { ends: EndQualifier, addr: u64 },
    /// `vlan`, with or without an identifier.
    Vlan(Option<u16>),
    /// `$iface`: the ring-wide number of an interface.
    Interface(u16),
    /// `$flow`, or `$communityId` of a flow with ports. Only the caller can decide whether the term
    /// holds, because the caller has the state with the fragments.
    Flow(FlowTerm),
    /// Any other primitive. Only the rule's program or the caller can decide whether it holds.
    Opaque,
}

/// Primitives joined by `and`, `or`, `not`, in the order of evaluation.
#[derive(Debug, Clone)]
pub(super) enum Expr {
    Atom(Atom),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct AtomInput<'p> {
    pub(super) key: &'p HeaderKey,
    pub(super) data: &'p [u8],
    pub(super) interface: u16,
}

impl Expr {
    pub(super) fn atoms(&self, see: &mut impl FnMut(&Atom)) {
        match self {
            Self::Atom(atom) => see(atom),
            Self::Not(inner) => inner.atoms(see),
            Self::And(list) | Self::Or(list) => list.iter().for_each(|expr| expr.atoms(see)),
        }
    }

    /// Whether a packet matches, as by libpcap's program without optimization; [`Atom::Opaque`] and
    /// [`Atom::Flow`] count as true. Primitives are tested from left to right, as far as needed.
    /// `None` for a load beyond the captured bytes, which rejects the packet.
    pub(super) fn holds(&self, view: TagView, input: &AtomInput<'_>) -> Option<bool> {
        match self {
            Self::Atom(atom) => atom.holds(view, input),
            Self::Not(inner) => inner.holds(view, input).map(|holds| !holds),
            Self::And(list) => settled(list, false, view, input),
            Self::Or(list) => settled(list, true, view, input),
        }
    }

    pub(super) fn joined(self, joiner: Joiner, right: Self) -> Self {
        match (self, joiner) {
            (Self::And(mut list), Joiner::And) => {
                list.push(right);
                Self::And(list)
            }
            (Self::Or(mut list), Joiner::Or) => {
                list.push(right);
                Self::Or(list)
            }
            (left, Joiner::And) => Self::And(vec![left, right]),
            (left, Joiner::Or) => Self::Or(vec![left, right]),
        }
    }

    pub(super) fn negated_if(self, negated: bool) -> Self {
        if negated {
            Self::Not(Box::new(self))
        } else {
            self
        }
    }
}

/// Evaluates expressions in order, until an expression has the value `settles` or is `None`.
fn settled(list: &[Expr], settles: bool, view: TagView, input: &AtomInput<'_>) -> Option<bool> {
    for expr in list {
        if expr.holds(view, input)? == settles {
            return Some(settles);
        }
    }
    Some(!settles)
}

impl Atom {
    /// Whether the primitive holds. `None` if it needs bytes that were not captured.
    /// [`Atom::Opaque`] and [`Atom::Flow`] hold here.
    pub(super) fn holds(&self, view: TagView, input: &AtomInput<'_>) -> Option<bool> {
        let AtomInput { key, data, .. } = *input;
        match *self {
            Self::Kinds(kinds) => Some(key.kind_in(view)? & kinds != 0),
            Self::Proto { number, kinds } => {
                if key.kind_in(view)? & kinds == 0 {
                    return Some(false);
                }
                if !key.has(has::PROTO) {
                    return None;
                }
                if key.proto == number {
                    return Some(true);
                }
                key.has(has::INNER_PROTO)
                    .then_some(key.inner_proto == number)
            }
            Self::V4 {
                ends,
                addr,
                bits,
                kinds,
            } => {
                if key.kind_in(view)? & kinds == 0 {
                    return Some(false);
                }
                let differs = |one: u32| (one ^ addr) >> (32 - u32::from(bits)) != 0;
                ends.hold(
                    || key.has(has::SRC).then(|| !differs(key.src)),
                    || key.has(has::DST).then(|| !differs(key.dst)),
                )
            }
            Self::V6 { ends, addr, bits } => {
                if key.kind_in(view)? & kind::V6 == 0 {
                    return Some(false);
                }
                ends.hold(
                    || key.v6_begins_with(data, false, addr, bits),
                    || key.v6_begins_with(data, true, addr, bits),
                )
            }
            Self::Ports {
                ends,
                low,
                high,
                protos,
            } => ports(key, view, ends, protos, low..=high),
            Self::Mac { ends, addr } => ends.hold(
                || key.mac(data, false).map(|mac| mac == addr),
                || key.mac(data, true).map(|mac| mac == addr),
            ),
            Self::Vlan(None) => Some(key.is_tagged()),
            Self::Vlan(Some(_)) if !key.is_tagged() => Some(false),
            Self::Vlan(Some(id)) => key.has(has::VLAN).then_some(key.vlan == id),
            Self::Interface(interface) => Some(input.interface == interface),
            Self::Flow(_) | Self::Opaque => Some(true),
        }
    }
}

fn ports(
    key: &HeaderKey,
    view: TagView,
    ends: EndQualifier,
    protos: u16,
    range: RangeInclusive<u16>,
) -> Option<bool> {
    if key.kind_in(view)? & (kind::V4 | kind::V6) == 0 {
        return Some(false);
    }
    if !key.has(has::PROTO) {
        return None;
    }
    let is_asked = proto_flag(key.proto) & protos != 0;
    // A later fragment has no ports.
    if !is_asked || key.frame_flags & frame_flags::NO_PORTS != 0 {
        return Some(false);
    }
    ends.hold(
        || {
            key.has(has::SRC_PORT)
                .then(|| range.contains(&key.src_port))
        },
        || {
            key.has(has::DST_PORT)
                .then(|| range.contains(&key.dst_port))
        },
    )
}

impl EndQualifier {
    /// Tests the ends in libpcap's order: the source first.
    fn hold(self, src: impl Fn() -> Option<bool>, dst: impl Fn() -> Option<bool>) -> Option<bool> {
        match self {
            Self::Src => src(),
            Self::Dst => dst(),
            Self::Either => Some(src()? || dst()?),
            Self::Both => Some(src()? && dst()?),
        }
    }
}
