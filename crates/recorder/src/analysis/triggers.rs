//! The trigger rules: which packets are hits, and of which rules.
//!
//! A few short rules run as their programs on 64 packets together, and these as one function: that is the quickest way for
//! them. Where some have no program of their own, as with payload terms, or are too long for one function, only very few run like that.
//! Many rules, or long ones, are looked up in a rule set, where their number makes little difference. The set may be changed
//! at any time by whoever has the lock; the analyzer takes up the change with its next batch and never waits for it.

use std::sync::{Arc, Mutex};

use retroscope_filter::{
    Filter, FilterError, Frame, Joint, Matches, Mode, Placement, RuleReader, Sure,
};
use retroscope_packet::LinkType;

use crate::{
    analysis::{
        native::NativeCode,
        prepared::{LinkTypes, Prepared, context, mode},
        rules::Rules,
    },
    control::lock,
    intake::lookout,
};

/// Rules that run one by one at most.
const FEW: usize = 4;
/// Rules that run as one function at most. For up to as many ports and hosts that is quicker than a rule set. For many more it gains
/// less, and as long as there is no code for all of them, their programs one by one are slower than the set.
const FEW_TOGETHER: usize = 16;
/// Rules that run as one function at least.
const TOGETHER_MIN: usize = 2;
/// Longer texts are lists: looked up rather than compiled by libpcap, which takes long for them.
const SHORT_TEXT_BYTES: usize = 512;
/// Where more than [`FEW`] run as one function, their texts have no more together: a list of addresses is one look-up for each
/// packet, and many comparisons.
const TOGETHER_TEXT_BYTES: usize = 512;

/// A trigger rule.
#[derive(Debug)]
struct Rule {
    text: String,
    /// Compiled where the rule runs by itself, or has parts that a rule set does not decide.
    prepared: Prepared,
    hits: u64,
}

/// A packet that matches a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuleHit {
    /// Its index among the frames that were given to [`Triggers::find`].
    pub(crate) frame: usize,
    pub(crate) rule: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Triggers {
    rules: Vec<Rule>,
    /// The rule set.
    pub(crate) shared: SharedRules,
    reader: RuleReader,
    matches: Matches,
    /// What the last call found, in the order of frames, then rules. Who takes it gives the memory back.
    pub(crate) hits: Vec<RuleHit>,
    /// All rules run as their programs.
    is_direct: bool,
    /// Their programs for a link type, where each has one of its own. The bits are the rules' numbers.
    joints: Vec<(LinkType, Joint)>,
    /// What these say of each frame.
    results: Box<[u64; Joint::MANY]>,
    is_offline: bool,
}

/// A rule that matches nothing of a link type, and why.
type Refused = (u64, LinkType, FilterError);

/// The rule set, for whoever changes it.
#[derive(Debug, Clone)]
pub(crate) struct SharedRules {
    rules: Arc<Mutex<Rules>>,
    /// Rules that the set does not decide alone, and their mode.
    asked: Arc<[(Filter, Mode)]>,
    /// Of link types that turned up late: rules that match nothing of them, and why. Locked for moments only.
    refused: Arc<Mutex<Vec<Refused>>>,
}

impl SharedRules {
    fn new(rules: Rules, asked: Vec<(Filter, Mode)>) -> Self {
        Self {
            rules: Arc::new(Mutex::new(rules)),
            asked: asked.into(),
            refused: Arc::default(),
        }
    }

