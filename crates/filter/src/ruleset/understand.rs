//! From a filled-in expression to what the planner works on.

use crate::{
    Filled, Variable,
    chain::{Chain, Joiner, Node},
    filled::Terms,
};

use super::{
    atom::{Atom, Expr},
    key::View,
    parse::parse,
};

/// An expression as far as look-ups understand it.
#[derive(Debug)]
pub(super) struct Understood {
    pub(super) expr: Expr,
    pub(super) view: View,
    /// Whether finding the rule does not decide, so that the caller must evaluate the filter.
    pub(super) asks: bool,
    /// Whether a part of it is not understood.
    pub(super) is_opaque: bool,
    /// Whether it needs Ethernet addresses or tags.
    pub(super) needs_ethernet: bool,
    /// Whether the order in which it is evaluated can make a difference: it holds `or`, `not` or two loads for one question.
    pub(super) is_ordered: bool,
}

/// Reads an expression.
pub(super) fn understand(filled: &Filled) -> Understood {
    let is_plain =
        matches!(filled.chain.operands.as_slice(), [only] if only.node == Node::Piece(0));
    let (expr, view, asks) = if is_plain {
        let (expr, view) = parse(filled.pieces[0].text());
        (expr, view, false)
    } else {
        let mut reader = Reader {
            filled,
            asks: false,
        };
        let expr = reader.chain(&filled.chain, false);
        (expr, View::Plain, reader.asks)
    };
    let mut understood = Understood {
        is_ordered: is_ordered(&expr),
        expr,
        view,
        asks,
        is_opaque: false,
        needs_ethernet: false,
    };
    let (mut is_opaque, mut needs_ethernet) = (false, false);
    understood.expr.atoms(&mut |atom| {
        is_opaque |= matches!(atom, Atom::Opaque);
        needs_ethernet |= matches!(atom, Atom::Mac { .. } | Atom::Vlan(_));
    });
    understood.is_opaque = is_opaque;
    understood.needs_ethernet = needs_ethernet;
    // Several pieces have no program that decides alone.
    understood.asks |= is_opaque && !is_plain;
    understood
}

fn is_ordered(expr: &Expr) -> bool {
    match expr {
        // The source is loaded first; without it the destination does not count.
        Expr::Atom(Atom::Mac { .. }) | Expr::Not(_) | Expr::Or(_) => true,
        Expr::Atom(_) => false,
        Expr::And(list) => list.iter().any(is_ordered),
    }
}

struct Reader<'f> {
    filled: &'f Filled,
    asks: bool,
}

impl Reader<'_> {
    fn chain(&mut self, chain: &Chain, is_negated: bool) -> Expr {
        let mut expr: Option<Expr> = None;
        for operand in &chain.operands {
            let node = self.node(&operand.node, is_negated != operand.negated);
            let node = node.negated_if(operand.negated);
            expr = Some(match (expr, operand.joiner) {
                (None, _) => node,
                (Some(left), Joiner::And) => left.and(node),
                (Some(left), Joiner::Or) => left.or(node),
            });
        }
        expr.unwrap_or(Expr::Atom(Atom::Opaque))
    }

    fn node(&mut self, node: &Node, is_negated: bool) -> Expr {
        match node {
            Node::Group(chain) => self.chain(chain, is_negated),
            Node::Term(term) => Expr::Atom(self.term(*term)),
            Node::Payload(_) => {
                self.asks = true;
                Expr::Atom(Atom::Opaque)
            }
            // A load beyond the captured bytes makes a piece false. Then its opposite is true, whatever stands in it.
            Node::Piece(_) if is_negated => Expr::Atom(Atom::Opaque),
            Node::Piece(index) => match self.filled.pieces.get(*index) {
                Some(piece) => match parse(piece.text()) {
                    (expr, View::Plain) => expr,
                    (_, View::Tagged) => Expr::Atom(Atom::Opaque),
                },
                None => Expr::Atom(Atom::Opaque),
            },
        }
    }

    fn term(&mut self, term: Variable) -> Atom {
        let Terms {
            flow,
            interface,
            community,
        } = &self.filled.terms;
        let of_community = || community.as_ref().and_then(|community| community.flow);
        match (term, interface) {
            (Variable::Iface, Some(interface)) => return Atom::Interface(*interface),
            (Variable::Flow, _) => self.asks |= flow.is_some(),
            (Variable::CommunityId, _) => {}
            _ => return Atom::Opaque,
        }
        self.asks = true;
        let followed = if term == Variable::Flow {
            *flow
        } else {
            of_community()
        };
        followed.map_or(Atom::Opaque, Atom::Flow)
    }
}
