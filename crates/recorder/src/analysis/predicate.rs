//! The expressions of hits, and the predicates by which dumps select packets.

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
        alerts::{AlertScope, ScopeFilter},
        fragments::FirstFragments,
        prepared::{PreparedFilter, context, mode, view},
        terms::SubDirectory,
        trigger_scripts::shown,
    },
    control::{common::RecorderShared, lock},
    intake::interfaces::RecordedInterface,
};

/// The dump expression of a hit. Equality includes the dump's directory; of a script's predicate it
/// compares only the name.
#[derive(Debug, Clone)]
pub(crate) struct DumpExpression {
    what: ExpressionKind,
    /// The interface of the trigger packet; 0 without a trigger packet.
    pub(crate) interface: u16,
    /// Directory of the dump, if the request of the rule or command names a directory.
    pub(crate) into: Option<SubDirectory>,
    /// The link type of the trigger packet, if a script or module made the expression.
    pub(crate) made_for: Option<LinkType>,
    /// The flow of the hit, if a module reports when the flow ends.
    pub(crate) flow: Option<BiflowKey>,
}

#[derive(Debug, Clone)]
enum ExpressionKind {
    /// A template, and the values of its variables in the trigger packet.
    Values(Arc<Template>, Arc<TriggerValues>),
    /// An expression that needs no trigger packet. For an alert, the scope decides which of the
    /// packets found belong to the dump.
    Plain(Arc<FilledExpression>, Option<Arc<AlertScope>>),
    Script(ScriptPredicate),
}

impl DumpExpression {
    /// Fills in `template` for a packet. If the packet is a later fragment, `fragments` may know
    /// its flow.
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

    /// An expression that needs no trigger packet.
    pub(crate) fn plain(filled: FilledExpression) -> Self {
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

    /// The expression as text, and the predicate of its dump.
    pub(crate) fn resolve(&self, offline: bool) -> (String, DumpPredicate) {
        let (filled, sought) = match &self.what {
            ExpressionKind::Values(template, values) => (template.filled(values), None),
            ExpressionKind::Plain(filled, sought) => {
                (FilledExpression::clone(filled), sought.as_ref())
            }
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

/// Selects the packets of a dump.
#[derive(Debug, Clone)]
pub(crate) enum DumpPredicate {
    Filter(Box<FilterPredicate>),
    Script(ScriptPredicate),
}

/// A filter, and the flows of fragmented datagrams that it has learned.
#[derive(Debug, Clone)]
pub(crate) struct FilterPredicate {
    prepared: PreparedFilter,
    state: FlowState,
    /// For an alert: decides which of the packets that the filter matches belong to the dump.
    narrow: Option<ScopeFilter>,
}

impl DumpPredicate {
    fn new(filled: FilledExpression, offline: bool, sought: Option<&Arc<AlertScope>>) -> Self {
        let filter = Filter::new(filled);
        let state = filter.state();
        Self::Filter(Box::new(FilterPredicate {
            prepared: PreparedFilter::new(filter, mode(offline)),
            state,
            narrow: sought.and_then(ScopeFilter::new),
        }))
    }

    /// Whether the dump keeps a packet that its filter has already matched.
    pub(crate) fn keeps(&mut self, interface: &RecordedInterface, data: &[u8]) -> bool {
        match self {
            Self::Filter(filter) => {
                let narrow = filter.narrow.as_mut();
                narrow.is_none_or(|narrow| narrow.takes(interface, data))
            }
            Self::Script(_) => true,
        }
    }

    /// Whether the dump's filter selects all packets, or all packets of an interface.
    pub(crate) fn selects_no_flow(&self) -> bool {
        let filter = self.filter();
        filter.is_some_and(|filter| filter.filled().selects_no_flow())
    }

    /// The filter, for a rule set that finds candidate packets; `None`: a script decides.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        match self {
            Self::Filter(filter) => Some(&filter.prepared.filter),
            Self::Script(_) => None,
        }
    }

    pub(crate) fn script(&self) -> Option<&ScriptPredicate> {
        match self {
            Self::Filter(_) => None,
            Self::Script(script) => Some(script),
        }
    }

    /// Notes that the dump selects nothing of a link type, as the rule set found.
    pub(crate) fn refuse(&mut self, link_type: LinkType, error: &FilterError) {
        if let Self::Filter(filter) = self {
            filter.prepared.refuse(link_type, error);
        }
    }

    /// From now on reports which of these link types, in this order, the filter does not compile
    /// for.
    pub(crate) fn tell_refused(&mut self, link_types: &[LinkType]) {
        if let Self::Filter(filter) = self {
            filter.prepared.tell_refused(link_types);
        }
    }

    /// Live: `false` if [`Self::decide`] would first compile the filter for this link type, and
    /// libpcap takes long. From files always `true`.
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

    /// Whether the dump selects a packet whose stamp is `offset_ns` ahead of its ring time.
    pub(crate) fn decide(
        &mut self,
        interface: &RecordedInterface,
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

    /// Whether the filter dropped, for lack of room, the flow of some datagram.
    pub(crate) fn has_forgotten_fragments(&self) -> bool {
        matches!(self, Self::Filter(filter) if filter.state.has_forgotten)
    }

    /// Whether the dump selects nothing of a link type because libpcap refused the filter for this
    /// type.
    pub(crate) fn is_refused(&self, link_type: LinkType) -> bool {
        let is_it = |(refused, _): &(LinkType, String)| *refused == link_type;
        matches!(self, Self::Filter(filter) if filter.prepared.refused.iter().any(is_it))
    }

    /// Messages about link types of which the dump selects nothing.
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

    /// The reason why the dump's script is disabled, if it is.
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
    /// Calls the script, and counts a failure.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&mut Machine) -> R) -> R {
        let mut script = lock(&self.script);
        let result = call(&mut script);
        if script.fault.is_some() {
            // Relaxed: no other data is published with this number, and all writers store the same
            // value.
            let failed = &self.common.counters.dump_script_failed;
            failed.store(1, Ordering::Relaxed);
        }
        result
    }
}

/// A predicate that the dump function returned. Lua keeps the function until the last clone is
/// dropped.
#[derive(Debug, Clone)]
pub(crate) struct ScriptPredicate {
    pub(crate) state: LuaState,
    pub(crate) function: Arc<retroscope_script::LuaPredicate>,
    /// Describes the selected packets to people. Predicates with equal names count as equal.
    pub(crate) name: Arc<str>,
}

impl ScriptPredicate {
    /// The packets that the predicate selects, of at most [`retroscope_script::MANY`]: bit `n` is
    /// for packet `n`.
    pub(crate) fn match_many(&self, packets: &[ScriptPacket<'_>]) -> u64 {
        let function = &self.function;
        (self.state).call(|script| script.match_derived(function, packets))
    }

    /// If the script is disabled, so that the predicate selects nothing any more: the reason.
    pub(crate) fn fault(&self) -> Option<String> {
        lock(&self.state.script)
            .fault
            .as_ref()
            .map(ToString::to_string)
    }
}