    /// Makes the rules ready for packets of a link type, before the first of them is stored. Compiles with libpcap where that
    /// was not done, which may take milliseconds: only files bring up link types that were not known at the start.
    pub(crate) fn add_link_type(&self, link_type: LinkType) {
        let mut rules = lock(&self.rules);
        if rules.knows(link_type) {
            return;
        }
        let refused = rules.add_link_type(link_type);
        drop(rules);
        for (filter, mode) in &*self.asked {
            // What it makes, or why not, the analyzer's own filter finds.
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
            let mut prepared = Prepared::new(Filter::resolved(text)?, mode(offline));
            if may_be_direct {
                prepared.check(link_types)?;
            }
            let placement = insert(&mut rules, id, &mut prepared, link_types)?;
            if matches!(placement, Placement::Asked | Placement::NarrowedAsked) {
                if !may_be_direct {
                    prepared.check(link_types)?;
                }
                asked.push((prepared.filter.clone(), prepared.mode));
            }
            prepared.seal(link_types);
            prepared.compile(native);
            made.push(Rule {
                text: text.clone(),
                prepared,
                hits: 0,
            });
        }
        let known = link_types.known;
        let joints: Vec<(LinkType, Joint)> = if may_be_direct && made.len() >= TOGETHER_MIN {
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
                .for_each(|(_, joint)| native.submit_joint(joint));
        }
        // Without code each would run by itself.
        let is_native = || joints.iter().all(|(_, joint)| joint.native().is_some());
        let is_direct = may_be_direct && (made.len() <= FEW || (is_joined && is_native()));
        if !is_direct {
            rules.join();
        }
        Ok(Self {
            joints,
            results: Box::new([0; Joint::MANY]),
            rules: made,
            reader: rules.reader(),
            shared: SharedRules::new(rules, asked),
            matches: Matches::default(),
            hits: Vec::new(),
            is_direct,
            is_offline: offline,
        })
    }

    /// Rules; they are numbered from 0.
    pub(crate) fn len(&self) -> usize {
        self.rules.len()
    }

    /// What inserters may try themselves; none where rules are looked up.
    pub(crate) fn direct(&self, fragments: bool) -> Option<lookout::Rules> {
        let prepared = self.rules.iter().map(|rule| rule.prepared.clone());
        self.is_direct.then(|| lookout::Rules {
            prepared: prepared.collect(),
            joints: self.joints.clone(),
            fragments,
        })
    }

    /// Takes up changes of the rules. Cheap. Live it never waits; from files it takes up all that was published, since what is
    /// found must not depend on the moment.
    pub(crate) fn refresh(&mut self) {
        if self.is_offline {
            self.reader.catch_up();
        } else {
            self.reader.refresh();
        }
    }

