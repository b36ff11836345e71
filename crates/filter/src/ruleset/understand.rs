//! From a filled-in expression to what the planner works on.

use crate::{
    Filled, Variable,
    chain::{Chain, Node},
    filled::Terms,
    structure::Joiner,
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
    let (expr, view) = if is_plain {
        parse(filled.pieces[0].text())
    } else {
        let reader = Reader { filled };
        (reader.chain(&filled.chain, false), View::Plain)
    };
    let mut understood = Understood {
        is_ordered: is_ordered(&expr),
        expr,
        view,
        // Terms of our own have state, and several pieces have no program that decides alone.
        asks: !is_plain,
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
}

impl Reader<'_> {
    fn chain(&self, chain: &Chain, is_negated: bool) -> Expr {
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

    fn node(&self, node: &Node, is_negated: bool) -> Expr {
        match node {
            Node::Group(chain) => self.chain(chain, is_negated),
            Node::Term(term) => Expr::Atom(self.term(*term)),
            Node::Payload(_) => Expr::Atom(Atom::Opaque),
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

    fn term(&self, term: Variable) -> Atom {
        let Terms {
            flow,
            interface,
            community,
        } = &self.filled.terms;
        let followed = match term {
            Variable::Iface => return interface.map_or(Atom::Opaque, Atom::Interface),
            Variable::Flow => *flow,
            Variable::CommunityId => community.as_ref().and_then(|community| community.flow),
            _ => None,
        };
        followed.map_or(Atom::Opaque, Atom::Flow)
    }
}
