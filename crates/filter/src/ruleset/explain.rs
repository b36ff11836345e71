//! How packets find a rule, for human readers.

use retroscope_packet::LinkType;

use crate::{FilterError, Program};

/// How packets find a rule. On a link type where look-ups cannot find the rule, its program or the
/// caller tests every packet. Look-ups for `$flow` and `$communityId` work on every link type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulePlacement {
    /// Look-ups find the rule. No program is needed.
    LookUp,
    /// Look-ups find the rule. Its program then runs on the found packets.
    LookUpThenProgram,
    /// The rule's program runs on every packet, with the programs of other rules if possible.
    Program,
    /// Look-ups find the rule. The caller then evaluates the filter
    /// ([`Certainty::AskFilter`](super::Certainty::AskFilter)).
    LookUpThenCaller,
    /// The caller evaluates the filter for every packet.
    Caller,
}

/// Result of [`RuleSet::insert`](super::RuleSet::insert).
#[derive(Debug)]
#[must_use]
pub struct InsertedRule {
    /// How packets find the rule.
    pub placement: RulePlacement,
    /// Link types of the set for which the rule needs a program and libpcap rejects the rule.
    /// Packets of these link types do not match the rule.
    pub refused: Vec<(LinkType, FilterError)>,
}

/// Description of a rule in a set.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// How packets find the rule.
    pub placement: RulePlacement,
    /// Look-up keys, each with the number of primitives that are compared after the look-up.
    pub look_ups: Vec<(String, usize)>,
    /// Programs of the rule, by link type.
    pub programs: Vec<(LinkType, Program)>,
}
