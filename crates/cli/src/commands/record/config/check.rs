//! Checks a configuration: by `--check-config`, before the start opens a source, and at a reload.

use std::{fs, path::Path, sync::Arc};

use retroscope_api::Owner;
use retroscope_capture::SourceError;
use retroscope_filter::FilterError;
use retroscope_recorder::{Config, check_alert_template, check_expression, check_template};
use retroscope_script::{LuaModule, Machine, Script, ScriptError, ScriptLimits};

use super::{
    Loaded, What, keys_in,
    text::{ConfigFault, Place},
};
use crate::{commands::record::open_sources, privileges::Privileges};

/// Scope of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// Names of rules, expressions, and contradictions between keys that may change during a
    /// recording. Files are not checked.
    Reload,
    /// All keys, and whether the files that the start reads exist. Scripts are read but not loaded,
    /// because the start loads all scripts.
    Start,
    /// Also scripts: each script is loaded to find its errors. Trusted scripts are only read,
    /// because they have full access to the system.
    Whole,
}

/// Returns the errors of a configuration. Scripts are loaded only if names of rules, expressions
/// and files have no error. Contradictions of keys are checked only if there is no other error.
pub(super) fn check(loaded: &Loaded, depth: Depth) -> Vec<ConfigFault> {
    let mut faults = numbers(loaded);
    faults.extend(expressions(loaded));
    if depth >= Depth::Start {
        faults.extend(files(loaded));
    }
    if depth >= Depth::Whole && faults.is_empty() {
        faults.extend(scripts(loaded));
    }
    if faults.is_empty() {
        match depth {
            Depth::Reload => {
                let followed = loaded.followed(Config::default());
                faults.extend(followed.err().map(|it| mentioned(loaded, it.message())));
            }
            Depth::Start | Depth::Whole => faults.extend(together(loaded)),
        }
    }
    faults
}

/// An expression with the option that contains it.
pub(crate) struct Expression<'a> {
    /// The option, and the index of its value.
    pub(crate) option: (&'static str, usize),
    pub(crate) text: &'a str,
    /// The expression may contain names such as `$srcIP`, which a trigger packet fills in.
    pub(crate) is_template: bool,
}

/// An error for each rule whose name is the number of a trigger without a rule.
fn numbers(loaded: &Loaded) -> Vec<ConfigFault> {
    let taken = 1..=loaded.numbered_count();
    let is_taken = |name: &str| {
        let number = name.parse::<usize>().ok();
        number.filter(|number| taken.contains(number) && number.to_string() == name)
    };
    let rules = loaded.rules.iter().filter_map(|rule| {
        let number = is_taken(&rule.rule.name)?;
        let why = format!("name: '{number}' is what trigger {number} of the options is called");
        Some(rule.place_of("name").fault(why))
    });
    rules.collect()
}

fn expressions(loaded: &Loaded) -> Vec<ConfigFault> {
    let mut faults = Vec::new();
    type Check = fn(&str) -> Result<(), FilterError>;
    let mut check = |text: &str, check: Check, place: Place, what: &str| {
        if let Err(error) = check(text) {
            faults.push(place.fault(of_expression(what, &error)));
        }
    };
    for expression in loaded.expressions() {
        let (option, number) = expression.option;
        let span = loaded.spans_of(option).get(number).cloned();
        let template: Check = match expression.is_template {
            true => check_template,
            false => check_expression,
        };
        check(expression.text, template, span.into(), option);
    }
    for rule in &loaded.rules {
        let (it, place) = (&rule.rule, |key| rule.place_of(key));
        if let What::Filter(text) = &it.what {
            let what = format!("rule '{}'", it.name);
            check(text, check_expression, place("filter"), &what);
        }
        if let Some(text) = &it.request.dump {
            let what = format!("dump of rule '{}'", it.name);
            check(text, check_template, place("dump"), &what);
        }
        if let Some(text) = &it.request.alert_dump {
            let what = format!("alert-dump of rule '{}'", it.name);
            check(text, check_alert_template, place("alert-dump"), &what);
        }
    }
    faults
}

/// The message about an expression. `what`: the option or the rule of the expression. Further lines
/// mark the place of the error in the expression.
fn of_expression(what: &str, error: &FilterError) -> String {
    let rendered = error.render();
    let rendered = rendered.strip_prefix("filter: ").unwrap_or(&rendered);
    format!("{what}: {rendered}")
}

