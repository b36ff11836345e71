//! The trigger rules: which packets are hits, and of which rules.
//!
//! A few short rules run directly on up to 64 packets together, as separate programs or joined into
//! one function (`FEW`, `FEW_TOGETHER`). More or longer rules are looked up in a rule set, where
//! their number makes little difference. Other threads may change the set at any time.

#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use retroscope_filter::{
    Certainty, Filter, FilterError, FilterFrame, FilterMode, FusedPrograms, Matches, RulePlacement,
    RuleReader, Template,
};
use retroscope_packet::LinkType;

use crate::{
    analysis::{
        native::NativeCode,
        prepared::{LinkTypes, PreparedFilter, context, mode},
        rules::Rules,
        shard::KnownRule,
    },
    control::{lock, rule_scan::RuleScan},
};

/// Up to this number, rules may run directly even without a joined function.
const FEW: usize = 4;
/// Maximum number of rules that run as one function. For 16 rules of ports and hosts, one function
/// is quicker than a rule set.
const FEW_TOGETHER: usize = 16;
/// Minimum number of rules that run as one function.
const TOGETHER_MIN: usize = 2;
/// Maximum length of the text of a rule that may run without the rule set, bytes. Longer texts are
/// usually lists, which libpcap takes long to compile.
const SHORT_TEXT_BYTES: usize = 512;
/// Maximum number of bytes of all texts together, if more than [`FEW`] rules run as one function. A
/// list of addresses is one look-up in a rule set, but many comparisons in a function.
const TOGETHER_TEXT_BYTES: usize = 512;

/// Boxed rules, which move as pointers: an inserter may receive thousands at once.
pub(crate) type BoxedRules = Vec<Box<Rule>>;

#[derive(Debug, Clone)]
pub(crate) struct Rule {
    /// Permanent number of the rule, in the rule set and in the director.
    pub(crate) number: usize,
    pub(crate) text: String,
    pub(crate) prepared: PreparedFilter,
    /// Number of hits of the rule while the rule was enabled. The analyzer counts, any thread may
    /// read.
    pub(crate) hits: Arc<AtomicU64>,
    pub(crate) is_enabled: bool,
    /// The scan of the past for the rule.
    pub(crate) scan: Option<Arc<RuleScan>>,
}

impl Rule {
    pub(crate) fn known(&self) -> KnownRule {
        KnownRule {
            name: self.text.clone(),
            is_enabled: self.is_enabled,
            hits: Some(Arc::clone(&self.hits)),
            dumps_max: None,
        }
    }
}

/// A change of rules while the recorder runs.
#[derive(Debug, Clone)]
pub(crate) enum RuleChange {
    /// A new rule, with a number above all earlier numbers. The rule set has it already. The
    /// template is the rule's own dump expression, if any.
    Add(Box<Rule>, Option<Arc<Template>>),
    /// Removes a rule by number. The rule leaves the rule set afterwards.
    Remove(usize),
    /// By number: whether matches of the rule are hits.
    Enable(usize, bool),
    /// The new dump expression of rules that have no separate dump expression.
    Default(Arc<Template>),
}

/// A packet that matches a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleHit {
    /// Index of the packet among the frames that were given to [`Triggers::find`].
    pub(crate) frame: usize,
    /// Index of the rule in [`Triggers`], which may differ from its number.
    pub(crate) rule: usize,
}

/// The trigger rules of one shard.
#[derive(Debug)]
pub(crate) struct Triggers {
    /// Sorted by number.
    rules: BoxedRules,
    at_start: usize,
    /// Whether some rules may be disabled.
    any_disabled: bool,
    /// Whether some rules may have a message for the user.
    may_have_notices: bool,
    pub(crate) shared: SharedRules,
    reader: RuleReader,
    matches: Matches,
    /// Hits of the last call of [`Self::find`], in the order of frames, then rules.
    pub(crate) hits: Vec<RuleHit>,
    /// Whether all rules run without the rule set, for link types that all rules know.
    is_direct: bool,
    /// For some link types: the programs of all rules as one function. Bit `n` of its result is for
    /// the rule with index `n`.
    joints: Vec<(LinkType, FusedPrograms)>,
    /// The result of the joined function for each frame.
    results: Box<[u64; FusedPrograms::MANY]>,
    is_offline: bool,
}

/// A rule that matches nothing of a link type, and the reason.
type RefusedRule = (u64, LinkType, FilterError);

/// A rule that the set alone cannot decide.
type UndecidedRule = (u64, Filter, FilterMode);

