//! Reads a filled-in expression for look-ups and for [`NeededHosts`](super::hosts::NeededHosts).

use crate::{FilledExpression, Variable, plan::EvaluationPlan};

use super::{
    atom::{Atom, Expr},
    index::{FullRule, flags},
    key::TagView,
    parse::parse,
};

#[derive(Debug)]
pub(super) struct RuleMeaning {
    /// Bits of [`flags`]. [`super::RuleSet`] may add `PARTIAL`.
    pub(super) flags: u8,
    /// The whole rule, without programs.
    pub(super) body: FullRule,
}

pub(super) fn understand(filled: &FilledExpression) -> RuleMeaning {
    // The caller evaluates an expression with own terms: these may have state, and no single
    // program decides.
    let asks = !filled.is_plain();
    let (expr, view) = if asks {
        (read(filled, &filled.plan, false), TagView::Plain)
    } else {
        parse(&filled.pieces[0].text)
    };
    let mut its_flags = if asks { flags::ASK } else { 0 };
    if is_ordered(&expr) {
        its_flags |= flags::ORDERED;
    }
    let mut is_opaque = false;
    expr.atoms(&mut |atom| match atom {
        Atom::Opaque => is_opaque = true,
        Atom::Mac { .. } | Atom::Vlan(_) => its_flags |= flags::ETHERNET,
        _ => {}
    });
    RuleMeaning {
        flags: its_flags,
        body: FullRule {
            expr,
            view,
            programs: Vec::new(),
            is_opaque,
        },
    }
}

/// Whether the evaluation order can change the result for a frame that was cut off: the expression
/// has `or`, `not` or a hardware address.
fn is_ordered(expr: &Expr) -> bool {
    match expr {
        // For `ether host` libpcap loads the source first. If the source was not captured, the
        // frame does not match, whatever its destination.
        Expr::Atom(Atom::Mac { .. }) | Expr::Not(_) | Expr::Or(_) => true,
        Expr::Atom(_) => false,
        Expr::And(list) => list.iter().any(is_ordered),
    }
}

/// Reads an expression with own terms. The caller evaluates it, so the order does not matter.
fn read(filled: &FilledExpression, plan: &EvaluationPlan, is_negated: bool) -> Expr {
    let all = |parts: &[EvaluationPlan]| {
        parts
            .iter()
            .map(|part| read(filled, part, is_negated))
            .collect()
    };
    let atom = match plan {
        EvaluationPlan::Not(inner) => return Expr::Not(Box::new(read(filled, inner, !is_negated))),
        EvaluationPlan::All(parts) => return Expr::And(all(parts)),
        EvaluationPlan::Any(parts) => return Expr::Or(all(parts)),
        // A load beyond the captured bytes makes a piece false and the negated piece true, so
        // look-ups cannot decide a negated piece.
        EvaluationPlan::Piece(index) if !is_negated => {
            let piece = filled.pieces.get(*index);
            match piece.map(|piece| parse(&piece.text)) {
                Some((expr, TagView::Plain)) => return expr,
                _ => Atom::Opaque,
            }
        }
        EvaluationPlan::Term(term) => {
            let terms = &filled.terms;
            match term {
                Variable::Iface => terms.interface.map(Atom::Interface),
                Variable::Flow => terms.flow.map(Atom::Flow),
                _ => terms.community_flow().map(Atom::Flow),
            }
            .unwrap_or(Atom::Opaque)
        }
        EvaluationPlan::Piece(_) | EvaluationPlan::Payload(_) | EvaluationPlan::AnyString(_) => {
            Atom::Opaque
        }
    };
    Expr::Atom(atom)
}
