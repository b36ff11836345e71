//! The dump script: makes an expression or a predicate of a trigger packet.
//!
//! The analyzer calls the dump function when a packet triggers; the dumper asks the predicates that came out of it, many
//! packets at a time. Both use one Lua state, under a mutex that is held for one call: the analyzer waits for at most one
//! chunk of the dumper, or, once, for a call that is stopped for its time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, atomic::Ordering},
};

use retroscope_filter::{FilterError, Template};
use retroscope_packet::{LinkType, flow_of, parse};
use retroscope_ring::Packet;
use retroscope_script::{
    Derived, Limits, Machine, Packet as ScriptPacket, Predicate, Script, ScriptError,
};

use crate::{
    analysis::{
        fragments::FirstFragments,
        predicate::Expression,
        trigger_scripts::{News, shown},
    },
    control::{common::Common, hits::Refusal, lock, time::rfc3339},
    intake::interfaces::Interface,
};

/// Texts of expressions that are remembered with what became of them.
const TEMPLATES_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct DumpFunction {
    state: LuaState,
    templates: HashMap<(LinkType, String), Result<Arc<Template>, String>>,
    news: News,
}

/// The Lua state.
#[derive(Debug, Clone)]
struct LuaState {
    script: Arc<Mutex<Machine>>,
    common: Arc<Common>,
}

/// What one call of the dump function made: a function over packets. It is given up with the last of its clones.
#[derive(Debug, Clone)]
pub(crate) struct ScriptPredicate(Arc<Held>);

#[derive(Debug)]
struct Held {
    state: LuaState,
    predicate: Predicate,
    /// What it takes, for people; two of one name take the same.
    name: String,
}

impl LuaState {
    /// Calls the script, and counts it when it fails.
    fn call<R>(&self, call: impl FnOnce(&mut Machine) -> R) -> R {
        let mut script = lock(&self.script);
        let result = call(&mut script);
        if script.fault().is_some() {
            // Relaxed: a number that stands alone; the lock makes its writers one.
            let failed = &self.common.counters.dump_script_failed;
            failed.store(1, Ordering::Relaxed);
        }
        result
    }
}

impl DumpFunction {
    /// Runs the file once. The counters learn when the script fails.
    pub(crate) fn new(
        script: &Script,
        limits: Limits,
        common: &Arc<Common>,
    ) -> Result<Self, ScriptError> {
        let script = Machine::new(script, limits)?;
        Ok(Self {
            state: LuaState {
                script: Arc::new(Mutex::new(script)),
                common: Arc::clone(common),
            },
            templates: HashMap::new(),
            news: News::of("dumps"),
        })
    }

    /// What a packet of this stamp that triggered dumps; `None`: nothing. `check` compiles a text that it did not see before.
    pub(crate) fn expression(
        &mut self,
        interface: &Interface,
        packet: &Packet<'_>,
        stamp_ns: i64,
        fragments: &FirstFragments,
        check: impl Fn(&Template, LinkType) -> Result<(), FilterError>,
    ) -> Option<Result<Expression, Refusal>> {
        let trigger = shown(packet, stamp_ns, interface.link_type);
        let derive = |script: &mut Machine| (script.derive(&trigger), script.name().to_owned());
        let (derived, script) = self.state.call(derive);
        let Some(derived) = derived else {
            return Some(Err(Refusal::Script(format!("{script} failed"))));
        };
        match derived {
            Derived::Nothing => None,
            Derived::Expression(text) => {
                let template = self.template(text, interface.link_type, check);
                Some(match template {
                    Ok(template) => Expression::new(template, interface, packet, fragments)
                        .map_err(Refusal::Variable),
                    Err(error) => Err(Refusal::Script(format!("{script}: {error}"))),
                })
            }
            Derived::Predicate { predicate, name } => {
                let name = name.unwrap_or_else(|| cause(&trigger));
                let held = Held {
                    state: self.state.clone(),
                    predicate,
                    name: format!("{script}[{name}]"),
                };
                let predicate = ScriptPredicate(Arc::new(held));
                Some(Ok(Expression::scripted(predicate, packet.interface)))
            }
        }
    }

    fn template(
        &mut self,
        text: String,
        link_type: LinkType,
        check: impl Fn(&Template, LinkType) -> Result<(), FilterError>,
    ) -> &Result<Arc<Template>, String> {
        if self.templates.len() >= TEMPLATES_MAX {
            self.templates.clear();
        }
        self.templates
            .entry((link_type, text))
            .or_insert_with_key(|(_, text)| {
                let template = Template::parse(text).and_then(|template| {
                    let template = template.without_names()?;
                    check(&template, link_type)?;
                    Ok(Arc::new(template))
                });
                template.map_err(|error| format!("'{text}': {error}"))
            })
    }

    /// What the script printed, and, once, why it is disabled.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        self.news.take(&mut lock(&self.state.script))
    }
}

/// What is said of a trigger packet whose dump has no name: its flow, as `$flow` would have it.
fn cause(trigger: &ScriptPacket<'_>) -> String {
    let flow = flow_of(&parse(trigger.link_type, trigger.data));
    flow.map_or_else(|| rfc3339(trigger.time_ns), |flow| flow.to_string())
}

impl ScriptPredicate {
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Which of at most [`retroscope_script::MANY`] packets it takes: bit `n` is that of packet `n`.
    pub(crate) fn match_many(&self, packets: &[ScriptPacket<'_>]) -> u64 {
        let Held {
            state, predicate, ..
        } = &*self.0;
        state.call(|script| script.match_derived(predicate, packets))
    }

    /// Why it takes nothing any more, if its script is disabled.
    pub(crate) fn fault(&self) -> Option<String> {
        lock(&self.0.state.script).fault().map(ToString::to_string)
    }
}