/// The rule set, for threads that change rules.
#[derive(Debug, Clone)]
pub(crate) struct SharedRules {
    rules: Arc<Mutex<Rules>>,
    asked: Arc<Mutex<Vec<UndecidedRule>>>,
    /// For late link types: rules that match nothing of them, and the reason.
    refused: Arc<Mutex<Vec<RefusedRule>>>,
}

impl SharedRules {
    fn new(rules: Rules, asked: Vec<UndecidedRule>) -> Self {
        Self {
            rules: Arc::new(Mutex::new(rules)),
            asked: Arc::new(Mutex::new(asked)),
            refused: Arc::default(),
        }
    }

    /// The link types that rules are ready for.
    pub(crate) fn link_types(&self) -> Vec<LinkType> {
        lock(&self.rules).link_types().collect()
    }

    /// Adds a rule for the known link types. A shard ignores matches of the rule until it has
    /// applied [`RuleChange::Add`]. Call [`Self::join`] afterwards.
    pub(crate) fn add(
        &self,
        number: usize,
        prepared: &mut PreparedFilter,
    ) -> Result<(), FilterError> {
        let id = number as u64;
        let mut rules = lock(&self.rules);
        let known: Vec<LinkType> = rules.link_types().collect();
        let link_types = LinkTypes::new(&known, &Vec::new);
        let placement = insert(&mut rules, id, prepared, &link_types)?;
        if is_asked(placement) {
            lock(&self.asked).push((id, prepared.filter.clone(), prepared.mode));
        }
        Ok(())
    }

    pub(crate) fn remove(&self, numbers: &[usize]) {
        let ids: HashSet<u64> = numbers.iter().map(|number| *number as u64).collect();
        lock(&self.asked).retain(|(asked, ..)| !ids.contains(asked));
        lock(&self.rules).remove_all(&ids);
    }

    /// Submits for compilation the functions into which the set has newly joined several rules.
    pub(crate) fn join(&self) {
        lock(&self.rules).join();
    }

    /// Call this before the first packet of a link type is stored. May compile with libpcap, for
    /// milliseconds.
    pub(crate) fn add_link_type(&self, link_type: LinkType) {
        let mut rules = lock(&self.rules);
        if rules.knows(link_type) {
            return;
        }
        let refused = rules.add_link_type(link_type);
        drop(rules);
        for (_, filter, mode) in &*lock(&self.asked) {
            // Ignored: each shard's own copy of the filter later finds the program, or the error.
            let _ = filter.clone().prepare(context(link_type, *mode));
        }
        let refused = refused
            .into_iter()
            .map(|(rule, error)| (rule, link_type, error));
        lock(&self.refused).extend(refused);
    }
}

impl Triggers {
    /// Checks and compiles `texts`.
    pub(crate) fn new(
        texts: &[String],
        link_types: &LinkTypes<'_>,
        offline: bool,
        native: &Arc<NativeCode>,
    ) -> Result<Self, FilterError> {
        let mut rules = Rules::new(mode(offline), Arc::clone(native));
        for link_type in link_types.known {
            rules.add_link_type(*link_type);
        }
        let bytes: usize = texts.iter().map(String::len).sum();
        let may_be_direct = if texts.len() <= FEW {
            texts.iter().all(|text| text.len() <= SHORT_TEXT_BYTES)
        } else {
            texts.len() <= FEW_TOGETHER && bytes <= TOGETHER_TEXT_BYTES
        };
        let mut made = Vec::with_capacity(texts.len());
        let mut asked = Vec::new();
        for (id, text) in (0..).zip(texts) {
            let mut prepared = PreparedFilter::new(Filter::resolved(text)?, mode(offline));
            if may_be_direct {
                prepared.check(link_types)?;
            }
            let placement = insert(&mut rules, id, &mut prepared, link_types)?;
            if is_asked(placement) {
                if !may_be_direct {
                    prepared.check(link_types)?;
                }
                asked.push((id, prepared.filter.clone(), prepared.mode));
            }
            prepared.seal(link_types);
            prepared.compile(native);
            made.push(Box::new(Rule {
                number: made.len(),
                text: text.clone(),
                prepared,
                hits: Arc::default(),
                is_enabled: true,
                scan: None,
            }));
        }
        let known = link_types.known;
        let joints: Vec<(LinkType, FusedPrograms)> = if may_be_direct && made.len() >= TOGETHER_MIN
        {
            let joints = known.iter();
            joints
                .filter_map(|link_type| Some((*link_type, joint(&made, *link_type)?)))
                .collect()
        } else {
            Vec::new()
        };
        let is_joined = may_be_direct && !joints.is_empty() && joints.len() == known.len();
        if is_joined {
            joints
                .iter()
                .for_each(|(_, joint)| native.submit_fused(joint));
        }
        // Without machine code, the joined rules would run one by one.
        let is_native = || joints.iter().all(|(_, joint)| joint.native().is_some());
        let is_direct = may_be_direct && (made.len() <= FEW || (is_joined && is_native()));
        if !is_direct {
            rules.join();
        }
        Ok(Self {
            joints,
            results: Box::new([0; FusedPrograms::MANY]),
            at_start: made.len(),
            any_disabled: false,
            may_have_notices: true,
            rules: made,
            reader: rules.reader(),
            shared: SharedRules::new(rules, asked),
            matches: Matches::default(),
            hits: Vec::new(),
            is_direct,
            is_offline: offline,
        })
    }

