//! Gives a running recorder another configuration: rules, windows, limits and cutoffs. Open dumps
//! go on as requested.
//!
//! Rules that a command added stay. Rules of the configuration are afterwards as configured, except
//! whether they are enabled.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, MutexGuard},
};

use crate::{
    analysis::{predicate::DumpExpression, terms::TriggerRequest, triggers::RuleChange},
    control::{commands::Settings, lock},
    intake::{
        capture_filter::CaptureFilter,
        shedding::{Cutoffs, FlowClass},
    },
    start::{
        config::Config,
        default_window,
        handle::{CommandError, RecorderHandle, check_when_full},
        rules::{Edit, Ready, RuleTable, names},
        shared_limits,
    },
};

/// Maximum number of tries of a reload: commands may change rules while the reload compiles.
const TRIES: usize = 16;

/// The changes of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadOutcome {
    /// Names of new rules.
    pub added: Vec<String>,
    /// Names of changed rules.
    pub changed: Vec<String>,
    /// Names of removed rules.
    pub removed: Vec<String>,
    /// Changed settings: options of the program, without `--`.
    pub settings: Vec<&'static str>,
}

impl ReloadOutcome {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for ReloadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing changed");
        }
        let settings: Vec<String> = self.settings.iter().map(|it| (*it).to_owned()).collect();
        let parts = [
            ("rules added", &self.added),
            ("rules changed", &self.changed),
            ("rules removed", &self.removed),
            ("changed", &settings),
        ];
        let parts = parts.iter().filter(|(_, names)| !names.is_empty());
        let parts = parts.map(|(what, names)| format!("{what}: {}", some(names)));
        f.write_str(&parts.collect::<Vec<_>>().join("; "))
    }
}

