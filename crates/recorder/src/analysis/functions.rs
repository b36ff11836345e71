//! The user's scripts: trigger scripts, modules over flows, and the dump script.

use std::sync::Arc;

use retroscope_script::{ScriptError, ScriptLimits};

use crate::{
    analysis::{dump_script::DumpFunction, trigger_scripts::TriggerScripts},
    control::common::RecorderShared,
    start::config::Scripts,
};

#[derive(Debug, Default)]
pub(crate) struct ScriptFunctions {
    pub(crate) triggers: TriggerScripts,
    /// The dump script, which replaces the default dump template.
    pub(crate) dump: Option<DumpFunction>,
}

impl ScriptFunctions {
    /// Runs each file once. `common` gets the counters of modules, and counts later failures.
    pub(crate) fn new(
        scripts: &Scripts,
        limits: ScriptLimits,
        common: &Arc<RecorderShared>,
    ) -> Result<Self, ScriptError> {
        let dump = scripts.dump.as_ref();
        Ok(Self {
            triggers: TriggerScripts::new(scripts, limits, common)?,
            dump: dump
                .map(|script| DumpFunction::new(script, limits, common))
                .transpose()?,
        })
    }

    /// Whether there are scripts or modules.
    pub(crate) fn any(&self) -> bool {
        !self.triggers.is_empty() || self.dump.is_some()
    }

    /// A notice for the user at the start, if there are scripts and LuaJIT does not compile them.
    pub(crate) fn start_notice(&self) -> Option<String> {
        let slow = self.any() && !retroscope_script::compiles();
        slow.then(|| {
            "scripts are interpreted, not compiled: this LuaJIT was built without LUAJIT_ENABLE_CHECKHOOK".to_owned()
        })
    }
}
