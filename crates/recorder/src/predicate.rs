//! Expressions as the threads use them: rules, dump predicates, the capture filter.
//!
//! An expression is compiled for each link type of the sources. Where it compiles for none, the user made a mistake;
//! where it compiles for some, packets of the others do not match, and that is said once.

use std::{
    collections::HashSet,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use retroscope_capture::{Burst, FrameMeta, Instruction};
use retroscope_filter::{
    Aux, Decision as FilterDecision, Direction, Filled, Filter, FilterError, FlowState, Frame,
    LinkContext, Mode, PacketView, Program, Template, TriggerFacts,
};
use retroscope_packet::{FragmentKey, LinkType, parse};
use retroscope_ring::Packet;

use crate::{
    dump_script::ScriptPredicate, fragments::FirstFragments, inserter::WireFrame,
    interfaces::Interface, trigger_scripts::shown,
};

/// Snap length told to libpcap: the most that the ring stores. It makes no difference to what matches.
const SNAPLEN: u32 = 262_144;

pub(crate) fn context(link_type: LinkType, mode: Mode) -> LinkContext {
    LinkContext {
        link_type,
        snaplen: SNAPLEN,
        mode,
        optimize: true,
    }
}

fn view<'p>(interface: &Interface, packet: &Packet<'p>, mode: Mode) -> PacketView<'p> {
    PacketView {
        link_type: interface.link_type,
        mode,
        interface: packet.interface,
        aux: aux(packet.direction),
        data: packet.data,
        wire_len: packet.wire_len,
    }
}

pub(crate) fn aux(direction: u8) -> Aux {
    let direction = match direction {
        1 => Direction::Inbound,
        2 => Direction::Outbound,
        _ => Direction::Unknown,
    };
    Aux {
        direction,
        ifindex: None,
    }
}

/// A filter that learns new link types as packets of them come.
#[derive(Debug, Clone)]
struct Prepared {
    filter: Filter,
    mode: Mode,
    tried: Vec<LinkType>,
    refused: Vec<(LinkType, String)>,
}