/// The names of a list; of a long list, the first names and the number of the other names.
fn some(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The current configuration, and its changeable parts other than rules.
#[derive(Debug)]
pub(crate) struct Configured {
    pub(crate) config: Config,
    /// `None`: inserters keep all of each flow, and a reload cannot change that.
    pub(crate) cutoffs: Option<Arc<Cutoffs>>,
}

/// A configured rule: its expression and its request.
type ConfiguredRule = (String, TriggerRequest);

/// The changes of rules that a reload makes.
#[derive(Debug, Default)]
struct ReloadPlan {
    /// Names of rules that keep their filters, and belong to the configuration from now on.
    kept: Vec<String>,
    /// Names of rules that are new or get other filters.
    put: Vec<String>,
    told: ReloadOutcome,
}

impl RecorderHandle {
    /// Makes the recorder follow another configuration. These settings apply: the rules that are
    /// expressions, with their names and requests, `dump`, `manual_dump`, `past`, `future`,
    /// `dump_packets`, `dump_bytes`, `hold_off`, `max_dumps`, `dumps_per_minute`,
    /// `limit_alerts_per_minute`, `bytes_per_hour`, `when_full` and `cutoffs`. Trigger scripts and
    /// modules must stay; other settings are ignored.
    ///
    /// # Errors
    /// [`CommandError`]: nothing has changed, except after [`CommandError::Late`] (then the rules
    /// usually change). `Refused`: for example, a rule has the name of another rule that a command
    /// added, scripts differ, or `when_full` is [`Mode::Wait`](retroscope_ring::Mode::Wait).
    pub fn reload(&self, config: &Config) -> Result<ReloadOutcome, CommandError> {
        self.check_live()?;
        let mut configured = lock(&self.rules.configured);
        let wanted = self.wanted(config, &configured.config)?;
        let settings = changed_settings(config, &configured.config);
        if settings.contains(&"when-full") {
            check_when_full(config.when_full)?;
        }
        let default = match settings.contains(&"dump") {
            true => Some(self.rules.template(&config.dump)?),
            false => None,
        };
        let manual = self.rules.prepare(&config.manual_dump)?;
        let cutoffs = match settings.contains(&"cutoff") {
            true => Some(self.classes(config, &configured)?),
            false => None,
        };
        let are_rules_concerned = settings
            .iter()
            .any(|name| !["when-full", "cutoff"].contains(name));
        let settings_of_rules = are_rules_concerned.then(|| {
            Box::new(Settings {
                window: default_window(config),
                limits: shared_limits(config),
                manual: DumpExpression::plain(manual.filter.filled().clone()),
            })
        });
        let (rules, plan, mut ready) = self.plan(&wanted)?;
        let mut told = plan.told;
        told.settings = settings;
        let removed = told.removed.iter().map(|name| (name.clone(), Edit::Remove));
        let wanted = plan.kept.into_iter().chain(plan.put).map(|name| {
            let (expression, request) = &wanted[&name];
            let mut entry = rules.edited(&name, (expression, request));
            (entry.is_configured, entry.is_counted) = (true, false);
            let edit = match ready.remove(&name) {
                Some(ready) => Edit::Put(entry, Box::new(ready)),
                None => Edit::Keep(entry),
            };
            (name, edit)
        });
        let edits = removed.chain(wanted).collect();
        let default = default.map(RuleChange::Default);
        let done = self.edit(rules, edits, default, settings_of_rules);
        // After `Late`, the analyzer usually carries out the change.
        if !matches!(done, Ok(()) | Err(CommandError::Late)) {
            return done.map(|()| told);
        }
        if told.settings.contains(&"when-full") {
            self.set_when_full(config.when_full)?;
        }
        if let Some((cutoffs, classes)) = configured.cutoffs.as_ref().zip(cutoffs) {
            cutoffs.set(classes);
        }
        let before = std::mem::replace(&mut configured.config, config.clone());
        configured.config.scripts = before.scripts;
        done.map(|()| told)
    }

    /// The rules of a configuration, by name, without scripts.
    fn wanted(
        &self,
        config: &Config,
        before: &Config,
    ) -> Result<BTreeMap<String, ConfiguredRule>, CommandError> {
        let scripts = |config: &Config| {
            let triggers = config.scripts.triggers.iter();
            let names = triggers.map(|script| script.name().to_owned());
            names.collect::<Vec<_>>()
        };
        let triggers = config.triggers.len();
        let modules = config.scripts.modules.len();
        let names = names(config)?;
        let known = self.rules.table();
        let mut of_scripts = known.by_name.iter();
        let are_same = modules == before.scripts.modules.len()
            && scripts(config) == scripts(before)
            && names[triggers..].iter().all(|name| {
                let entry = known.by_name.get(name);
                entry.is_some_and(|entry| entry.hits.is_none())
            })
            && of_scripts
                .all(|(name, entry)| entry.hits.is_some() || names[triggers..].contains(name));
        if !are_same {
            let why = "scripts and modules, and what they are called, cannot change while the recording runs";
            return Err(CommandError::Refused(why.to_owned()));
        }
        let requests = config.requests.iter().cloned();
        let requests = requests.chain(std::iter::repeat(TriggerRequest::default()));
        let requests: Vec<TriggerRequest> = requests.take(config.rules()).collect();
        for (name, request) in names.iter().zip(&requests).skip(triggers) {
            if known.by_name.get(name).map(|entry| &entry.request) != Some(request) {
                return Err(CommandError::Refused(format!(
                    "rule '{name}' is a script, which cannot be changed while it runs"
                )));
            }
        }
        let rules = config.triggers.iter().cloned().zip(requests);
        Ok(names.into_iter().zip(rules).collect())
    }

    /// Finds the changes that lead to the wanted rules. Returns the locked present rules, the
    /// changes, and the compiled parts of the rules in `ReloadPlan::put`, by name.
    #[expect(
        clippy::type_complexity,
        reason = "the parts are used once, by the caller"
    )]
    fn plan(
        &self,
        wanted: &BTreeMap<String, ConfiguredRule>,
    ) -> Result<
        (
            MutexGuard<'_, RuleTable>,
            ReloadPlan,
            HashMap<String, Ready>,
        ),
        CommandError,
    > {
        let mut ready = HashMap::new();
        for _ in 0..TRIES {
            let rules = self.rules.table();
            let plan = ReloadPlan::new(&rules, wanted)?;
            let is_missing = |name: &&String| !ready.contains_key(*name);
            let missing: Vec<String> = plan.put.iter().filter(is_missing).cloned().collect();
            if missing.is_empty() {
                return Ok((rules, plan, ready));
            }
            // Outside of the lock, because compiling may take long.
            drop(rules);
            for name in missing {
                let (expression, request) = &wanted[&name];
                let prepared = self.rules.prepare(expression);
                let prepared = prepared.map_err(|error| of_rule(&name, error.into()))?;
                prepared.compile(&self.rules.native);
                let template = self.rules.own_template(request);
                let template = template.map_err(|error| of_rule(&name, error))?;
                ready.insert(name, (prepared, template));
            }
        }
        Err(CommandError::Busy)
    }

    /// The classes of flows in a configuration.
    fn classes(
        &self,
        config: &Config,
        configured: &Configured,
    ) -> Result<Vec<FlowClass>, CommandError> {
        let Some(cutoffs) = &configured.cutoffs else {
            let why = "--cutoff: the recording keeps all of each flow since its start, and has to be started anew for one";
            return Err(CommandError::Refused(why.to_owned()));
        };
        let longest_ns = config.cutoffs.iter().map(|of| of.cutoff.refill_ns).max();
        if longest_ns.is_some_and(|longest_ns| longest_ns > cutoffs.silence_ns_max) {
            return Err(CommandError::Refused(format!(
                "--cutoff: flows are known for {} s without a packet since the start, and longer times need another one",
                cutoffs.silence_ns_max as f64 / 1e9
            )));
        }
        let class = |of: &crate::ClassCutoff| {
            let prepared = of.class.as_deref();
            let prepared = prepared.map(|text| self.rules.prepare(text)).transpose()?;
            let filter = prepared.map(|it| CaptureFilter::new(it, &self.rules.native));
            Ok((filter, of.cutoff))
        };
        config.cutoffs.iter().map(class).collect()
    }
}

