//! The user's scripts: those that trigger, and the one that dumps.

use std::sync::Arc;

use retroscope_script::{Limits, ScriptError};

use crate::{
    analysis::{dump_script::DumpFunction, trigger_scripts::TriggerScripts},
    control::common::RecorderShared,
    start::config::Scripts,
};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ScriptFunctions {
    pub(crate) triggers: TriggerScripts,
    /// Used in place of the dump template.
    pub(crate) dump: Option<DumpFunction>,
}

impl ScriptFunctions {
    /// Runs the files once. The counters learn when the dump script fails.
    pub(crate) fn new(
        scripts: &Scripts,
        limits: Limits,
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

    /// Whether there are scripts.
    pub(crate) fn any(&self) -> bool {
        !self.triggers.is_empty() || self.dump.is_some()
    }

    /// What a user of scripts should know.
    pub(crate) fn start_notice(&self) -> Option<String> {
        let slow = self.any() && !retroscope_script::compiles();
        slow.then(|| {
            "scripts are interpreted, not compiled: this LuaJIT was built without LUAJIT_ENABLE_CHECKHOOK".to_owned()
        })
    }
}
