//! The control side of rule sets: inserts and removes rules.

use std::{
    borrow::Borrow,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use retroscope_packet::LinkType;

use crate::{
    FilledExpression, Filter, FilterError, FilterMode, FusedPrograms, LinkContext, Program,
    filled::FilterPiece,
};

use super::{
    Explanation, InsertedRule, RulePlacement, RuleReader,
    chunked::NumberPool,
    index::{FullRule, RefCounts, RuleIndex, RuleInfo, flags},
    key::LinkHeaderKind,
    look_ups::{LookUps, RulePart, look_ups},
    matches::RuleId,
    reader::PublishedIndex,
    table::Seeds,
    understand::{RuleMeaning, understand},
    unindexed::UnindexedRules,
};

/// Snap length for libpcap. It does not change which packets match.
const SNAPLEN: u32 = 262_144;

/// Rules to match packets against. The owner changes the set, which publishes versions. A
/// [`RuleReader`], which may be on another thread, takes a new version in [`RuleReader::refresh`].
///
/// ```
/// use retroscope_filter::{Aux, Filter, FilterFrame, Matches, FilterMode, RuleId, RuleSet};
/// use retroscope_packet::LinkType;
///
/// let mut rules = RuleSet::new(FilterMode::Savefile);
/// rules.insert(RuleId(1), &Filter::plain("udp port 53")?)?;
/// rules.insert(RuleId(2), &Filter::plain("net 10.0.0.0/8")?)?;
/// let mut reader = rules.reader();
///
/// let packet = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 1, // IPv4
///     0x04, 0xd2, 0, 53, 0, 8, 0, 0, // UDP
/// ];
/// let frames = [FilterFrame::new(&packet, 28, Aux::default())];
/// let mut matches = Matches::default();
/// reader.match_many(LinkType::RAW, 0, &frames, &mut matches);
/// let rules: Vec<RuleId> = matches.iter().map(|(_, rule, _)| rule).collect();
/// assert_eq!(rules, [RuleId(1), RuleId(2)]);
/// # Ok::<(), retroscope_filter::FilterError>(())
/// ```
pub struct RuleSet {
    mode: FilterMode,
    link_types: Vec<LinkType>,
    /// The writer's tables. Readers get clones.
    work: RuleIndex,
    ref_counts: RefCounts,
    numbers: NumberPool,
    /// Rules and their numbers in the tables. Boxed, so that a growing map moves little memory.
    rules: HashMap<RuleId, (u32, Box<KeptRule>)>,
    /// Programs fused since [`Self::take_fused`] that are still needed.
    fused: Vec<FusedPrograms>,
    shared: Arc<PublishedIndex>,
    /// Old versions that a reader may still use.
    retired: Vec<Arc<RuleIndex>>,
}

/// Link types to which a rule does not apply, and the errors of libpcap.
type RefusedLinks = Vec<(LinkType, FilterError)>;

struct KeptRule {
    /// Text to compile the rule for more link types. `None` if the caller evaluates the filter.
    piece: Option<Arc<FilterPiece>>,
    placement: RulePlacement,
    parts: Vec<RulePart>,
    flags: u8,
    body: Arc<FullRule>,
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleSet")
            .field("rules", &self.rules.len())
            .field("link_types", &self.link_types)
            .finish_non_exhaustive()
    }
}

impl RuleSet {
    /// An empty set.
    #[must_use]
    pub fn new(mode: FilterMode) -> Self {
        let random = RandomState::new();
        let seeds = Seeds(random.hash_one(0), random.hash_one(1));
        let work = RuleIndex::new(mode, seeds);
        let shared = Arc::new(PublishedIndex::new(Arc::new(work.clone())));
        Self {
            mode,
            link_types: Vec::new(),
            work,
            ref_counts: RefCounts::default(),
            numbers: NumberPool::default(),
            rules: HashMap::new(),
            fused: Vec::new(),
            shared,
            retired: Vec::new(),
        }
    }

    /// A reader for a thread of the data path.
    #[must_use]
    pub fn reader(&self) -> RuleReader {
        RuleReader::new(Arc::clone(&self.shared))
    }