    /// Number of rules at the start. They are numbered from 0.
    pub(crate) fn at_start(&self) -> usize {
        self.at_start
    }

    /// The rules, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|rule| &**rule)
    }

    /// Changes the rules. Returns the removed rules, because dropping thousands takes milliseconds.
    pub(crate) fn change(&mut self, changes: Vec<RuleChange>) -> BoxedRules {
        // Catch up now: a user who got the answer that a rule exists relies on the rule from the
        // next packet on. The next refresh might find the pointer being replaced and skip the
        // change.
        self.reader.refresh_blocking();
        let (mut removed, mut may_be_enabled) = (Vec::new(), false);
        for change in changes {
            match change {
                RuleChange::Add(rule, _) => {
                    self.may_have_notices |= !rule.prepared.refused.is_empty();
                    // New numbers are larger than all before, so the rules stay sorted.
                    self.any_disabled |= !rule.is_enabled;
                    self.rules.push(rule);
                }
                RuleChange::Remove(number) => removed.push(number),
                RuleChange::Enable(number, is_enabled) => {
                    if let Some(place) = self.place(number) {
                        self.rules[place].is_enabled = is_enabled;
                    }
                    may_be_enabled |= is_enabled;
                    self.any_disabled |= !is_enabled;
                }
                RuleChange::Default(_) => {}
            }
        }
        removed.sort_unstable();
        let mut removed = removed.into_iter().peekable();
        let is_removed = |rule: &mut Box<Rule>| {
            while removed.next_if(|number| *number < rule.number).is_some() {}
            removed.next_if_eq(&rule.number).is_some()
        };
        let gone: BoxedRules = self.rules.extract_if(.., is_removed).collect();
        if self.any_disabled && (may_be_enabled || !gone.is_empty()) {
            self.any_disabled = self.rules.iter().any(|rule| !rule.is_enabled);
        }
        // Drop the joined functions: their bits are the old indexes of rules.
        self.joints.clear();
        let is_short = |rule: &Rule| rule.text.len() <= SHORT_TEXT_BYTES;
        self.is_direct &= self.rules.len() <= FEW && self.iter().all(is_short);
        gone
    }

    /// Index of the rule with this number.
    fn place(&self, number: usize) -> Option<usize> {
        // Fast path: the number is often the index.
        if self
            .rules
            .get(number)
            .is_some_and(|rule| rule.number == number)
        {
            return Some(number);
        }
        let found = self.rules.binary_search_by_key(&number, |rule| rule.number);
        found.ok()
    }

    /// A copy of the rules for the shard of another thread. Both copies see changes of the rule
    /// set.
    pub(crate) fn sibling(&self) -> Self {
        Self {
            rules: self.rules.clone(),
            shared: self.shared.clone(),
            reader: lock(&self.shared.rules).reader(),
            matches: Matches::default(),
            hits: Vec::new(),
            is_direct: self.is_direct,
            joints: self.joints.clone(),
            at_start: self.at_start,
            any_disabled: self.any_disabled,
            may_have_notices: true,
            results: self.results.clone(),
            is_offline: self.is_offline,
        }
    }

    /// Applies changes of the rule set. Live it never waits; from files it applies everything
    /// published, because hits must not depend on timing.
    pub(crate) fn refresh(&mut self) {
        if self.is_offline {
            self.reader.refresh_blocking();
        } else {
            self.reader.refresh();
        }
    }

    /// Finds the hits among at most 64 frames of one interface. Bit `n` of the result is set for a
    /// hit on frame `n`.
    pub(crate) fn find(
        &mut self,
        link_type: LinkType,
        interface: u16,
        frames: &[FilterFrame<'_>],
    ) -> u64 {
        self.hits.clear();
        let any = if self.is_direct && self.rules.iter().all(|rule| rule.prepared.knows(link_type))
        {
            self.run(link_type, interface, frames)
        } else {
            self.look_up(link_type, interface, frames)
        };
        if !self.any_disabled {
            return any;
        }
        self.hits.retain(|hit| self.rules[hit.rule].is_enabled);
        self.hits.iter().fold(0, |any, hit| any | 1 << hit.frame)
    }

    fn run(&mut self, link_type: LinkType, interface: u16, frames: &[FilterFrame<'_>]) -> u64 {
        if let Some((_, joint)) = self.joints.iter().find(|(of, _)| *of == link_type) {
            return run_joint(joint, frames, &mut self.results, &mut self.hits);
        }
        let mut sets = [0; FEW_TOGETHER];
        let mut any = 0;
        for (set, rule) in sets.iter_mut().zip(&self.rules) {
            *set = rule.prepared.matches_many(link_type, interface, frames);
            any |= *set;
        }
        let mut left: u64 = any;
        while left != 0 {
            let frame = left.trailing_zeros() as usize;
            left &= left - 1;
            let its = sets
                .iter()
                .enumerate()
                .filter(|(_, set)| **set >> frame & 1 == 1);
            self.hits
                .extend(its.map(|(rule, _)| RuleHit { frame, rule }));
        }
        any
    }

    fn look_up(&mut self, link_type: LinkType, interface: u16, frames: &[FilterFrame<'_>]) -> u64 {
        let mut any = 0;
        self.reader
            .match_many(link_type, interface, frames, &mut self.matches);
        for (frame, id, sure) in self.matches.iter() {
            let number = usize::try_from(id.0).ok();
            let Some(place) = number.and_then(|number| self.place(number)) else {
                continue;
            };
            let rule = &mut self.rules[place];
            let is_hit = sure == Certainty::Certain || {
                self.may_have_notices |= rule.prepared.prepare(link_type);
                let one = std::slice::from_ref(&frames[frame]);
                rule.prepared.matches_many(link_type, interface, one) == 1
            };
            if is_hit {
                any |= 1 << frame;
                self.hits.push(RuleHit { frame, rule: place });
            }
        }
        any
    }

    pub(crate) fn number(&self, hit: &RuleHit) -> usize {
        self.rules[hit.rule].number
    }

    /// Takes messages about link types that rules do not apply to. Cheap without news, because
    /// inserters call this often.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        for (rule, link_type, error) in lock(&self.shared.refused).drain(..) {
            let number = usize::try_from(rule).ok();
            if let Some(place) = number.and_then(|number| self.place(number)) {
                self.rules[place].prepared.refuse(link_type, &error);
                self.may_have_notices = true;
            }
        }
        if !std::mem::take(&mut self.may_have_notices) {
            return Vec::new();
        }
        let of_rule = |rule: &mut Box<Rule>| rule.prepared.take_notices("trigger");
        self.rules.iter_mut().flat_map(of_rule).collect()
    }
}

