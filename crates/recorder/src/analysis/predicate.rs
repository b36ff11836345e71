//! What hits would dump, and what dumps take.

use std::{
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, atomic::Ordering},
};

use retroscope_filter::{
    Decision, FillError, Filled, Filter, FilterError, FlowState, Mode, Template, TriggerFacts,
    TriggerValues, Verdict,
};
use retroscope_flow::Key;
use retroscope_packet::{LinkType, parse};
use retroscope_ring::Packet;
use retroscope_script::{Machine, Packet as ScriptPacket};

use crate::{
    analysis::{
        alerts::{AlertScope, ScopeFilter},
        fragments::FirstFragments,
        prepared::{PreparedFilter, context, mode, view},
        terms::SubDirectory,
        trigger_scripts::shown,
    },
    control::{common::RecorderShared, lock},
    intake::interfaces::RecordedInterface,
};

/// What a hit would dump. Two are equal if their dumps take the same packets for the same reason, and go to the same place. Nothing is formatted before one
/// is opened.
#[derive(Debug, Clone)]
pub(crate) struct DumpExpression {
    what: ExpressionKind,
    /// The interface of the trigger packet.
    pub(crate) interface: u16,
    /// Where its dump goes, if it has a directory of its own.
    pub(crate) into: Option<SubDirectory>,
    /// A script made it for packets of this link type.
    pub(crate) made_for: Option<LinkType>,
    /// The flow that it is of, where a module says when that is over.
    pub(crate) flow: Option<Key>,
}

#[derive(Debug, Clone)]
enum ExpressionKind {
    /// A template, and the values of its variables in the trigger packet.
    Values(Arc<Template>, Arc<TriggerValues>),
    /// An expression that asks for no trigger packet. For an alert, the expression finds packets,
    /// and the second part decides which packets the alert is about.
    Plain(Arc<Filled>, Option<Arc<AlertScope>>),
    Script(ScriptPredicate),
}

impl DumpExpression {
    /// What `template` says of a packet, with what is known of the datagram it may be a later fragment of.
    pub(crate) fn new(
        template: &Arc<Template>,
        interface: &RecordedInterface,
        packet: &Packet<'_>,
        fragments: &FirstFragments,
    ) -> Result<Self, FillError> {
        let parsed = parse(interface.link_type, packet.data);
        let values = template.values(&TriggerFacts {
            parsed,
            interface: packet.interface,
            first_fragment: fragments.flow(&parsed, packet.time_ns),
        })?;
        let what = ExpressionKind::Values(Arc::clone(template), Arc::new(values));
        Ok(Self::of(what, packet.interface))
    }

    fn of(what: ExpressionKind, interface: u16) -> Self {
        Self {
            what,
            interface,
            into: None,
            made_for: None,
            flow: None,
        }
    }

    /// An expression that asks for no trigger packet.
    pub(crate) fn plain(filled: Filled) -> Self {
        Self::of(ExpressionKind::Plain(Arc::new(filled), None), 0)
    }

    /// The expression that finds the packets of an alert.
    pub(crate) fn of_alert(sought: AlertScope) -> Result<Self, FilterError> {
        let filled = Arc::new(sought.filled()?);
        Ok(Self::of(
            ExpressionKind::Plain(filled, Some(Arc::new(sought))),
            0,
        ))
    }

    /// The predicate that a dump script returned for a packet of `interface`.
    pub(crate) fn scripted(predicate: ScriptPredicate, interface: u16) -> Self {
        Self::of(ExpressionKind::Script(predicate), interface)
    }

    /// The expression as people read it, and what a dump of it takes.
    pub(crate) fn resolve(&self, offline: bool) -> (String, DumpPredicate) {
        let (filled, sought) = match &self.what {
            ExpressionKind::Values(template, values) => (template.filled(values), None),
            ExpressionKind::Plain(filled, sought) => (Filled::clone(filled), sought.as_ref()),
            ExpressionKind::Script(predicate) => {
                let text = predicate.name.to_string();
                return (text, DumpPredicate::Script(predicate.clone()));
            }
        };
        let mut text = filled.as_str().to_owned();
        text.extend(sought.map(|sought| sought.to_string()));
        (text, DumpPredicate::new(filled, offline, sought))
    }
}