    /// Prepares the set for packets of a link type: compiles the rules that need a program for the
    /// link type. Returns such rules that libpcap rejects.
    ///
    /// Rules that look-ups decide match without this call on Ethernet, raw IP, Linux cooked capture
    /// and BSD loopback; rules with tags or hardware addresses, only on Ethernet.
    pub fn add_link_type(&mut self, link_type: LinkType) -> Vec<(RuleId, FilterError)> {
        if self.link_types.contains(&link_type) {
            return Vec::new();
        }
        self.link_types.push(link_type);
        let mut all = Vec::new();
        for (id, (_, kept)) in &self.rules {
            if let Some(piece) = &kept.piece
                && needs_program(kept.placement, kept.flags, link_type)
            {
                all.push((*id, Arc::clone(piece), Arc::clone(&kept.body)));
            }
        }
        let mut refused = Vec::new();
        for (id, piece, body) in all {
            let known = |link_type| body.program(link_type).cloned();
            match self.insert_into_tables(id, &FilledExpression::of_piece(piece), &known) {
                Ok(placed) => {
                    let mut its = placed.refused.into_iter();
                    let here = its.find(|(of, _)| *of == link_type);
                    refused.extend(here.map(|(_, error)| (id, error)));
                }
                Err(error) => refused.push((id, error)),
            }
        }
        self.publish();
        refused.sort_by_key(|(id, _)| *id);
        refused
    }

    /// Adds a rule, or replaces the rule with the same identifier. Readers see the rule after a
    /// [`RuleReader::refresh`] that returns `true`, or after [`RuleReader::refresh_blocking`].
    ///
    /// Compiles the programs that the rule needs for the link types of [`Self::add_link_type`],
    /// except the filter's prepared programs. Where look-ups decide, a rule needs no program.
    ///
    /// # Errors
    /// The first [`FilterError`] if libpcap rejects a rule that needs programs for every link type
    /// of the set. The set then stays as before.
    pub fn insert(&mut self, id: RuleId, filter: &Filter) -> Result<InsertedRule, FilterError> {
        let placed = self.insert_filter(id, filter)?;
        self.publish();
        Ok(placed)
    }

    /// Adds many rules at once; readers see these rules at the same time. Returns the rules that
    /// could not be added, with the errors of [`Self::insert`].
    pub fn insert_many<F: Borrow<Filter>>(
        &mut self,
        rules: impl IntoIterator<Item = (RuleId, F)>,
    ) -> Vec<(RuleId, FilterError)> {
        let mut failed = Vec::new();
        for (id, filter) in rules {
            if let Err(error) = self.insert_filter(id, filter.borrow()) {
                failed.push((id, error));
            }
        }
        self.publish();
        failed
    }

    /// Removes a rule. Returns whether it existed.
    pub fn remove(&mut self, id: RuleId) -> bool {
        let was_there = self.remove_from_tables(id);
        if was_there {
            self.publish();
        }
        was_there
    }

    /// How packets find a rule, and its programs.
    #[must_use]
    pub fn explain(&self, id: RuleId) -> Option<Explanation> {
        let (_, kept) = self.rules.get(&id)?;
        let look_ups = kept.parts.iter();
        let look_ups = look_ups.map(|part| (part.look_up.to_string(), part.compared()));
        Some(Explanation {
            placement: kept.placement,
            look_ups: look_ups.collect(),
            programs: kept.body.programs.clone(),
        })
    }

    /// The programs of a rule, for compilation to machine code.
    pub fn programs(&self, id: RuleId) -> impl Iterator<Item = &Program> {
        let kept = self.rules.get(&id);
        let programs = kept.map_or(&[][..], |(_, kept)| &kept.body.programs);
        programs.iter().map(|(_, program)| program)
    }

    /// Returns the programs that were fused since the last call because they see the same packets.
    /// The caller should compile these programs after [`Self::programs`]. Until then each program
    /// runs alone.
    pub fn take_fused(&mut self) -> Vec<FusedPrograms> {
        std::mem::take(&mut self.fused)
    }

