//! From a filled-in expression to what the planner works on.

use crate::{FilledExpression, Variable, plan::EvaluationPlan};

use super::{
    atom::{Atom, Expr},
    index::{FullRule, flags},
    key::TagView,
    parse::parse,
};

/// An expression as far as look-ups understand it.
#[derive(Debug)]
pub(super) struct RuleMeaning {
    /// Bits of [`flags`]; `PARTIAL` is the planner's to set.
    pub(super) flags: u8,
    /// Without programs.
    pub(super) body: FullRule,
}

/// Reads an expression.
pub(super) fn understand(filled: &FilledExpression) -> RuleMeaning {
    // Terms of our own have state, and several pieces have no program that decides alone.
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

/// Whether the order in which it is evaluated can make a difference: it holds `or`, `not` or two loads for one question.
fn is_ordered(expr: &Expr) -> bool {
    match expr {
        // The source is loaded first; without it the destination does not count.
        Expr::Atom(Atom::Mac { .. }) | Expr::Not(_) | Expr::Or(_) => true,
        Expr::Atom(_) => false,
        Expr::And(list) => list.iter().any(is_ordered),
    }
}

/// An expression with terms of our own. The caller is asked about it, so that the order makes no difference.
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
        // A load beyond the captured bytes makes a piece false. Then its opposite is true, whatever stands in it.
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