    /// Finds the rules' hits among at most 64 frames of one interface: bit `n` of the result is that of frame
    /// `n`.
    pub(crate) fn find(
        &mut self,
        link_type: LinkType,
        interface: u16,
        frames: &[Frame<'_>],
    ) -> u64 {
        self.hits.clear();
        if self.is_direct && self.rules.iter().all(|rule| rule.prepared.knows(link_type)) {
            self.run(link_type, interface, frames)
        } else {
            self.look_up(link_type, interface, frames)
        }
    }

    fn run(&mut self, link_type: LinkType, interface: u16, frames: &[Frame<'_>]) -> u64 {
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

    fn look_up(&mut self, link_type: LinkType, interface: u16, frames: &[Frame<'_>]) -> u64 {
        let mut any = 0;
        self.reader
            .match_many(link_type, interface, frames, &mut self.matches);
        for (frame, id, sure) in self.matches.iter() {
            let Some((number, rule)) = usize::try_from(id.0)
                .ok()
                .and_then(|number| Some((number, self.rules.get_mut(number)?)))
            else {
                continue;
            };
            let is_hit = sure == Sure::Yes || {
                rule.prepared.prepare(link_type);
                let one = std::slice::from_ref(&frames[frame]);
                rule.prepared.matches_many(link_type, interface, one) == 1
            };
            if is_hit {
                any |= 1 << frame;
                self.hits.push(RuleHit {
                    frame,
                    rule: number,
                });
            }
        }
        any
    }

    /// Counts a hit.
    pub(crate) fn count(&mut self, rule: usize) {
        if let Some(rule) = self.rules.get_mut(rule) {
            rule.hits += 1;
        }
    }

    /// The expression of a rule as the user wrote it; `None` for a number that is no rule's.
    pub(crate) fn text(&self, rule: usize) -> Option<&str> {
        self.rules.get(rule).map(|rule| rule.text.as_str())
    }

    /// The expressions of the rules without a hit.
    pub(crate) fn without_hits(&self) -> impl Iterator<Item = &str> {
        let silent = self.rules.iter().filter(|rule| rule.hits == 0);
        silent.map(|rule| rule.text.as_str())
    }

    /// Sentences about link types that rules do not apply to, each once.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        for (rule, link_type, error) in lock(&self.shared.refused).drain(..) {
            let rule = usize::try_from(rule)
                .ok()
                .and_then(|rule| self.rules.get_mut(rule));
            if let Some(rule) = rule {
                rule.prepared.refuse(link_type, &error);
            }
        }
        let of_rule = |rule: &mut Rule| rule.prepared.take_notices("trigger");
        self.rules.iter_mut().flat_map(of_rule).collect()
    }
}

/// The programs of all rules for a link type, in their order, if each has one of its own.
fn joint(rules: &[Rule], link_type: LinkType) -> Option<Joint> {
    let program = |rule: &Rule| rule.prepared.program(link_type).cloned();
    let programs = rules.iter().map(program).collect::<Option<_>>()?;
    Some(Joint::new(link_type, programs))
}

/// The hits of rules that run as one function, and the frames that have any.
fn run_joint(
    joint: &Joint,
    frames: &[Frame<'_>],
    results: &mut [u64; Joint::MANY],
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

/// Adds a rule that is looked up. Where libpcap refuses it for all link types, those further inside the files count too.
fn insert(
    rules: &mut Rules,
    id: u64,
    prepared: &mut Prepared,
    link_types: &LinkTypes<'_>,
) -> Result<Placement, FilterError> {
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

#[cfg(test)]
mod tests {
    use retroscope_filter::Aux;

    use super::*;
    use crate::tests::rig::udp;

    /// Packets of some ports; the last ones are cut short.
    fn packets() -> Vec<Vec<u8>> {
        let mut packets: Vec<_> = (0..60_u16)
            .map(|n| udp(n % 7, 20 + n % 11, u32::from(n)))
            .collect();
        packets.extend((10..14).map(|length| udp(1, 20, 0)[..length * 2].to_vec()));
        packets
    }

    fn triggers(texts: &[String], known: &[LinkType]) -> Triggers {
        let link_types = LinkTypes::new(known, &Vec::new);
        let native = Arc::new(NativeCode::new());
        Triggers::new(texts, &link_types, true, &native).unwrap()
    }

    /// The hits among [`packets`] of raw IP, as (packet, rule).
    fn hits(triggers: &mut Triggers) -> Vec<(usize, usize)> {
        let packets = packets();
        let frames: Vec<_> = packets
            .iter()
            .map(|data| Frame::new(data, 32, Aux::default()))
            .collect();
        let any = triggers.find(LinkType::RAW, 0, &frames);
        let hits = std::mem::take(&mut triggers.hits);
        let set = hits.iter().fold(0, |set, hit| set | 1 << hit.frame);
        assert_eq!(any, set);
        let pairs = hits.iter().map(|hit| (hit.frame, hit.rule)).collect();
        triggers.hits = hits;
        pairs
    }

    /// What each rule by itself says of each packet.
    fn one_by_one(texts: &[String]) -> Vec<(usize, usize)> {
        let link_types = LinkTypes::new(&[LinkType::RAW], &Vec::new);
        let mut expected = Vec::new();
        for (rule, text) in texts.iter().enumerate() {
            let filter = Filter::plain(text).unwrap();
            let mut prepared = Prepared::new(filter, mode(true));
            prepared.check(&link_types).unwrap();
            for (index, data) in packets().iter().enumerate() {
                let frames = [Frame::new(data, 32, Aux::default())];
                if prepared.matches_many(LinkType::RAW, 0, &frames) == 1 {
                    expected.push((index, rule));
                }
            }
        }
        expected.sort_unstable();
        expected
    }

    #[test]
    fn a_few_plain_rules_run_as_one_function_and_hit_as_each_alone() {
        let plain = ["udp port 20", "not udp src port 3", "udp[11] > 50", "udp"];
        let mut plain: Vec<String> = plain.iter().map(ToString::to_string).collect();
        plain.extend(
            (20..)
                .take(FEW_TOGETHER - 4)
                .map(|port| format!("dst port {port} or src port 3")),
        );
        for count in [1, 2, 3, FEW + 1, FEW_TOGETHER] {
            let rules = plain[..count].to_vec();
            let mut triggers = triggers(&rules, &[LinkType::RAW]);
            let joints = triggers.joints.iter();
            let joined: Vec<bool> = joints.map(|(_, joint)| joint.native().is_some()).collect();
            assert!(triggers.is_direct);
            match count {
                1 => assert!(joined.is_empty()),
                _ => assert_eq!(joined, [true]),
            }
            let found = hits(&mut triggers);
            assert_eq!(found, one_by_one(&rules));
            assert!((0..rules.len()).all(|rule| found.iter().any(|hit| hit.1 == rule)));
        }
        // Payload terms have no program.
        assert!(
            triggers(&texts()[..FEW], &[LinkType::RAW])
                .joints
                .is_empty()
        );
    }

    fn texts() -> Vec<String> {
        let mut texts = vec![
            "udp port 20".to_owned(),
            "udp and payload contains \"\\x00\\x07\"".to_owned(),
            "not udp src port 3".to_owned(),
            "udp[11] > 50 or ip[8] = 1".to_owned(),
        ];
        let hosts: Vec<_> = (0..100).map(|n| format!("host 10.1.{n}.1")).collect();
        texts.push(format!("{} or src port 5", hosts.join(" or ")));
        texts.extend((20..60).map(|port| format!("udp dst port {port}")));
        texts
    }

    #[test]
    fn few_and_many_rules_hit_as_each_alone() {
        let texts = texts();
        for rules in [&texts[..0], &texts[..1], &texts[..FEW], &texts[..5], &texts] {
            let mut triggers = triggers(rules, &[LinkType::RAW]);
            assert_eq!(triggers.is_direct, rules.len() <= FEW);
            assert_eq!(
                hits(&mut triggers),
                one_by_one(rules),
                "{} rules",
                rules.len()
            );
            assert!(triggers.take_notices().is_empty());
        }
        // The rules do hit.
        let of_all = one_by_one(&texts);
        assert!((0..5).all(|rule| of_all.iter().any(|hit| hit.1 == rule)));
    }

    #[test]
    fn link_types_that_turn_up_late_are_made_ready_by_others() {
        let texts = texts();
        for rules in [&texts[..FEW], &texts] {
            let mut triggers = triggers(rules, &[LinkType::ETHERNET]);
            triggers.shared.clone().add_link_type(LinkType::RAW);
            triggers.refresh();
            assert!(triggers.take_notices().is_empty());
            assert_eq!(
                hits(&mut triggers),
                one_by_one(rules),
                "{} rules",
                rules.len()
            );
        }
    }

    #[test]
    fn rules_that_do_not_apply_to_a_late_link_type_are_told_once() {
        let nothing = LinkType(147);
        for rules in [1, FEW + 2] {
            let texts = vec!["icmp".to_owned(); rules];
            let mut triggers = triggers(&texts, &[LinkType::ETHERNET]);
            assert!(triggers.take_notices().is_empty());
            triggers.shared.add_link_type(nothing);
            let notices = triggers.take_notices();
            assert_eq!(notices.len(), rules, "{notices:?}");
            assert!(
                notices[0].contains("'icmp'") && notices[0].contains(" 147"),
                "{notices:?}"
            );
            triggers.shared.add_link_type(nothing);
            assert!(triggers.take_notices().is_empty());
        }
    }

    #[test]
    fn rules_that_apply_to_some_link_types_only_are_told_once() {
        let texts = ["ether src 00:00:00:00:00:01".to_owned()];
        let known = [LinkType::RAW, LinkType::ETHERNET];
        let mut one = triggers(&texts, &known);
        let notices = one.take_notices();
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(notices[0].contains(" 101"), "{notices:?}");
        assert!(one.take_notices().is_empty());
        let many: Vec<_> = std::iter::repeat_n(texts[0].clone(), FEW + 1).collect();
        assert_eq!(triggers(&many, &known).take_notices().len(), FEW + 1);
        let link_types = LinkTypes::new(&[LinkType::RAW], &Vec::new);
        for rules in [&texts[..], &many] {
            let native = Arc::new(NativeCode::new());
            assert!(Triggers::new(rules, &link_types, true, &native).is_err());
            let more = || vec![LinkType::ETHERNET];
            let link_types = LinkTypes::new(&[LinkType::RAW], &more);
            assert!(Triggers::new(rules, &link_types, true, &native).is_ok());
        }
    }
}