/// An error for each file that does not exist or is in a directory that cannot be searched.
fn files(loaded: &Loaded) -> Vec<ConfigFault> {
    let mut faults = Vec::new();
    let mut check = |path: &Path, place: Place, what: &str| {
        let is_stdin = what == "read" && path.as_os_str() == "-";
        if !is_stdin && let Err(error) = fs::metadata(path) {
            let message = format!("{what}: cannot read {}: {error}", path.display());
            faults.push(place.fault(message));
        }
    };
    let (it, api) = (&loaded.settings, &loaded.settings.api);
    let lists = [
        ("read", &it.read),
        ("trigger-lua", &it.trigger_lua),
        ("module", &it.module),
    ];
    let lists = lists.into_iter().flat_map(|(key, paths)| {
        let paths = paths.iter().enumerate();
        paths.map(move |(number, path)| (key, number, path))
    });
    let single = [
        ("filter-file", &it.filter_file),
        ("dump-lua", &it.dump_lua),
        ("api.tokens", &api.tokens),
        ("api.tls-cert", &api.tls_cert),
        ("api.tls-key", &api.tls_key),
        ("api.tls-client-ca", &api.tls_client_ca),
    ];
    let single = single
        .into_iter()
        .filter_map(|(key, path)| Some((key, 0, path.as_ref()?)));
    for (key, number, path) in lists.chain(single) {
        check(path, loaded.spans_of(key).get(number).cloned().into(), key);
    }
    for rule in &loaded.rules {
        match &rule.rule.what {
            What::Lua(path) => check(path, rule.place_of("lua"), "lua"),
            What::Module(path) => check(path, rule.place_of("module"), "module"),
            What::Filter(_) => {}
        }
    }
    faults
}

/// An error for each script that cannot be read or fails to load.
fn scripts(loaded: &Loaded) -> Vec<ConfigFault> {
    let mut faults = Vec::new();
    let args = &loaded.settings;
    let limits = ScriptLimits::default();
    let mut check = |path: &Path, is_module: bool, place: Place| {
        let load = |script: &Script| -> Result<(), ScriptError> {
            if args.lua_trusted {
                return Ok(());
            }
            match is_module {
                true => LuaModule::new(script, limits).map(|_| ()),
                false => Machine::new(script, limits).map(|_| ()),
            }
        };
        let loaded = Script::read(path, args.lua_trusted).and_then(|script| load(&script));
        if let Err(error) = loaded {
            faults.push(place.fault(error.to_string()));
        }
    };
    let of = |option: &str, number: usize| -> Place {
        loaded.spans_of(option).get(number).cloned().into()
    };
    for (number, path) in args.trigger_lua.iter().enumerate() {
        check(path, false, of("trigger-lua", number));
    }
    for (number, path) in args.module.iter().enumerate() {
        check(path, true, of("module", number));
    }
    if let Some(path) = &args.dump_lua {
        check(path, false, of("dump-lua", 0));
    }
    for rule in &loaded.rules {
        match &rule.rule.what {
            What::Lua(path) => check(path, false, rule.place_of("lua")),
            What::Module(path) => check(path, true, rule.place_of("module")),
            What::Filter(_) => {}
        }
    }
    faults
}

/// Errors of keys that contradict each other, describe no usable source, or name an unknown user.
fn together(loaded: &Loaded) -> Vec<ConfigFault> {
    let args = &loaded.settings;
    let mut faults = Vec::new();
    let resolved = loaded.resolve().map(drop);
    let api = args.api.config(Owner::default()).map(drop);
    for error in [resolved, api].into_iter().filter_map(Result::err) {
        faults.push(mentioned(loaded, error.message()));
    }
    let cpus = args.cpu_turns();
    if let Err(SourceError::Usage(why)) = open_sources(args, &cpus, &Arc::default()) {
        let of_interfaces = loaded.spans_of("interface").first().cloned();
        let mut fault = mentioned(loaded, &why);
        fault.span = fault.span.or(of_interfaces);
        faults.push(fault);
    }
    for (key, option, user) in [
        ("relinquish-privileges", "-Z", &args.relinquish_privileges),
        ("post-user", "post-user", &args.post_user),
    ] {
        if let Err(error) = Privileges::new(option, user.as_deref(), None) {
            faults.push(ConfigFault {
                span: loaded.spans_of(key).first().cloned(),
                message: format!("{key}: {error:#}"),
            });
        }
    }
    faults
}

/// An error with `message`, at the place of the first option in the message that the file sets.
fn mentioned(loaded: &Loaded, message: &str) -> ConfigFault {
    let mut spans = keys_in(message).filter_map(|key| loaded.spans_of(&key).first().cloned());
    let span = spans.next();
    ConfigFault {
        span,
        message: message.to_owned(),
    }
}