impl PartialEq for DumpExpression {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.what, &other.what) {
            (ExpressionKind::Values(a, values), ExpressionKind::Values(b, others)) => {
                (Arc::ptr_eq(a, b) || a == b) && values == others
            }
            (ExpressionKind::Plain(a, sought), ExpressionKind::Plain(b, others)) => {
                a == b && sought == others
            }
            (ExpressionKind::Script(a), ExpressionKind::Script(b)) => a.name == b.name,
            _ => false,
        };
        is_same && self.into == other.into
    }
}

impl Eq for DumpExpression {}

impl Hash for DumpExpression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.what {
            ExpressionKind::Values(_, values) => values.hash(state),
            ExpressionKind::Plain(filled, _) => filled.hash(state),
            ExpressionKind::Script(predicate) => predicate.name.hash(state),
        }
    }
}

/// What a dump takes.
#[derive(Debug, Clone)]
pub(crate) enum DumpPredicate {
    Filter(Box<FilterPredicate>),
    Script(ScriptPredicate),
}

/// A filter, with what it has learned about fragments.
#[derive(Debug, Clone)]
pub(crate) struct FilterPredicate {
    prepared: PreparedFilter,
    state: FlowState,
    /// Decides about what the filter takes.
    narrow: Option<ScopeFilter>,
}

impl DumpPredicate {
    fn new(filled: Filled, offline: bool, sought: Option<&Arc<AlertScope>>) -> Self {
        let filter = Filter::new(filled);
        let state = filter.state();
        Self::Filter(Box::new(FilterPredicate {
            prepared: PreparedFilter::new(filter, mode(offline)),
            state,
            narrow: sought.and_then(ScopeFilter::new),
        }))
    }

    /// Whether the dump takes a packet that its filter takes.
    pub(crate) fn keeps(&mut self, interface: &RecordedInterface, data: &[u8]) -> bool {
        match self {
            Self::Filter(filter) => {
                let narrow = filter.narrow.as_mut();
                narrow.is_none_or(|narrow| narrow.takes(interface, data))
            }
            Self::Script(_) => true,
        }
    }