    /// Bytes of memory in tables, without group entries, expressions, programs and old versions.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.work.bytes()
    }

    fn insert_filter(&mut self, id: RuleId, filter: &Filter) -> Result<InsertedRule, FilterError> {
        let mode = self.mode;
        let known = |link_type| filter.program(link_type, mode).cloned();
        self.insert_into_tables(id, filter.filled(), &known)
    }

    /// `known` returns programs that need not be compiled.
    fn insert_into_tables(
        &mut self,
        id: RuleId,
        filled: &FilledExpression,
        known: &dyn Fn(LinkType) -> Option<Program>,
    ) -> Result<InsertedRule, FilterError> {
        let (kept, refused) = self.prepare(filled, known)?;
        self.remove_from_tables(id);
        let rule = self.numbers.take();
        let needs_body = kept.flags & (flags::PARTIAL | flags::ORDERED) != 0;
        *self.work.rules.get_mut(rule) = RuleInfo {
            id: id.0,
            flags: kept.flags,
            body: needs_body.then(|| Arc::clone(&kept.body)),
        };
        for part in &kept.parts {
            self.work.add(&mut self.ref_counts, rule, part);
        }
        let placement = kept.placement;
        self.add_unindexed(rule, &kept);
        if kept.needs_parsing() {
            self.work.parsed_rules += 1;
        }
        self.rules.insert(id, (rule, Box::new(kept)));
        Ok(InsertedRule { placement, refused })
    }

    /// If look-ups cannot find a rule in packets of some link type, the rule is tested on each of
    /// these packets.
    fn add_unindexed(&mut self, rule: u32, kept: &KeptRule) {
        match kept.placement {
            RulePlacement::Caller => Arc::make_mut(&mut self.work.asked_always).push(rule),
            RulePlacement::LookUpThenCaller if !kept.is_flow_only() => {
                Arc::make_mut(&mut self.work.asked_elsewhere).push(rule);
            }
            RulePlacement::LookUpThenCaller => {}
            RulePlacement::LookUp | RulePlacement::LookUpThenProgram | RulePlacement::Program => {
                for (link_type, program) in &kept.body.programs {
                    if !sees_all(kept.placement, kept.flags, *link_type) {
                        continue;
                    }
                    let unindexed = Arc::make_mut(&mut self.work.unindexed);
                    let at = unindexed.iter().position(|one| one.link_type == *link_type);
                    let at = at.unwrap_or_else(|| {
                        unindexed.push(UnindexedRules::new(*link_type));
                        unindexed.len() - 1
                    });
                    unindexed[at].add(rule, program.clone());
                }
            }
        }
    }

    /// The link types of `link_types` for which libpcap may take more than a millisecond to compile
    /// the rule. See [`Filter::prepares_quickly`].
    #[must_use]
    pub fn slow_link_types(&self, filter: &Filter, link_types: &[LinkType]) -> Vec<LinkType> {
        let is_slow = |link_type: &LinkType| !filter.prepares_quickly(self.context(*link_type));
        let mut slow: Vec<LinkType> = link_types.iter().copied().filter(is_slow).collect();
        if !slow.is_empty() {
            let (meaning, _, placement) = self.plan(filter.filled());
            let its_flags = meaning.flags;
            slow.retain(|link_type| {
                its_flags & flags::ASK != 0 || needs_program(placement, its_flags, *link_type)
            });
        }
        slow
    }

    fn context(&self, link_type: LinkType) -> LinkContext {
        LinkContext::new(link_type, SNAPLEN, self.mode)
    }

    /// Does not publish. Returns whether the rule existed.
    fn remove_from_tables(&mut self, id: RuleId) -> bool {
        let Some((rule, kept)) = self.rules.remove(&id) else {
            return false;
        };
        for part in &kept.parts {
            self.work.remove(&mut self.ref_counts, rule, &part.look_up);
        }
        if kept.needs_parsing() {
            self.work.parsed_rules -= 1;
        }
        if kept.placement == RulePlacement::Caller {
            Arc::make_mut(&mut self.work.asked_always).retain(|one| *one != rule);
        }
        if kept.placement == RulePlacement::LookUpThenCaller && !kept.is_flow_only() {
            Arc::make_mut(&mut self.work.asked_elsewhere).retain(|one| *one != rule);
        }
        if self
            .work
            .unindexed
            .iter()
            .any(|unindexed| unindexed.has(rule))
        {
            for unindexed in Arc::make_mut(&mut self.work.unindexed) {
                unindexed.remove(rule);
            }
        }
        *self.work.rules.get_mut(rule) = RuleInfo::default();
        self.numbers.give_back(rule);
        true
    }

    fn plan(&self, filled: &FilledExpression) -> (RuleMeaning, LookUps, RulePlacement) {
        let mut meaning = understand(filled);
        let body = &meaning.body;
        let look_ups = look_ups(&body.expr, body.view, &|look_up| {
            self.work.entries_under(look_up)
        });
        let asks = meaning.flags & flags::ASK != 0;
        let placement = match (look_ups.parts.is_some(), asks) {
            (true, true) => RulePlacement::LookUpThenCaller,
            (false, true) => RulePlacement::Caller,
            (true, false) if body.is_opaque => RulePlacement::LookUpThenProgram,
            (true, false) => RulePlacement::LookUp,
            (false, false) => RulePlacement::Program,
        };
        if look_ups.is_partial {
            meaning.flags |= flags::PARTIAL;
        }
        (meaning, look_ups, placement)
    }

    fn prepare(
        &self,
        filled: &FilledExpression,
        known: &dyn Fn(LinkType) -> Option<Program>,
    ) -> Result<(KeptRule, RefusedLinks), FilterError> {
        let (meaning, look_ups, placement) = self.plan(filled);
        let RuleMeaning {
            flags: its_flags,
            mut body,
        } = meaning;
        let mut parts = look_ups.parts.unwrap_or_default();
        let (mut piece, mut refused) = (None, Vec::new());
        if its_flags & flags::ASK == 0 {
            let only = &filled.pieces[0];
            (body.programs, refused) = self.programs_of(only, known, placement, its_flags)?;
            piece = Some(Arc::clone(only));
        } else {
            // The caller evaluates the filter, so nothing is compared after the look-up.
            parts.iter_mut().for_each(|part| part.remainder = None);
        }
        let kept = KeptRule {
            piece,
            placement,
            parts,
            flags: its_flags,
            body: Arc::new(body),
        };
        Ok((kept, refused))
    }

    /// Programs that a rule needs or has, and link types to which the rule does not apply.
    fn programs_of(
        &self,
        piece: &FilterPiece,
        known: &dyn Fn(LinkType) -> Option<Program>,
        placement: RulePlacement,
        its_flags: u8,
    ) -> Result<(Vec<(LinkType, Program)>, RefusedLinks), FilterError> {
        let (mut programs, mut refused) = (Vec::new(), Vec::new());
        for link_type in &self.link_types {
            let program = match known(*link_type) {
                Some(program) => Ok(program),
                None if needs_program(placement, its_flags, *link_type) => {
                    piece.compile(self.context(*link_type))
                }
                None => continue,
            };
            match program {
                Ok(program) => programs.push((*link_type, program)),
                Err(error) => refused.push((*link_type, error)),
            }
        }
        if refused.len() == self.link_types.len() && !refused.is_empty() {
            return Err(refused.remove(0).1);
        }
        Ok((programs, refused))
    }

    fn publish(&mut self) {
        if self
            .work
            .unindexed
            .iter()
            .any(|unindexed| unindexed.is_changed)
        {
            let unindexed = Arc::make_mut(&mut self.work.unindexed);
            let changed = unindexed
                .iter_mut()
                .filter(|unindexed| unindexed.is_changed);
            let new = changed.flat_map(UnindexedRules::arrange);
            self.fused.extend(new);
            self.fused.retain(|fused| !fused.is_given_up());
            unindexed.retain(|unindexed| !unindexed.is_empty());
        }
        let before = self.shared.publish(Arc::new(self.work.clone()));
        self.retired.push(before);
        // If only this list holds a version, no reader uses or can get that version.
        self.retired
            .retain(|version| Arc::strong_count(version) > 1);
    }
}

/// Whether a rule that the set evaluates needs its program for packets of a link type.
fn needs_program(placement: RulePlacement, its_flags: u8, link_type: LinkType) -> bool {
    placement == RulePlacement::LookUpThenProgram || sees_all(placement, its_flags, link_type)
}

/// Whether look-ups cannot find a rule in packets of a link type.
fn sees_all(placement: RulePlacement, its_flags: u8, link_type: LinkType) -> bool {
    placement == RulePlacement::Program
        || LinkHeaderKind::of(link_type, FilterMode::Savefile).is_none()
        || (its_flags & flags::ETHERNET != 0 && link_type != LinkType::ETHERNET)
}

impl KeptRule {
    /// Whether all look-ups belong to `$flow` or `$communityId`, and thus apply to every link type.
    fn is_flow_only(&self) -> bool {
        self.parts.iter().all(RulePart::is_of_term)
    }

    /// Whether the rule has a look-up for `$flow` or `$communityId`: see
    /// [`RuleIndex::parsed_rules`].
    fn needs_parsing(&self) -> bool {
        self.flags & flags::ASK != 0 && self.parts.iter().any(RulePart::is_of_term)
    }
}
