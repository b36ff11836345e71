//! The control side: rules in and out.

use std::{
    borrow::Borrow,
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use retroscope_packet::LinkType;

use crate::{Filled, Filter, FilterError, Joint, LinkContext, Mode, Program, filled::Piece};

use super::{
    Explanation, Placed, Placement, RuleReader,
    chunked::Numbers,
    index::{Body, Books, Index, RuleInfo, flags},
    key::Shape,
    look_ups::{LookUps, Part, look_ups},
    matches::RuleId,
    reader::Published,
    residue::Residue,
    table::Seeds,
    understand::{Understood, understand},
};

/// Snap length told to libpcap; it makes no difference to what matches.
const SNAPLEN: u32 = 262_144;

/// Rules to match packets against; see [the module](crate::RuleSet). One thread changes it; [`RuleReader`]s on other threads
/// use what it published last.
///
/// ```
/// use retroscope_filter::{Aux, Filter, Frame, Matches, Mode, RuleId, RuleSet};
/// use retroscope_packet::LinkType;
///
/// let mut rules = RuleSet::new(Mode::Savefile);
/// rules.insert(RuleId(1), &Filter::plain("udp port 53")?)?;
/// rules.insert(RuleId(2), &Filter::plain("net 10.0.0.0/8")?)?;
/// let mut reader = rules.reader();
///
/// let packet = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 0, 2, 1, // IPv4
///     0x04, 0xd2, 0, 53, 0, 8, 0, 0, // UDP
/// ];
/// let frames = [Frame::new(&packet, 28, Aux::default())];
/// let mut matches = Matches::default();
/// reader.match_many(LinkType::RAW, 0, &frames, &mut matches);
/// let rules: Vec<RuleId> = matches.iter().map(|(_, rule, _)| rule).collect();
/// assert_eq!(rules, [RuleId(1), RuleId(2)]);
/// # Ok::<(), retroscope_filter::FilterError>(())
/// ```
pub struct RuleSet {
    mode: Mode,
    link_types: Vec<LinkType>,
    /// The tables as they are changed; readers get clones.
    work: Index,
    books: Books,
    numbers: Numbers,
    /// With the numbers of rules in the tables. In boxes, so that little is moved when the map grows.
    rules: HashMap<RuleId, (u32, Box<Kept>)>,
    /// Joints made since [`Self::take_joints`], without those that nobody needs.
    joints: Vec<Joint>,
    shared: Arc<Published>,
    /// Versions that a reader may still use.
    retired: Vec<Arc<Index>>,
}

/// Link types that a rule does not apply to.
type Refused = Vec<(LinkType, FilterError)>;

/// What the control side keeps of a rule.
struct Kept {
    /// To compile it for more link types; none where the caller is asked.
    piece: Option<Arc<Piece>>,
    placement: Placement,
    /// Its look-ups.
    parts: Vec<Part>,
    /// Bits of [`flags`].
    flags: u8,
    body: Arc<Body>,
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
    /// No rules yet.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        let random = RandomState::new();
        let seeds = Seeds(random.hash_one(0), random.hash_one(1));
        let work = Index::new(mode, seeds);
        let shared = Arc::new(Published::new(Arc::new(work.clone())));
        Self {
            mode,
            link_types: Vec::new(),
            work,
            books: Books::default(),
            numbers: Numbers::default(),
            rules: HashMap::new(),
            joints: Vec::new(),
            shared,
            retired: Vec::new(),
        }
    }

    /// A reader for a thread of the data path.
    #[must_use]
    pub fn reader(&self) -> RuleReader {
        RuleReader::new(Arc::clone(&self.shared))
    }

    /// Makes the set ready for packets of a link type: compiles the rules that need a program there. Rules that look-ups
    /// decide match without it, on Ethernet, raw IP, Linux cooked capture and BSD loopback. Gives the rules that libpcap refuses there.
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
            match self.put(id, &Filled::of_piece(piece), &known) {
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

    /// Adds a rule, in the place of one of the same number. Readers see it at their next [`RuleReader::refresh`].
    ///
    /// Programs that the filter was prepared with are used; others that the rule needs are compiled here, for the link types
    /// of [`Self::add_link_type`]. A rule that look-ups decide needs none.
    ///
    /// # Errors
    /// The first [`FilterError`] if the rule needs programs and libpcap refuses it for every link type of the set; the set is
    /// as before then.
    pub fn insert(&mut self, id: RuleId, filter: &Filter) -> Result<Placed, FilterError> {
        let placed = self.put_filter(id, filter)?;
        self.publish();
        Ok(placed)
    }

    /// Adds many rules; readers see all of them at once. Gives those that could not be added, with the errors of
    /// [`Self::insert`].
    pub fn insert_many<F: Borrow<Filter>>(
        &mut self,
        rules: impl IntoIterator<Item = (RuleId, F)>,
    ) -> Vec<(RuleId, FilterError)> {
        let mut failed = Vec::new();
        for (id, filter) in rules {
            if let Err(error) = self.put_filter(id, filter.borrow()) {
                failed.push((id, error));
            }
        }
        self.publish();
        failed
    }

    /// Takes a rule out; whether it was there.
    pub fn remove(&mut self, id: RuleId) -> bool {
        let was_there = self.take_out(id);
        if was_there {
            self.publish();
        }
        was_there
    }

    /// What became of a rule.
    #[must_use]
    pub fn explain(&self, id: RuleId) -> Option<Explanation> {
        let (_, kept) = self.rules.get(&id)?;
        let look_ups = kept.parts.iter();
        let look_ups = look_ups.map(|part| (part.sought.to_string(), part.compared()));
        Some(Explanation {
            placement: kept.placement,
            look_ups: look_ups.collect(),
            programs: kept.body.programs.clone(),
        })
    }

    /// The programs of a rule that the data path may run: those worth compiling to machine code.
    pub fn programs(&self, id: RuleId) -> impl Iterator<Item = &Program> {
        let kept = self.rules.get(&id);
        let programs = kept.map_or(&[][..], |(_, kept)| &kept.body.programs);
        programs.iter().map(|(_, program)| program)
    }

    /// Takes the joints that the set made since the last call: programs that see the same packets.
    /// They are worth compiling, after [`Self::programs`]. The programs of a joint run one by one
    /// until the joint is compiled. A joint that is replaced before its turn need not be compiled.
    pub fn take_joints(&mut self) -> Vec<Joint> {
        std::mem::take(&mut self.joints)
    }

    /// Bytes of memory in tables, without expressions, programs, and what old versions still hold.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.work.bytes()
    }

    fn put_filter(&mut self, id: RuleId, filter: &Filter) -> Result<Placed, FilterError> {
        let mode = self.mode;
        let known = |link_type| filter.program(link_type, mode).cloned();
        self.put(id, filter.filled(), &known)
    }

    /// Changes the tables, not yet for readers. `known` are programs that need not be compiled.
    fn put(
        &mut self,
        id: RuleId,
        filled: &Filled,
        known: &dyn Fn(LinkType) -> Option<Program>,
    ) -> Result<Placed, FilterError> {
        let (kept, refused) = self.prepare(filled, known)?;
        self.take_out(id);
        let rule = self.numbers.take();
        let needs_body = kept.flags & (flags::PARTIAL | flags::ORDERED) != 0;
        *self.work.rules.get_mut(rule) = RuleInfo {
            id: id.0,
            flags: kept.flags,
            body: needs_body.then(|| Arc::clone(&kept.body)),
        };
        for part in &kept.parts {
            self.work.add(&mut self.books, rule, part);
        }
        let placement = kept.placement;
        self.add_residue(rule, &kept);
        if kept.is_followed() {
            self.work.followed += 1;
        }
        self.rules.insert(id, (rule, Box::new(kept)));
        Ok(Placed { placement, refused })
    }

    /// Notes a rule where every packet of a link type must be shown to it.
    fn add_residue(&mut self, rule: u32, kept: &Kept) {
        match kept.placement {
            Placement::Asked => Arc::make_mut(&mut self.work.asked_always).push(rule),
            Placement::NarrowedAsked if !kept.is_flow_only() => {
                Arc::make_mut(&mut self.work.asked_elsewhere).push(rule);
            }
            Placement::NarrowedAsked => {}
            Placement::LookedUp | Placement::Narrowed | Placement::Compiled => {
                for (link_type, program) in &kept.body.programs {
                    if !sees_all(kept.placement, kept.flags, *link_type) {
                        continue;
                    }
                    let residues = Arc::make_mut(&mut self.work.residues);
                    let at = residues.iter().position(|one| one.link_type == *link_type);
                    let at = at.unwrap_or_else(|| {
                        residues.push(Residue::new(*link_type));
                        residues.len() - 1
                    });
                    residues[at].add(rule, program.clone());
                }
            }
        }
    }

    /// Those of some link types for which [`Self::insert`], [`Self::add_link_type`] or the evaluation that the set asks for would wait
    /// for libpcap longer than a moment: see [`Filter::prepares_at_once`].
    #[must_use]
    pub fn slow_link_types(&self, filter: &Filter, link_types: &[LinkType]) -> Vec<LinkType> {
        let is_slow = |link_type: &LinkType| !filter.prepares_at_once(self.context(*link_type));
        let mut slow: Vec<LinkType> = link_types.iter().copied().filter(is_slow).collect();
        if !slow.is_empty() {
            let (understood, _, placement) = self.place(filter.filled());
            let its_flags = understood.flags;
            slow.retain(|link_type| {
                its_flags & flags::ASK != 0 || needs_program(placement, its_flags, *link_type)
            });
        }
        slow
    }

    fn context(&self, link_type: LinkType) -> LinkContext {
        LinkContext::new(link_type, SNAPLEN, self.mode)
    }

    /// Takes a rule out of the tables, not yet for readers; whether it was there.
    fn take_out(&mut self, id: RuleId) -> bool {
        let Some((rule, kept)) = self.rules.remove(&id) else {
            return false;
        };
        for part in &kept.parts {
            self.work.remove(&mut self.books, rule, &part.sought);
        }
        if kept.is_followed() {
            self.work.followed -= 1;
        }
        if kept.placement == Placement::Asked {
            Arc::make_mut(&mut self.work.asked_always).retain(|one| *one != rule);
        }
        if kept.placement == Placement::NarrowedAsked && !kept.is_flow_only() {
            Arc::make_mut(&mut self.work.asked_elsewhere).retain(|one| *one != rule);
        }
        if self.work.residues.iter().any(|residue| residue.has(rule)) {
            for residue in Arc::make_mut(&mut self.work.residues) {
                residue.remove(rule);
            }
        }
        *self.work.rules.get_mut(rule) = RuleInfo::default();
        self.numbers.give_back(rule);
        true
    }

    /// What look-ups make of an expression.
    fn place(&self, filled: &Filled) -> (Understood, LookUps, Placement) {
        let mut understood = understand(filled);
        let body = &understood.body;
        let look_ups = look_ups(&body.expr, body.view, &|sought| self.work.crowd(sought));
        let asks = understood.flags & flags::ASK != 0;
        let placement = match (look_ups.parts.is_some(), asks) {
            (true, true) => Placement::NarrowedAsked,
            (false, true) => Placement::Asked,
            (true, false) if body.is_opaque => Placement::Narrowed,
            (true, false) => Placement::LookedUp,
            (false, false) => Placement::Compiled,
        };
        if look_ups.is_partial {
            understood.flags |= flags::PARTIAL;
        }
        (understood, look_ups, placement)
    }

    fn prepare(
        &self,
        filled: &Filled,
        known: &dyn Fn(LinkType) -> Option<Program>,
    ) -> Result<(Kept, Refused), FilterError> {
        let (understood, look_ups, placement) = self.place(filled);
        let Understood {
            flags: its_flags,
            mut body,
        } = understood;
        let mut parts = look_ups.parts.unwrap_or_default();
        let (mut piece, mut refused) = (None, Vec::new());
        if its_flags & flags::ASK == 0 {
            let only = &filled.pieces[0];
            (body.programs, refused) = self.programs_of(only, known, placement, its_flags)?;
            piece = Some(Arc::clone(only));
        } else {
            // The caller evaluates the filter, which judges missing bytes by itself, so nothing is compared after the look-up.
            parts.iter_mut().for_each(|part| part.remainder = None);
        }
        let kept = Kept {
            piece,
            placement,
            parts,
            flags: its_flags,
            body: Arc::new(body),
        };
        Ok((kept, refused))
    }

    /// The programs that a rule needs, or has already, and link types that it does not apply to.
    fn programs_of(
        &self,
        piece: &Piece,
        known: &dyn Fn(LinkType) -> Option<Program>,
        placement: Placement,
        its_flags: u8,
    ) -> Result<(Vec<(LinkType, Program)>, Refused), FilterError> {
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

    /// Shows readers the tables as they are.
    fn publish(&mut self) {
        if self.work.residues.iter().any(|residue| residue.is_changed) {
            let residues = Arc::make_mut(&mut self.work.residues);
            let changed = residues.iter_mut().filter(|residue| residue.is_changed);
            let new = changed.flat_map(Residue::arrange);
            self.joints.extend(new);
            self.joints.retain(|joint| !joint.is_given_up());
            residues.retain(|residue| !residue.is_empty());
        }
        let before = self.shared.publish(Arc::new(self.work.clone()));
        self.retired.push(before);
        // A version that only this list holds is used by no reader, and none can take it up any more.
        self.retired
            .retain(|version| Arc::strong_count(version) > 1);
    }
}

/// Whether a rule that is not left to the caller needs its program for packets of a link type.
fn needs_program(placement: Placement, its_flags: u8, link_type: LinkType) -> bool {
    placement == Placement::Narrowed || sees_all(placement, its_flags, link_type)
}

/// Whether look-ups cannot find a rule in packets of a link type, so that its program there must see all of them.
fn sees_all(placement: Placement, its_flags: u8, link_type: LinkType) -> bool {
    placement == Placement::Compiled
        || Shape::of(link_type, Mode::Savefile).is_none()
        || (its_flags & flags::ETHERNET != 0 && link_type != LinkType::ETHERNET)
}

impl Kept {
    /// Whether its look-ups are those of `$flow`, which know every link type.
    fn is_flow_only(&self) -> bool {
        self.parts.iter().all(Part::is_of_term)
    }

    /// Whether it asks for a flow that the fixed places which libpcap reads may not show: such frames are parsed whole.
    fn is_followed(&self) -> bool {
        self.flags & flags::ASK != 0 && self.parts.iter().any(Part::is_of_term)
    }
}