/// Joins the programs of all rules for a link type into one function, in the order of rules;
/// `None`: some rule has no program.
fn joint(rules: &[Box<Rule>], link_type: LinkType) -> Option<FusedPrograms> {
    let programs = rules
        .iter()
        .map(|rule| rule.prepared.program(link_type).cloned())
        .collect::<Option<_>>()?;
    Some(FusedPrograms::new(link_type, programs))
}

/// Runs the rules that are joined into one function, and appends their hits to `hits`. Returns the
/// frames with a hit: bit `n` is for frame `n`.
fn run_joint(
    joint: &FusedPrograms,
    frames: &[FilterFrame<'_>],
    results: &mut [u64; FusedPrograms::MANY],
    hits: &mut Vec<RuleHit>,
) -> u64 {
    let mut any = 0;
    if joint.run_many(frames, results) == 0 {
        return any;
    }
    for (frame, result) in results[..frames.len()].iter().enumerate() {
        let mut left = *result;
        any |= u64::from(left != 0) << frame;
        while left != 0 {
            let rule = left.trailing_zeros() as usize;
            left &= left - 1;
            hits.push(RuleHit { frame, rule });
        }
    }
    any
}

/// Whether the rule's own filter must decide about packets, alone or after a look-up in the set.
fn is_asked(placement: RulePlacement) -> bool {
    matches!(
        placement,
        RulePlacement::Caller | RulePlacement::LookUpThenCaller
    )
}

/// Adds a rule to the set. If that fails, tries again with the link types that appear later in the
/// files.
fn insert(
    rules: &mut Rules,
    id: u64,
    prepared: &mut PreparedFilter,
    link_types: &LinkTypes<'_>,
) -> Result<RulePlacement, FilterError> {
    let placed = rules.insert(id, &prepared.filter).or_else(|error| {
        for link_type in (link_types.more)() {
            rules.add_link_type(link_type);
        }
        rules.insert(id, &prepared.filter).map_err(|_| error)
    })?;
    for (link_type, error) in placed.refused {
        prepared.refuse(link_type, &error);
    }
    Ok(placed.placement)
}
