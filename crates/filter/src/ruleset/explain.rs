//! What became of a rule, for people.

use retroscope_packet::LinkType;

use crate::{FilterError, Program};

/// How packets find a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulePlacement {
    /// By look-ups alone.
    LookedUp,
    /// By look-ups, and then its program is run, on those packets only.
    Narrowed,
    /// Its program is run on every packet, together with those of others where it can be joined.
    Compiled,
    /// By look-ups, and then the caller is asked ([`Certainty::AskFilter`](super::Certainty::AskFilter)).
    NarrowedAsked,
    /// The caller is asked about every packet.
    Asked,
}

/// Where [`RuleSet::insert`](super::RuleSet::insert) put a rule.
#[derive(Debug)]
#[must_use]
pub struct InsertedRule {
    /// How packets find it.
    pub placement: RulePlacement,
    /// Link types of the set whose packets it does not match, because libpcap refuses it there.
    pub refused: Vec<(LinkType, FilterError)>,
}

/// What became of a rule.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// How packets find it.
    pub placement: RulePlacement,
    /// What it is looked up by, and how many primitives are compared after that.
    pub look_ups: Vec<(String, usize)>,
    /// Its programs, by link type, where it has any.
    pub programs: Vec<(LinkType, Program)>,
}