impl Prepared {
    fn new(filter: Filter, mode: Mode) -> Self {
        Self {
            filter,
            mode,
            tried: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn prepare(&mut self, link_type: LinkType) {
        if !self.tried.contains(&link_type) {
            self.tried.push(link_type);
            if let Err(error) = self.filter.prepare(context(link_type, self.mode)) {
                self.refused.push((link_type, error.to_string()));
            }
        }
    }

    /// Compiles for all link types; an error if it compiles for none of them nor of `more`.
    fn check(
        &mut self,
        link_types: &[LinkType],
        more: &dyn Fn() -> Vec<LinkType>,
    ) -> Result<(), FilterError> {
        let ethernet = [LinkType::ETHERNET];
        let known = if link_types.is_empty() {
            &ethernet[..]
        } else {
            link_types
        };
        first_or_any(known, more, |link_type| {
            self.prepare(link_type);
            self.filter.prepare(context(link_type, self.mode))
        })
    }
}

/// Ok if `compile` succeeds for any of `known`, else of `more()`; otherwise the error of the first.
fn first_or_any(
    known: &[LinkType],
    more: &dyn Fn() -> Vec<LinkType>,
    mut compile: impl FnMut(LinkType) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    let mut first = None;
    let mut succeeded = false;
    for link_type in known {
        match compile(*link_type) {
            Ok(()) => succeeded = true,
            Err(error) => _ = first.get_or_insert(error),
        }
    }
    match first {
        Some(error)
            if !succeeded
                && !more()
                    .into_iter()
                    .any(|link_type| compile(link_type).is_ok()) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// A trigger rule.
#[derive(Debug)]
pub(crate) struct Rule {
    text: String,
    prepared: Prepared,
    hits: u64,
}

impl Rule {
    /// The trigger expression as the user wrote it.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Packets that matched.
    pub(crate) fn hits(&self) -> u64 {
        self.hits
    }

    /// Whether a packet triggers.
    pub(crate) fn matches(&mut self, interface: &Interface, packet: &Packet<'_>) -> bool {
        self.prepared.prepare(interface.link_type);
        let hit = self
            .prepared
            .filter
            .matches(&view(interface, packet, self.prepared.mode));
        self.hits += u64::from(hit);
        hit
    }

    /// The filter that decides for packets of a link type, and its mode; `None`: the rule does not apply to them.
    pub(crate) fn filter(&mut self, link_type: LinkType) -> Option<(&Filter, Mode)> {
        self.prepared.prepare(link_type);
        let Prepared { filter, mode, .. } = &self.prepared;
        filter
            .is_prepared(link_type, *mode)
            .then_some((filter, *mode))
    }

    /// Link types that the rule does not apply to, said once each.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let text = &self.text;
        let said = |(link_type, error): (LinkType, String)| {
            format!(
                "trigger '{text}' matches nothing of link type {}: {error}",
                link_type.0
            )
        };
        self.prepared.refused.drain(..).map(said).collect()
    }
}

/// What a dump takes: a filled-in expression, or a script's predicate. Two are equal if they take the same packets for the
/// same reason.
#[derive(Debug, Clone)]
pub(crate) struct Expression {
    what: What,
    interface: u16,
}

#[derive(Debug, Clone)]
enum What {
    Filled(Arc<Filled>),
    Script(ScriptPredicate),
}

impl Expression {
    /// What `template` says of a packet, with what is known of the datagram it may be a later fragment of; the error is
    /// a sentence that names the variable it cannot supply.
    pub(crate) fn fill(
        template: &Template,
        interface: &Interface,
        packet: &Packet<'_>,
        fragments: &FirstFragments,
    ) -> Result<Self, String> {
        let parsed = parse(interface.link_type, packet.data);
        let facts = TriggerFacts {
            parsed,
            interface: packet.interface,
            first_fragment: fragments.flow(&parsed, packet.time_ns),
        };
        match template.fill(&facts) {
            Ok(filled) => Ok(Self {
                what: What::Filled(Arc::new(filled)),
                interface: packet.interface,
            }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What a dump script made of a packet of `interface`.
    pub(crate) fn scripted(predicate: ScriptPredicate, interface: u16) -> Self {
        Self {
            what: What::Script(predicate),
            interface,
        }
    }

    /// As people read it, and as it is compared.
    fn as_str(&self) -> &str {
        match &self.what {
            What::Filled(filled) => filled.as_str(),
            What::Script(predicate) => predicate.name(),
        }
    }

    /// The interface of the trigger packet.
    pub(crate) fn interface(&self) -> u16 {
        self.interface
    }
}

/// Equal expressions of waiting hits share their memory: in a storm of triggers there are many hits and few expressions.
#[derive(Debug, Default)]
pub(crate) struct SharedExpressions(HashSet<Arc<Filled>>);

impl SharedExpressions {
    /// Expressions remembered at once.
    const KEPT: usize = 4096;

    /// The same expression, in the memory of an equal one if there is one.
    pub(crate) fn share(&mut self, expression: Expression) -> Expression {
        let What::Filled(filled) = &expression.what else {
            return expression;
        };
        if let Some(known) = self.0.get(filled)
            && known.knows_the_same(filled)
        {
            return Expression {
                what: What::Filled(Arc::clone(known)),
                ..expression
            };
        }
        if self.0.len() >= Self::KEPT {
            self.0.clear();
        }
        self.0.replace(Arc::clone(filled));
        expression
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Expression {}

impl Hash for Expression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a dump takes.
#[derive(Debug, Clone)]
pub(crate) enum Predicate {
    Filter(Box<FilterPredicate>),
    Script(ScriptPredicate),
}

/// A filter, with what it has learned about fragments.
#[derive(Debug, Clone)]
pub(crate) struct FilterPredicate {
    prepared: Prepared,
    state: FlowState,
}

/// A predicate's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) decision: Decision,
    /// Packets kept aside under this key can be decided now.
    pub(crate) resolves: Option<FragmentKey>,
}

/// See [`Predicate::quick`].
#[derive(Debug)]
pub(crate) enum Quick<'a> {
    /// No packet is taken.
    Nothing,
    /// This program alone.
    Program(&'a Program),
    /// This script alone.
    Script(&'a ScriptPredicate),
    /// [`Predicate::decide`], for each packet.
    Ask,
}

/// See [`Answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Take,
    Skip,
    /// A later fragment whose first one was not seen yet.
    Maybe(FragmentKey),
}

impl Predicate {
    pub(crate) fn new(expression: &Expression, offline: bool) -> Self {
        let filled = match &expression.what {
            What::Filled(filled) => filled,
            What::Script(predicate) => return Self::Script(predicate.clone()),
        };
        let filter = Filter::new(Filled::clone(filled));
        let state = filter.state();
        Self::Filter(Box::new(FilterPredicate {
            prepared: Prepared::new(filter, mode(offline)),
            state,
        }))
    }

    /// What decides for most packets of a link type.
    pub(crate) fn quick(&mut self, link_type: LinkType) -> Quick<'_> {
        match self {
            Self::Filter(filter) => filter.quick(link_type),
            Self::Script(script) => Quick::Script(script),
        }
    }

    /// Whether the dump takes a packet.
    pub(crate) fn decide(&mut self, interface: &Interface, packet: &Packet<'_>) -> Answer {
        match self {
            Self::Filter(filter) => filter.decide(interface, packet),
            Self::Script(script) => {
                let taken = script.match_many(&[shown(packet, interface.link_type)]);
                Answer {
                    decision: if taken == 0 {
                        Decision::Skip
                    } else {
                        Decision::Take
                    },
                    resolves: None,
                }
            }
        }
    }

    /// Link types that the dump takes nothing of.
    pub(crate) fn notes(&self) -> Vec<String> {
        match self {
            Self::Filter(filter) => filter.notes(),
            Self::Script(_) => Vec::new(),
        }
    }

    /// Why it may not have taken all that it should.
    pub(crate) fn fault(&self) -> Option<String> {
        match self {
            Self::Filter(_) => None,
            Self::Script(script) => script.fault(),
        }
    }
}

impl FilterPredicate {
    fn quick(&mut self, link_type: LinkType) -> Quick<'_> {
        self.prepared.prepare(link_type);
        let (filter, mode) = (&self.prepared.filter, self.prepared.mode);
        match filter.program(link_type, mode) {
            Some(program) => Quick::Program(program),
            None if filter.is_prepared(link_type, mode) => Quick::Ask,
            None => Quick::Nothing,
        }
    }

    fn decide(&mut self, interface: &Interface, packet: &Packet<'_>) -> Answer {
        self.prepared.prepare(interface.link_type);
        let verdict = self.prepared.filter.evaluate(
            &mut self.state,
            &view(interface, packet, self.prepared.mode),
        );
        let decision = match verdict.decision {
            FilterDecision::Take => Decision::Take,
            FilterDecision::Skip => Decision::Skip,
            FilterDecision::Maybe(key) => Decision::Maybe(key),
        };
        Answer {
            decision,
            resolves: verdict.resolves,
        }
    }

    fn notes(&self) -> Vec<String> {
        let refused = &self.prepared.refused;
        refused
            .iter()
            .map(|(link_type, error)| {
                format!("takes nothing of link type {}: {error}", link_type.0)
            })
            .collect()
    }
}

/// The capture filter.
#[derive(Debug, Clone)]
pub(crate) struct CaptureFilter {
    prepared: Prepared,
    scratch: Vec<u8>,
}

impl CaptureFilter {
    /// Frames of one [`Self::takes_many`] at most.
    pub(crate) const MANY: usize = Program::MANY;

    /// The programs that decide alone, one for each of these link types that has one.
    pub(crate) fn programs(
        &mut self,
        link_types: &[LinkType],
    ) -> Vec<(LinkType, Vec<Instruction>)> {
        let convert = |one: &retroscope_filter::Instruction| Instruction {
            code: one.code,
            jump_true: one.jump_true,
            jump_false: one.jump_false,
            k: one.k,
        };
        let mut programs = Vec::new();
        for &link_type in link_types {
            self.prepared.prepare(link_type);
            let program = self.prepared.filter.program(link_type, self.prepared.mode);
            let instructions = program.map(|program| program.instructions().iter().map(convert));
            programs.extend(instructions.map(|all| (link_type, all.collect())));
        }
        programs
    }

    /// Which of at most [`Self::MANY`] frames of `burst` are to be recorded, as they stand there: bit `n` is that of frame
    /// `n`.
    pub(crate) fn takes_many(
        &mut self,
        link_type: LinkType,
        burst: &Burst<'_>,
        frames: &[FrameMeta],
    ) -> u64 {
        self.prepared.prepare(link_type);
        let mut views = [Frame::new(&[], 0, Aux::default()); Self::MANY];
        for (view, meta) in views.iter_mut().zip(frames) {
            let data = &burst.memory[meta.offset..meta.offset + meta.captured_len as usize];
            *view = Frame::new(data, meta.wire_len, aux(meta.direction as u8));
        }
        let link = (link_type, self.prepared.mode);
        // A capture filter is no template, so it does not ask for interfaces.
        self.prepared
            .filter
            .matches_many(link, 0, &views[..frames.len()])
    }

    /// Whether a frame is to be recorded.
    pub(crate) fn takes(
        &mut self,
        link_type: LinkType,
        interface: u16,
        frame: &WireFrame<'_>,
    ) -> bool {
        self.prepared.prepare(link_type);
        let data = match frame.parts() {
            [whole, [], []] => whole,
            parts => {
                self.scratch.clear();
                parts
                    .iter()
                    .for_each(|part| self.scratch.extend_from_slice(part));
                &self.scratch
            }
        };
        let mode = self.prepared.mode;
        let view = PacketView {
            link_type,
            mode,
            interface,
            aux: aux(frame.direction),
            data,
            wire_len: frame.wire_len,
        };
        self.prepared.filter.matches(&view)
    }
}

pub(crate) fn mode(offline: bool) -> Mode {
    if offline { Mode::Savefile } else { Mode::Live }
}

/// An expression that compiles for none of the sources: the user's mistake.
#[derive(Debug)]
pub struct ExpressionError {
    /// The option it stands in, for example `--trigger`.
    pub option: &'static str,
    /// What is wrong, and where.
    pub error: FilterError,
}

impl fmt::Display for ExpressionError {
    /// Several lines: the message, the expression, a caret under the offending word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rendered = self.error.render();
        let rendered = rendered.strip_prefix("filter: ").unwrap_or(&rendered);
        write!(f, "{}: {rendered}", self.option)
    }
}

/// The user's texts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Texts<'a> {
    pub(crate) triggers: &'a [String],
    pub(crate) dump: &'a str,
    pub(crate) manual: &'a str,
    pub(crate) filter: Option<&'a str>,
}

/// All expressions of a recorder, checked.
#[derive(Debug)]
pub(crate) struct Expressions {
    pub(crate) rules: Vec<Rule>,
    pub(crate) template: Template,
    pub(crate) manual: Expression,
    pub(crate) filter: Option<CaptureFilter>,
}

impl Expressions {
    /// Compiles everything for the link types that are known. `more` finds further ones, at a cost; it is asked only
    /// where an expression compiles for none of the known.
    pub(crate) fn new(
        texts: &Texts<'_>,
        link_types: &[LinkType],
        more: &dyn Fn() -> Vec<LinkType>,
        offline: bool,
    ) -> Result<Self, ExpressionError> {
        let mode = mode(offline);
        let plain = |option, text: &str| {
            let prepared = Filter::plain(text).and_then(|filter| {
                let mut prepared = Prepared::new(filter, mode);
                prepared.check(link_types, more)?;
                Ok(prepared)
            });
            prepared.map_err(|error| ExpressionError { option, error })
        };
        let mut rules = Vec::new();
        for text in texts.triggers {
            rules.push(Rule {
                text: text.clone(),
                prepared: plain("--trigger", text)?,
                hits: 0,
            });
        }
        let ethernet = [LinkType::ETHERNET];
        let known = if link_types.is_empty() {
            &ethernet[..]
        } else {
            link_types
        };
        let template = Template::parse(texts.dump).and_then(|template| {
            first_or_any(known, more, |link_type| {
                template.check(context(link_type, mode))
            })?;
            Ok(template)
        });
        let template = template.map_err(|error| ExpressionError {
            option: "--dump",
            error,
        })?;
        let manual = Expression {
            what: What::Filled(Arc::new(
                plain("--manual-dump", texts.manual)?
                    .filter
                    .filled()
                    .clone(),
            )),
            interface: 0,
        };
        let filter = texts
            .filter
            .map(|text| plain("--filter", text))
            .transpose()?;
        let filter = filter.map(|prepared| CaptureFilter {
            prepared,
            scratch: Vec::new(),
        });
        Ok(Self {
            rules,
            template,
            manual,
            filter,
        })
    }

    /// Rules that do not apply to some of the sources.
    pub(crate) fn notices(&mut self) -> Vec<String> {
        self.rules.iter_mut().flat_map(Rule::take_notices).collect()
    }
}
