//! What hits would dump, and what dumps take.

use std::{
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, atomic::Ordering},
};

use retroscope_filter::{
    Decision, FillError, FilledExpression, Filter, FilterAnswer, FilterError, FilterMode,
    FlowState, Template, TriggerFacts, TriggerValues,
};
use retroscope_flow::BiflowKey;
use retroscope_packet::{LinkType, parse};
use retroscope_ring::Packet;
use retroscope_script::{Machine, ScriptPacket};

use crate::{
    analysis::{
        alerts::{Narrow, Sought},
        fragments::FirstFragments,
        prepared::{Prepared, context, mode, view},
        terms::SubDirectory,
        trigger_scripts::shown,
    },
    control::{common::Common, lock},
    intake::interfaces::Interface,
};

/// What a hit would dump. Two are equal if their dumps take the same packets for the same reason, and go to the same place. Nothing is formatted before one
/// is opened.
#[derive(Debug, Clone)]
pub(crate) struct Expression {
    what: What,
    /// The interface of the trigger packet.
    pub(crate) interface: u16,
    /// Where its dump goes, if it has a directory of its own.
    pub(crate) into: Option<SubDirectory>,
    /// A script made it for packets of this link type.
    pub(crate) made_for: Option<LinkType>,
    /// The flow that it is of, where a module says when that is over.
    pub(crate) flow: Option<BiflowKey>,
}

#[derive(Debug, Clone)]
enum What {
    /// A template, and the values of its variables in the trigger packet.
    Values(Arc<Template>, Arc<TriggerValues>),
    /// An expression that asks for no trigger packet. For an alert, the expression finds packets,
    /// and the second part decides which packets the alert is about.
    Plain(Arc<FilledExpression>, Option<Arc<Sought>>),
    Script(ScriptPredicate),
}

impl Expression {
    /// What `template` says of a packet, with what is known of the datagram it may be a later fragment of.
    pub(crate) fn new(
        template: &Arc<Template>,
        interface: &Interface,
        packet: &Packet<'_>,
        fragments: &FirstFragments,
    ) -> Result<Self, FillError> {
        let parsed = parse(interface.link_type, packet.data);
        let values = template.values(&TriggerFacts {
            parsed,
            interface: packet.interface,
            first_fragment: fragments.flow(&parsed, packet.time_ns),
        })?;
        let what = What::Values(Arc::clone(template), Arc::new(values));
        Ok(Self::of(what, packet.interface))
    }

    fn of(what: What, interface: u16) -> Self {
        Self {
            what,
            interface,
            into: None,
            made_for: None,
            flow: None,
        }
    }

    /// An expression that asks for no trigger packet.
    pub(crate) fn plain(filled: FilledExpression) -> Self {
        Self::of(What::Plain(Arc::new(filled), None), 0)
    }

    /// The expression that finds the packets of an alert.
    pub(crate) fn of_alert(sought: Sought) -> Result<Self, FilterError> {
        let filled = Arc::new(sought.filled()?);
        Ok(Self::of(What::Plain(filled, Some(Arc::new(sought))), 0))
    }

    /// The predicate that a dump script returned for a packet of `interface`.
    pub(crate) fn scripted(predicate: ScriptPredicate, interface: u16) -> Self {
        Self::of(What::Script(predicate), interface)
    }

    /// The expression as people read it, and what a dump of it takes.
    pub(crate) fn resolve(&self, offline: bool) -> (String, Predicate) {
        let (filled, sought) = match &self.what {
            What::Values(template, values) => (template.filled(values), None),
            What::Plain(filled, sought) => (FilledExpression::clone(filled), sought.as_ref()),
            What::Script(predicate) => {
                let text = predicate.name.to_string();
                return (text, Predicate::Script(predicate.clone()));
            }
        };
        let mut text = filled.as_str().to_owned();
        text.extend(sought.map(|sought| sought.to_string()));
        (text, Predicate::new(filled, offline, sought))
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.what, &other.what) {
            (What::Values(a, values), What::Values(b, others)) => {
                (Arc::ptr_eq(a, b) || a == b) && values == others
            }
            (What::Plain(a, sought), What::Plain(b, others)) => a == b && sought == others,
            (What::Script(a), What::Script(b)) => a.name == b.name,
            _ => false,
        };
        is_same && self.into == other.into
    }
}

impl Eq for Expression {}

impl Hash for Expression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.what {
            What::Values(_, values) => values.hash(state),
            What::Plain(filled, _) => filled.hash(state),
            What::Script(predicate) => predicate.name.hash(state),
        }
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
    /// Decides about what the filter takes.
    narrow: Option<Narrow>,
}

impl Predicate {
    fn new(filled: FilledExpression, offline: bool, sought: Option<&Arc<Sought>>) -> Self {
        let filter = Filter::new(filled);
        let state = filter.state();
        Self::Filter(Box::new(FilterPredicate {
            prepared: Prepared::new(filter, mode(offline)),
            state,
            narrow: sought.and_then(Narrow::new),
        }))
    }

    /// Whether the dump takes a packet that its filter takes.
    pub(crate) fn keeps(&mut self, interface: &Interface, data: &[u8]) -> bool {
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
        prepared.mode == FilterMode::Savefile
            || prepared.knows(link_type)
            || prepared.filter.prepares_quickly(link)
    }

    /// Whether the dump takes a packet, whose stamp is `offset_ns` ahead of its ring time.
    pub(crate) fn decide(
        &mut self,
        interface: &Interface,
        packet: &Packet<'_>,
        offset_ns: i64,
    ) -> FilterAnswer {
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
                FilterAnswer {
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
    pub(crate) common: Arc<Common>,
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
    pub(crate) function: Arc<retroscope_script::LuaPredicate>,
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
