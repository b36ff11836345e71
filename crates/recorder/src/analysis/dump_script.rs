//! The dump script: makes an expression or a predicate from a trigger packet.
//!
//! The dump function runs for hits of rules without a separate template. The dumper later calls the
//! predicates that the function returned. Both use the same Lua state, whose mutex is locked for
//! one call.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use retroscope_filter::Template;
use retroscope_packet::{LinkType, flow_of, parse};
use retroscope_ring::Packet;
use retroscope_script::{
    DerivedDump, Machine, Partition, Script, ScriptError, ScriptLimits, ScriptPacket,
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

/// Maximum number of remembered templates and errors of expression texts. Once this number is
/// reached, the next look-up forgets all.
const TEMPLATES_MAX: usize = 1024;

/// The loaded dump script.
#[derive(Debug)]
pub(crate) struct DumpFunction {
    state: LuaState,
    news: FailureNotice,
}

impl DumpFunction {
    /// Runs the file once. `common` counts a failure of a later call.
    pub(crate) fn new(
        script: &Script,
        limits: ScriptLimits,
        common: &Arc<RecorderShared>,
    ) -> Result<Self, ScriptError> {
        if script.joins() {
            let name = script.name();
            let message = format!("{name}: only triggers and modules may call partition.join");
            return Err(ScriptError::Module { message });
        }
        let script = Machine::new(script, limits)?;
        Ok(Self {
            state: LuaState {
                script: Arc::new(Mutex::new(script)),
                common: Arc::clone(common),
            },
            news: FailureNotice::of("dumps"),
        })
    }

    /// The packets that one Lua state of the script must see: all packets, or those of a host pair
    /// or a flow.
    pub(crate) fn partition(&self) -> Partition {
        lock(&self.state.script).partition()
    }

    /// The dump expression of a hit on a packet with this stamp; `None`: no dump.
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
            DerivedDump::Nothing => None,
            DerivedDump::Expression(text) => Some(match texts.get(text, interface.link_type) {
                Ok(template) => DumpExpression::new(template, interface, packet, fragments)
                    .map_err(HitRefusal::Variable),
                Err(error) => Err(HitRefusal::Script(format!("{script}: {error}"))),
            }),
            DerivedDump::Predicate { predicate, name } => {
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

    /// Takes the script's output, and once the reason why it is disabled.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        self.news.take(&mut lock(&self.state.script))
    }
}

/// The templates of the texts that scripts and modules return, by link type and text.
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

    /// The template of a text, for packets of a link type, or the error.
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
                // Live, do not check here if libpcap is slow with the expression: another thread
                // compiles the filter while dumps go on.
                if !live || template.checks_quickly(link) {
                    template.check(link)?;
                }
                Ok(Arc::new(template))
            });
            template.map_err(|error| format!("'{text}': {error}"))
        })
    }
}

/// Describes a trigger packet whose dump has no name: by the flow in its headers, or by its time.
fn cause(trigger: &ScriptPacket<'_>) -> String {
    let flow = flow_of(&parse(trigger.link_type, trigger.data));
    flow.map_or_else(|| rfc3339(trigger.time_ns), |flow| flow.to_string())
}
