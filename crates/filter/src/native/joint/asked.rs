//! Which program asks what: what is worth remembering of a packet, and for how long.

use super::{
    decision::{Decisions, Node, NodeId},
    facts::Bits,
    worlds::Rule,
};

/// Who asks what.
pub(super) struct Asked {
    /// How many conditions there are.
    pub(super) conditions: usize,
    /// The conditions that each node leads to.
    pub(super) reach: Vec<Bits>,
    /// For each program, and behind the last: what is worth knowing in front of it, and for how many programs it is.
    pub(super) later: Vec<(Bits, Vec<u32>)>,
}

impl Asked {
    pub(super) fn new(decisions: &Decisions, rules: &[Rule]) -> Self {
        let conditions = decisions.conditions.len();
        let mut reach: Vec<Bits> = Vec::with_capacity(decisions.len());
        // Questions that others follow on. The last ones are asked again as cheaply as they are remembered.
        let mut inner: Vec<Bits> = Vec::with_capacity(decisions.len());
        for number in 0..decisions.len() {
            let id = NodeId(u32::try_from(number).unwrap_or(u32::MAX));
            let (mut all, mut its) = (Bits::none(conditions), Bits::none(conditions));
            if let Node::Test { condition, yes, no } = decisions.get(id) {
                for next in [yes, no] {
                    all.join(&reach[next.0 as usize]);
                    its.join(&inner[next.0 as usize]);
                }
                all.add(condition);
                let is_last = [yes, no]
                    .iter()
                    .all(|next| matches!(decisions.get(*next), Node::Verdict(_)));
                if !is_last {
                    its.add(condition);
                }
            }
            reach.push(all);
            inner.push(its);
        }
        let mut later = vec![(Bits::none(conditions), vec![0; conditions])];
        for rule in rules.iter().rev() {
            let (mut all, mut counts) = later[later.len() - 1].clone();
            let its = &inner[rule.root.0 as usize];
            all.join(its);
            for (id, count) in decisions.conditions.ids().zip(&mut counts) {
                *count += u32::from(its.has(id));
            }
            later.push((all, counts));
        }
        later.reverse();
        Self {
            conditions,
            reach,
            later,
        }
    }
}
