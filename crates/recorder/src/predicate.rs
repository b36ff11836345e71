//! Filled-in dump expressions, and what dumps take.

use std::{
    collections::HashSet,
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use retroscope_filter::{
    Decision as FilterDecision, Filled, Filter, FilterError, FlowState, Template, TriggerFacts,
};
use retroscope_packet::{FragmentKey, LinkType, parse};
use retroscope_ring::Packet;

use crate::{
    dump_script::ScriptPredicate,
    fragments::FirstFragments,
    interfaces::Interface,
    prepared::{Prepared, mode, view},
    trigger_scripts::shown,
};

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

    /// An expression that asks for no trigger packet.
    pub(crate) fn plain(filled: Filled) -> Self {
        Self {
            what: What::Filled(Arc::new(filled)),
            interface: 0,
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

    /// The filter, for a rule set, which finds the packets to ask about; `None`: a script decides.
    pub(crate) fn filter(&self) -> Option<&Filter> {
        match self {
            Self::Filter(filter) => Some(filter.prepared.filter()),
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

    /// Whether it forgot of a datagram that was seen whether it takes it: later fragments may then wait for their first in vain.
    pub(crate) fn has_forgotten_fragments(&self) -> bool {
        match self {
            Self::Filter(filter) => filter.state.has_forgotten(),
            Self::Script(_) => false,
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
    fn decide(&mut self, interface: &Interface, packet: &Packet<'_>) -> Answer {
        self.prepared.prepare(interface.link_type);
        let view = view(interface, packet, self.prepared.mode());
        let verdict = self.prepared.filter().evaluate(&mut self.state, &view);
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
        let refused = self.prepared.refused();
        refused
            .iter()
            .map(|(link_type, error)| {
                format!("takes nothing of link type {}: {error}", link_type.0)
            })
            .collect()
    }
}
