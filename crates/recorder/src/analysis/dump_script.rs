//! The dump script: makes an expression or a predicate of a trigger packet.
//!
//! The analyzer calls the dump function when a packet triggers; the dumper asks the predicates that came out of it, many
//! packets at a time. Both use one Lua state, under a mutex that is held for one call: the analyzer waits for at most one
//! chunk of the dumper, or, once, for a call that is stopped for its time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use retroscope_filter::Template;
use retroscope_packet::{LinkType, flow_of, parse};
use retroscope_ring::Packet;
use retroscope_script::{
    Derived, Limits, Machine, Packet as ScriptPacket, Partition, Script, ScriptError,
};

use crate::{
    analysis::{
        fragments::FirstFragments,
        predicate::{DumpExpression, LuaState, ScriptPredicate},
        prepared::{context, mode},
        trigger_scripts::{FailureNotice, shown},
    },
    control::{common::RecorderShared, hits::HitRefusal, lock, time::rfc3339},
    intake::interfaces::RecordedInterface,
};

/// Texts of expressions that are remembered with what became of them.
const TEMPLATES_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct DumpFunction {
    state: LuaState,
    news: FailureNotice,
}

impl DumpFunction {
    /// Runs the file once. The counters learn when the script fails.
    pub(crate) fn new(
        script: &Script,
        limits: Limits,
        common: &Arc<RecorderShared>,
    ) -> Result<Self, ScriptError> {
        let script = Machine::new(script, limits)?;
        Ok(Self {
            state: LuaState {
                script: Arc::new(Mutex::new(script)),
                common: Arc::clone(common),
            },
            news: FailureNotice::of("dumps"),
        })
    }

    /// What it wants to see in one state.
    pub(crate) fn partition(&self) -> Partition {
        lock(&self.state.script).partition()
    }

    /// What a packet of this stamp that triggered dumps; `None`: nothing.
    pub(crate) fn expression(
        &mut self,
        interface: &RecordedInterface,
        packet: &Packet<'_>,
        stamp_ns: i64,
        fragments: &FirstFragments,
        texts: &mut TextTemplates,
    ) -> Option<Result<DumpExpression, HitRefusal>> {
        let trigger = shown(packet, stamp_ns, interface.link_type);
        let derive = |script: &mut Machine| (script.derive(&trigger), script.name().to_owned());
        let (derived, script) = self.state.call(derive);
        let Some(derived) = derived else {
            return Some(Err(HitRefusal::Script(format!("{script} failed"))));
        };
        let mut expression = match derived {
            Derived::Nothing => None,
            Derived::Expression(text) => Some(match texts.get(text, interface.link_type) {
                Ok(template) => DumpExpression::new(template, interface, packet, fragments)
                    .map_err(HitRefusal::Variable),
                Err(error) => Err(HitRefusal::Script(format!("{script}: {error}"))),
            }),
            Derived::Predicate { predicate, name } => {
                let name = name.unwrap_or_else(|| cause(&trigger));
                let predicate = ScriptPredicate {
                    state: self.state.clone(),
                    function: Arc::new(predicate),
                    name: format!("{script}[{name}]").into(),
                };
                Some(Ok(DumpExpression::scripted(predicate, packet.interface)))
            }
        };
        if let Some(Ok(expression)) = &mut expression {
            expression.made_for = Some(interface.link_type);
        }
        expression
    }

    /// What the script printed, and, once, why it is disabled.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        self.news.take(&mut lock(&self.state.script))
    }
}

/// Dump expressions that scripts and modules made, by their texts.
#[derive(Debug, Default)]
pub(crate) struct TextTemplates {
    live: bool,
    templates: HashMap<(LinkType, String), Result<Arc<Template>, String>>,
}

impl TextTemplates {
    pub(crate) fn new(live: bool) -> Self {
        Self {
            live,
            ..Self::default()
        }
    }

    /// The expression of a text, for packets of a link type, or why it is none.
    pub(crate) fn get(
        &mut self,
        text: String,
        link_type: LinkType,
    ) -> &Result<Arc<Template>, String> {
        if self.templates.len() >= TEMPLATES_MAX {
            self.templates.clear();
        }
        let live = self.live;
        let templates = self.templates.entry((link_type, text));
        templates.or_insert_with_key(|(_, text)| {
            let template = Template::parse(text).and_then(|template| {
                let template = template.without_names()?;
                let link = context(link_type, mode(!live));
                // What libpcap is slow at is compiled beside the dumps; why it refuses it, their reports say.
                if !live || template.checks_at_once(link) {
                    template.check(link)?;
                }
                Ok(Arc::new(template))
            });
            template.map_err(|error| format!("'{text}': {error}"))
        })
    }
}

/// How a trigger packet is described where its dump has no name: by its flow, as `$flow` would have it.
fn cause(trigger: &ScriptPacket<'_>) -> String {
    let flow = flow_of(&parse(trigger.link_type, trigger.data));
    flow.map_or_else(|| rfc3339(trigger.time_ns), |flow| flow.to_string())
}