    /// The filter, for a rule set, which finds the packets to ask about; `None`: a script decides.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        match self {
            Self::Filter(filter) => Some(&filter.prepared.filter),
            Self::Script(_) => None,
        }
    }

    /// The script, if one decides.
    pub(crate) fn script(&self) -> Option<&ScriptPredicate> {
        match self {
            Self::Filter(_) => None,
            Self::Script(script) => Some(script),
        }
    }

    /// Notes that the dump takes nothing of a link type; found out by the rule set.
    pub(crate) fn refuse(&mut self, link_type: LinkType, error: &FilterError) {
        if let Self::Filter(filter) = self {
            filter.prepared.refuse(link_type, error);
        }
    }

    /// Of these link types, and of no others, those are told that the dump takes nothing of, in this order.
    pub(crate) fn tell_refused(&mut self, link_types: &[LinkType]) {
        if let Self::Filter(filter) = self {
            filter.prepared.tell_refused(link_types);
        }
    }

    /// Whether [`Self::decide`] is quick for a link type: libpcap compiles for as long as it likes. From files everything waits in any case.
    pub(crate) fn decides_at_once(&self, link_type: LinkType) -> bool {
        let Self::Filter(filter) = self else {
            return true;
        };
        let prepared = &filter.prepared;
        let link = context(link_type, prepared.mode);
        prepared.mode == Mode::Savefile
            || prepared.knows(link_type)
            || prepared.filter.prepares_at_once(link)
    }

    /// Whether the dump takes a packet, whose stamp is `offset_ns` ahead of its ring time.
    pub(crate) fn decide(
        &mut self,
        interface: &RecordedInterface,
        packet: &Packet<'_>,
        offset_ns: i64,
    ) -> Verdict {
        match self {
            Self::Filter(filter) => {
                let FilterPredicate {
                    prepared,
                    state,
                    narrow,
                } = &mut **filter;
                prepared.prepare(interface.link_type);
                let view = view(interface.link_type, packet, prepared.mode);
                let mut verdict = prepared.filter.evaluate(state, &view);
                if verdict.decision == Decision::Take
                    && let Some(narrow) = narrow
                    && !narrow.takes(interface, packet.data)
                {
                    verdict.decision = Decision::Skip;
                }
                verdict
            }
            Self::Script(script) => {
                let stamp_ns = packet.time_ns.wrapping_add(offset_ns);
                let taken = script.match_many(&[shown(packet, stamp_ns, interface.link_type)]);
                let decision = if taken == 0 {
                    Decision::Skip
                } else {
                    Decision::Take
                };
                Verdict {
                    decision,
                    resolves: None,
                }
            }
        }
    }

    /// Whether it forgot, for want of room, whether some datagram belongs to the flow. Its later fragments are then undecided though
    /// the first one was seen.
    pub(crate) fn has_forgotten_fragments(&self) -> bool {
        matches!(self, Self::Filter(filter) if filter.state.has_forgotten)
    }

    /// Whether the dump takes nothing of a link type, because the filter was refused for it.
    pub(crate) fn is_refused(&self, link_type: LinkType) -> bool {
        let is_it = |(refused, _): &(LinkType, String)| *refused == link_type;
        matches!(self, Self::Filter(filter) if filter.prepared.refused.iter().any(is_it))
    }

    /// Link types that the dump takes nothing of.
    pub(crate) fn notes(&self) -> Vec<String> {
        let Self::Filter(filter) = self else {
            return Vec::new();
        };
        let refused = filter.prepared.refused.iter();
        let note = |(link_type, error): &(LinkType, String)| {
            format!("takes nothing of link type {}: {error}", link_type.0)
        };
        refused.map(note).collect()
    }

    /// Why it may not have taken all that it should.
    pub(crate) fn fault(&self) -> Option<String> {
        self.script().and_then(ScriptPredicate::fault)
    }
}

/// The Lua state of the dump script.
#[derive(Debug, Clone)]
pub(crate) struct LuaState {
    pub(crate) script: Arc<Mutex<Machine>>,
    pub(crate) common: Arc<RecorderShared>,
}

impl LuaState {
    /// Calls the script, and counts it when it fails.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&mut Machine) -> R) -> R {
        let mut script = lock(&self.script);
        let result = call(&mut script);
        if script.fault.is_some() {
            // Relaxed: a number that stands alone; the lock makes its writers one.
            let failed = &self.common.counters.dump_script_failed;
            failed.store(1, Ordering::Relaxed);
        }
        result
    }
}

/// What one call of the dump function made: a function over packets. It is given up with the last of its clones.
#[derive(Debug, Clone)]
pub(crate) struct ScriptPredicate {
    pub(crate) state: LuaState,
    pub(crate) function: Arc<retroscope_script::Predicate>,
    /// What it takes, for people; two of one name take the same.
    pub(crate) name: Arc<str>,
}

impl ScriptPredicate {
    /// Which of at most [`retroscope_script::MANY`] packets it takes: bit `n` is that of packet `n`.
    pub(crate) fn match_many(&self, packets: &[ScriptPacket<'_>]) -> u64 {
        let function = &self.function;
        (self.state).call(|script| script.match_derived(function, packets))
    }

    /// Why it takes nothing any more, if its script is disabled.
    pub(crate) fn fault(&self) -> Option<String> {
        lock(&self.state.script)
            .fault
            .as_ref()
            .map(ToString::to_string)
    }
}