impl ReloadPlan {
    fn new(
        rules: &RuleTable,
        wanted: &BTreeMap<String, ConfiguredRule>,
    ) -> Result<Self, CommandError> {
        let mut plan = Self::default();
        for (name, rule) in wanted {
            let Some(entry) = rules.by_name.get(name) else {
                plan.put.push(name.clone());
                plan.told.added.push(name.clone());
                continue;
            };
            let is_same = entry.rule() == (&rule.0, &rule.1);
            if entry.hits.is_none() || !(entry.is_configured || is_same) {
                let what = match entry.hits {
                    None => "a script",
                    Some(_) => {
                        "by a command, with another filter, window or limit: remove it, or change one of them"
                    }
                };
                return Err(CommandError::Refused(format!(
                    "a rule '{name}' is there already, {what}"
                )));
            }
            if !entry.is_configured {
                plan.kept.push(name.clone());
            }
            if is_same {
                continue;
            }
            plan.told.changed.push(name.clone());
            if entry.has_filters((&rule.0, &rule.1)) {
                plan.kept.push(name.clone());
            } else {
                plan.put.push(name.clone());
            }
        }
        for (name, entry) in &rules.by_name {
            if entry.is_configured && entry.hits.is_some() && !wanted.contains_key(name) {
                plan.told.removed.push(name.clone());
            }
        }
        Ok(plan)
    }
}

/// Adds the name of the rule to an error.
fn of_rule(name: &str, error: CommandError) -> CommandError {
    match error {
        CommandError::Filter(error) => {
            CommandError::Refused(format!("rule '{name}': {}", error.render()))
        }
        CommandError::Refused(why) => CommandError::Refused(format!("rule '{name}': {why}")),
        other => other,
    }
}

/// The settings that differ, apart from rules, as options of the program.
fn changed_settings(new: &Config, old: &Config) -> Vec<&'static str> {
    let settings = [
        ("dump", new.dump != old.dump && old.scripts.dump.is_none()),
        ("manual-dump", new.manual_dump != old.manual_dump),
        ("past", new.past != old.past),
        ("future", new.future != old.future),
        ("dump-packets", new.dump_packets != old.dump_packets),
        ("dump-bytes", new.dump_bytes != old.dump_bytes),
        ("hold-off", new.hold_off != old.hold_off),
        ("max-dumps", new.max_dumps != old.max_dumps),
        (
            "dumps-per-minute",
            (new.dumps_per_minute, new.limit_alerts_per_minute)
                != (old.dumps_per_minute, old.limit_alerts_per_minute),
        ),
        ("bytes-per-hour", new.bytes_per_hour != old.bytes_per_hour),
        ("when-full", new.when_full != old.when_full),
        ("cutoff", new.cutoffs != old.cutoffs),
    ];
    let changed = settings.into_iter().filter(|(_, differs)| *differs);
    changed.map(|(name, _)| name).collect()
}
