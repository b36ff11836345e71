//! The trigger rules by name, which commands can change while the recorder runs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, sync_channel},
    },
};

use retroscope_filter::{FilledExpression, Filter, FilterError, KnownFlow, Template};

use crate::{
    analysis::{
        fragments::asks_for_flows,
        native::NativeCode,
        prepared::{LinkTypes, PreparedFilter, mode, template},
        terms::TriggerRequest,
        triggers::{Rule, RuleChange, SharedRules, Triggers},
    },
    control::{
        commands::{AnalyzerCommand, Settings},
        lock,
        outcomes::{FiredRules, Outcomes},
        rule_scan::{RuleScan, RuleScanStatus},
    },
    dump::store::retention::RuleRetention,
    start::{
        config::Config,
        expressions::check_label_template,
        handle::{CommandError, RecorderHandle, check_name, late},
        reload::Configured,
    },
};

/// An expression that matches no packet of 1 byte or more, on every link type: for a rule that is
/// only for alerts.
pub const NO_PACKET: &str = "less 0";

/// Commands and reloads do not raise the number of rules beyond this number.
const RULES_MAX: usize = 16_384;
/// Maximum bytes of the texts of rules that commands added or changed. The memory of a rule is 30
/// to 240 times its text.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The rules by name, as sent to the analyzer.
#[derive(Debug)]
pub(crate) struct RuleBook {
    pub(super) shared: SharedRules,
    pub(super) native: Arc<NativeCode>,
    /// Whether the packets are from files: then rules cannot change.
    pub(super) offline: bool,
    /// Whether several threads analyze packets, and packets of one flow may arrive at any of these
    /// threads.
    are_flows_apart: bool,
    /// Not locked while a thread waits for the analyzer.
    rules: Mutex<RuleTable>,
    /// Rules that the analyzer has disabled since the last call of [`Self::table`].
    fired: FiredRules,
    /// The other parts of the configuration that may change. Locked during a reload, also while it
    /// waits for the analyzer; taken before `rules`.
    pub(crate) configured: Mutex<Configured>,
}

#[derive(Debug)]
pub(super) struct RuleTable {
    /// All rules, including scripts.
    pub(super) by_name: BTreeMap<String, RuleEntry>,
    /// The number of the next rule. Numbers of installed rules are not reused.
    pub(super) next: usize,
    /// Numbers of removed rules that leave the rule set after the analyzer's next answer.
    pub(super) leaving: Vec<usize>,
    /// The limits for kept dumps by rule, as last sent to the keeper.
    kept: HashMap<String, RuleRetention>,
}

#[derive(Debug, Clone)]
pub(super) struct RuleEntry {
    pub(super) number: usize,
    pub(super) expression: String,
    pub(super) request: TriggerRequest,
    pub(super) is_enabled: bool,
    /// Number of hits of the expression; `None`: a script, whose hits are not counted here.
    pub(super) hits: Option<Arc<AtomicU64>>,
    /// Whether the rule belongs to the configuration, and follows the next
    /// [reload](RecorderHandle::reload).
    pub(super) is_configured: bool,
    /// Whether the expressions came from a command, and count against [`TEXT_BYTES_MAX`].
    pub(super) is_counted: bool,
    /// The scan of the past for the rule's filter.
    pub(super) scan: Option<Arc<RuleScan>>,
}

/// Compiled parts of a rule: the filter, and the dump expression if the rule has its own.
pub(super) type Ready = (PreparedFilter, Option<Arc<Template>>);

/// A change of one rule.
#[derive(Debug)]
pub(super) enum Edit {
    Remove,
    /// The rule keeps its number and its filters.
    Keep(RuleEntry),
    /// A new rule, or other filters. The rule gets a new number.
    Put(RuleEntry, Box<Ready>),
}

/// A rule that a client requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestedRule<'a> {
    pub(super) name: &'a str,
    pub(super) expression: &'a str,
    pub(super) request: &'a TriggerRequest,
    /// Whether matches of the rule are hits. `None`: unchanged; a new rule is enabled.
    pub(super) is_enabled: Option<bool>,
    pub(super) condition: Condition<'a>,
    /// The compiled filter and the scan of the past. `None`: no scan is requested.
    pub(super) past: Option<(&'a PreparedFilter, &'a Arc<RuleScan>)>,
}

/// A condition on the present rule. If the condition is false, a change is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition<'a> {
    /// Nothing: the rule may exist or not.
    Any,
    /// There is no rule of this name.
    New,
    /// There is a rule of this name.
    Exists,
    /// The rule has this [`RuleStatus::version`].
    Unchanged(&'a str),
}

impl Condition<'_> {
    /// Fails if the condition is false for the present rule of this name.
    fn check(self, name: &str, entry: Option<&RuleEntry>) -> Result<(), CommandError> {
        let is_true = match self {
            Self::Any => true,
            Self::New => entry.is_none(),
            Self::Exists => entry.is_some(),
            Self::Unchanged(version) => {
                entry.is_some_and(|entry| entry.status(name).version() == version)
            }
        };
        let changed = || CommandError::RuleChangedBefore(name.to_owned());
        is_true.then_some(()).ok_or_else(changed)
    }
}

/// A rule at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStatus {
    /// Name of the rule: as given, or its place among the configured triggers, from 1.
    pub name: String,
    /// The trigger expression, or the script's file.
    pub expression: String,
    /// The rule's own request.
    pub request: TriggerRequest,
    /// Whether matches of the rule are hits.
    pub is_enabled: bool,
    /// Number of hits of this expression; `None`: a script, whose hits are not counted here.
    pub hits: Option<u64>,
    /// Stamp of the last counted hit under this name, ns since the UNIX epoch. `None`: no hit, or
    /// no separate counters for this name. Only [`RecorderHandle::rule`] and
    /// [`RecorderHandle::rules`] fill this field.
    pub last_hit_ns: Option<i64>,
    /// Whether the rule belongs to the configuration.
    pub is_configured: bool,
    /// The scan of the past for this expression; `None`: only new packets were tried.
    pub scan: Option<RuleScanStatus>,
}

impl RuleStatus {
    /// A text that changes when the rule is changed, enabled or disabled, and not with its counts.
    #[must_use]
    pub fn version(&self) -> String {
        let mut hasher = DefaultHasher::new();
        format!("{:?}", (&self.expression, &self.request, self.is_enabled)).hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

/// The names of all rules of a configuration, in their order.
///
/// # Errors
/// [`CommandError::Refused`] if two rules have the same name, or if a name is invalid.
pub(crate) fn names(config: &Config) -> Result<Vec<String>, CommandError> {
    let mut names = Vec::new();
    let mut taken = BTreeSet::new();
    for place in 0..config.rules() {
        let name = config.names.get(place).filter(|name| !name.is_empty());
        let name = name.cloned().unwrap_or_else(|| (place + 1).to_string());
        check_name(&name)?;
        if !taken.insert(name.clone()) {
            return Err(CommandError::Refused(format!(
                "two rules have the name '{name}'"
            )));
        }
        names.push(name);
    }
    Ok(names)
}

impl RuleBook {
    /// The rules of the start, scripts after expressions, with these names. `outcomes` counts their
    /// hits.
    pub(crate) fn new<'a>(
        triggers: &Triggers,
        scripts: impl Iterator<Item = &'a str>,
        (config, names): (&Config, Vec<String>),
        native: Arc<NativeCode>,
        are_flows_apart: bool,
        outcomes: &Outcomes,
        configured: Configured,
    ) -> Self {
        let rules = triggers.iter();
        let rules = rules.map(|rule| (rule.text.as_str(), Some(Arc::clone(&rule.hits))));
        let all = rules.chain(scripts.map(|script| (script, None)));
        let mut requests = config.requests.iter().cloned();
        let entry = |(number, ((text, hits), name)): (usize, ((&str, _), _))| {
            let entry = RuleEntry {
                number,
                expression: text.to_owned(),
                request: requests.next().unwrap_or_default(),
                is_enabled: true,
                hits,
                is_configured: true,
                is_counted: false,
                scan: None,
            };
            (name, entry)
        };
        let by_name: BTreeMap<_, RuleEntry> = all.zip(names).enumerate().map(entry).collect();
        for (name, entry) in &by_name {
            outcomes.add_rule(entry.number, name);
        }
        let mut rules = RuleTable {
            next: by_name.len(),
            by_name,
            leaving: Vec::new(),
            kept: HashMap::new(),
        };
        rules.kept = rules.keeps();
        Self {
            shared: triggers.shared.clone(),
            native,
            offline: config.offline,
            are_flows_apart,
            rules: Mutex::new(rules),
            fired: outcomes.fired.clone(),
            configured: Mutex::new(configured),
        }
    }

    /// The rules. First disables the rules that the analyzer has disabled.
    pub(super) fn table(&self) -> MutexGuard<'_, RuleTable> {
        let mut rules = lock(&self.rules);
        let fired = self.fired.take();
        if !fired.is_empty() {
            let entries = rules.by_name.values_mut();
            let fired = entries.filter(|entry| fired.contains(&entry.number));
            fired.for_each(|entry| entry.is_enabled = false);
        }
        rules
    }

    /// The limits for kept dumps, by rule.
    pub(super) fn keeps(&self) -> HashMap<String, RuleRetention> {
        lock(&self.rules).keeps()
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.rules).by_name.len()
    }

    /// Compiles an expression for the sources.
    pub(super) fn prepare(&self, expression: &str) -> Result<PreparedFilter, FilterError> {
        let mut prepared = PreparedFilter::new(Filter::resolved(expression)?, mode(self.offline));
        let known = self.shared.link_types();
        let link_types = LinkTypes::new(&known, &Vec::new);
        prepared.check(&link_types)?;
        prepared.seal(&link_types);
        Ok(prepared)
    }

    /// Compiles a rule's own dump expression, if there is one, and checks its expression for
    /// alerts.
    pub(super) fn own_template(
        &self,
        request: &TriggerRequest,
    ) -> Result<Option<Arc<Template>>, CommandError> {
        if let Some(text) = &request.alert_dump {
            let known = self.shared.link_types();
            check_label_template(text, &LinkTypes::new(&known, &Vec::new))?;
        }
        let text = request.dump.as_deref();
        text.map(|text| self.template(text)).transpose()
    }

    /// Compiles an expression about a flow.
    pub(super) fn about(
        &self,
        text: &str,
        flow: &KnownFlow,
    ) -> Result<FilledExpression, FilterError> {
        self.compile(text)?.filled_for(flow)
    }

    /// Compiles an expression about an interface.
    pub(super) fn on(&self, text: &str, interface: u16) -> Result<FilledExpression, FilterError> {
        self.compile(text)?.filled_on(interface)
    }

    pub(super) fn compile(&self, text: &str) -> Result<Arc<Template>, FilterError> {
        let known = self.shared.link_types();
        template(text, &LinkTypes::new(&known, &Vec::new), mode(self.offline))
    }

    /// The number of the rule with this name, if the rule is enabled.
    pub(super) fn number(&self, name: &str) -> Result<usize, CommandError> {
        let rules = self.table();
        let entry = rules.by_name.get(name).ok_or_else(|| no_rule(name))?;
        if !entry.is_enabled {
            let why = format!("rule '{name}' is disabled");
            return Err(CommandError::Suppressed(why));
        }
        Ok(entry.number)
    }

    /// Compiles a dump expression for the sources.
    pub(super) fn template(&self, text: &str) -> Result<Arc<Template>, CommandError> {
        let template = self.compile(text)?;
        if self.are_flows_apart && asks_for_flows(&template) {
            let why = "the dump expression selects flows, but several threads analyze the queues at which the fragments of a flow arrive: start the recorder with analyzers = 1, or with a rule whose dump expression selects flows";
            return Err(CommandError::Refused(why.to_owned()));
        }
        Ok(template)
    }
}

impl RuleTable {
    /// The limits for kept dumps, by rule. A rule whose name is a number may have been another rule
    /// in an earlier recording, so only dumps of its expression count.
    pub(super) fn keeps(&self) -> HashMap<String, RuleRetention> {
        let keep = |(name, entry): (&String, &RuleEntry)| {
            let keep = entry.request.keep?;
            let is_place = name.bytes().all(|it| it.is_ascii_digit());
            let expression = is_place.then(|| entry.expression.clone());
            Some((name.clone(), RuleRetention { keep, expression }))
        };
        self.by_name.iter().filter_map(keep).collect()
    }

    /// The new entry of a rule with these texts. The count of hits stays if the expression is the
    /// same.
    pub(super) fn edited(
        &self,
        name: &str,
        (expression, request): (&str, &TriggerRequest),
    ) -> RuleEntry {
        let before = self.by_name.get(name);
        let same = before.filter(|before| before.expression == expression);
        let kept = before.filter(|before| before.has_filters((expression, request)));
        let hits = same.and_then(|before| before.hits.clone());
        RuleEntry {
            number: before.map_or(0, |before| before.number),
            expression: expression.to_owned(),
            request: request.clone(),
            is_enabled: before.is_none_or(|before| before.is_enabled),
            hits: hits.or_else(|| Some(Arc::default())),
            is_configured: before.is_some_and(|before| before.is_configured),
            is_counted: before.is_some_and(|before| before.is_counted),
            scan: kept.and_then(|before| before.scan.clone()),
        }
    }

    /// Returns the present rule if it is already as wanted, whatever the version in the condition:
    /// the request may be a retry. `None`: the rule must be changed or added. Fails if the
    /// condition is false, or if a script would have to change.
    fn as_wanted(&self, wanted: RequestedRule<'_>) -> Result<Option<RuleStatus>, CommandError> {
        let name = wanted.name;
        match self.by_name.get(name) {
            None => wanted.condition.check(name, None).map(|()| None),
            Some(entry) if wanted.condition == Condition::New => Err(CommandError::RuleExists {
                name: name.to_owned(),
                is_as_wanted: entry.is_so(wanted),
            }),
            Some(entry) if entry.is_so(wanted) => Ok(Some(entry.status(name))),
            Some(entry) => {
                wanted.condition.check(name, Some(entry))?;
                entry.check_no_script(name).map(|()| None)
            }
        }
    }
}

impl RuleTable {
    /// Refuses a rule if its texts and the counted texts of the other rules are too long together.
    fn check_bytes(&self, wanted: RequestedRule<'_>) -> Result<(), CommandError> {
        let text_bytes = |is_added, (expression, request): (&str, &TriggerRequest)| {
            let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
            let expressions = expression.len() + len(&request.dump) + len(&request.alert_dump);
            len(&request.asked_by)
                + len(&request.caller)
                + len(&request.reason)
                + if is_added { expressions } else { 0 }
        };
        let others = self.by_name.iter();
        let others = others.filter(|(name, _)| name.as_str() != wanted.name);
        let others = others.map(|(_, entry)| text_bytes(entry.is_counted, entry.rule()));
        let bytes = text_bytes(true, wanted.rule());
        if others.sum::<usize>() + bytes > TEXT_BYTES_MAX {
            return Err(CommandError::Refused(format!(
                "the rules that were added would have more than {TEXT_BYTES_MAX} bytes of text together, which is the limit: remove some"
            )));
        }
        Ok(())
    }
}

impl<'a> RequestedRule<'a> {
    fn rule(&self) -> (&'a str, &'a TriggerRequest) {
        (self.expression, self.request)
    }
}

impl RuleEntry {
    pub(super) fn rule(&self) -> (&str, &TriggerRequest) {
        (&self.expression, &self.request)
    }

    /// Whether a rule with these texts has the same filters.
    pub(super) fn has_filters(&self, (expression, request): (&str, &TriggerRequest)) -> bool {
        self.expression == expression && self.request.dump == request.dump
    }

    fn is_so(&self, wanted: RequestedRule<'_>) -> bool {
        let is_enabled = wanted.is_enabled.unwrap_or(self.is_enabled);
        self.rule() == wanted.rule() && self.is_enabled == is_enabled
    }

    fn status(&self, name: &str) -> RuleStatus {
        RuleStatus {
            name: name.to_owned(),
            expression: self.expression.clone(),
            request: self.request.clone(),
            is_enabled: self.is_enabled,
            hits: self.hits.as_ref().map(|hits| hits.load(Ordering::Relaxed)),
            last_hit_ns: None,
            is_configured: self.is_configured,
            scan: self.scan.as_ref().map(|scan| scan.status()),
        }
    }
}

impl RecorderHandle {
    /// The rule with this name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<RuleStatus> {
        let entry = |rules: &RuleTable| Some(rules.by_name.get(name)?.status(name));
        let mut rule = entry(&self.rules.table())?;
        rule.last_hit_ns = self.last_hit_ns(name);
        Some(rule)
    }

    fn last_hit_ns(&self, name: &str) -> Option<i64> {
        let common = self.common.upgrade()?;
        Some(common.clock.stamp_ns(common.outcomes.last_hit_ns(name)?))
    }

    /// The rules, by name.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleStatus> {
        let all = |rules: &RuleTable| -> Vec<RuleStatus> {
            let by_name = rules.by_name.iter();
            by_name.map(|(name, entry)| entry.status(name)).collect()
        };
        let mut all = all(&self.rules.table());
        for rule in &mut all {
            rule.last_hit_ns = self.last_hit_ns(&rule.name);
        }
        all
    }

    /// Adds a trigger rule, or changes the rule of this name, under a `condition`. The rule applies
    /// to packets whose analysis begins after this returns. `is_enabled`: whether its matches are
    /// hits (`None`: unchanged; a new rule is enabled). Returns the rule as this change made it,
    /// and whether the rule existed.
    ///
    /// Open dumps of the rule go on as requested. Hits of another expression are counted from 0.
    ///
    /// # Errors
    /// [`CommandError`], and then the rule is as it was, except after `Late`: it usually
    /// changes. `Filter`: the expression, or the dump expression, does not compile for any source.
    /// `RuleExists`: the condition is `New`, and the rule exists. `RuleChangedBefore`: another
    /// condition is false, and the rule is not yet as requested.
    pub fn put_rule(
        &self,
        name: &str,
        (expression, request): (&str, &TriggerRequest),
        is_enabled: Option<bool>,
        condition: Condition<'_>,
    ) -> Result<(RuleStatus, bool), CommandError> {
        self.put_requested(RequestedRule {
            name,
            expression,
            request,
            is_enabled,
            condition,
            past: None,
        })
    }

    pub(super) fn put_requested(
        &self,
        wanted: RequestedRule<'_>,
    ) -> Result<(RuleStatus, bool), CommandError> {
        let name = wanted.name;
        self.check_live()?;
        check_name(name)?;
        let mut present = self.rules.table().as_wanted(wanted)?;
        if present.is_none() {
            // Outside of the lock, because compiling may take long. Another thread may put the same
            // rule meanwhile.
            let prepared = match wanted.past {
                Some((prepared, _)) => prepared.clone(),
                None => self.rules.prepare(wanted.expression)?,
            };
            prepared.compile(&self.rules.native);
            let template = self.rules.own_template(wanted.request)?;
            let rules = self.rules.table();
            present = rules.as_wanted(wanted)?;
            if present.is_none() {
                let is_there = rules.by_name.contains_key(name);
                let made = self.put(rules, wanted, (prepared, template))?;
                return Ok((made, is_there));
            }
        }
        self.wait_for_earlier_edits()?;
        present
            .map(|rule| (rule, true))
            .ok_or_else(|| no_rule(name))
    }

    fn put(
        &self,
        rules: MutexGuard<'_, RuleTable>,
        wanted: RequestedRule<'_>,
        ready: Ready,
    ) -> Result<RuleStatus, CommandError> {
        rules.check_bytes(wanted)?;
        let mut entry = rules.edited(wanted.name, wanted.rule());
        entry.is_enabled = wanted.is_enabled.unwrap_or(entry.is_enabled);
        let old = rules.by_name.get(wanted.name);
        let is_kept = old.is_some_and(|old| old.has_filters(wanted.rule()));
        if let Some((_, scan)) = wanted.past {
            if is_kept {
                return Err(no_second_try(wanted.name));
            }
            entry.scan = Some(Arc::clone(scan));
            // Earlier hits of the same expression may be hits of the scan again.
            entry.hits = Some(Arc::default());
        }
        let made = entry.status(wanted.name);
        let edit = if is_kept {
            Edit::Keep(entry)
        } else {
            entry.is_counted = true;
            Edit::Put(entry, Box::new(ready))
        };
        self.edit(rules, vec![(wanted.name.to_owned(), edit)], None, None)?;
        Ok(made)
    }

    /// Changes rules by name, all or none, and waits until the analyzer has the changes. `default`:
    /// a new dump expression for the rules without their own. `settings`: new settings of all
    /// rules.
    ///
    /// # Errors
    /// [`CommandError`]; after [`CommandError::Late`] the change usually still happens.
    pub(super) fn edit(
        &self,
        mut rules: MutexGuard<'_, RuleTable>,
        edits: Vec<(String, Edit)>,
        default: Option<RuleChange>,
        settings: Option<Box<Settings>>,
    ) -> Result<(), CommandError> {
        let common = self.common()?;
        let outcomes = &common.outcomes;
        let is_there = |name: &String| rules.by_name.contains_key(name);
        let (mut len, mut old) = (rules.by_name.len(), Vec::new());
        for (name, edit) in &edits {
            match edit {
                Edit::Keep(_) => continue,
                Edit::Remove => len -= usize::from(is_there(name)),
                Edit::Put(..) => len += usize::from(!is_there(name)),
            }
            old.extend(rules.by_name.get(name).map(|entry| entry.number));
        }
        if len > RULES_MAX.max(rules.by_name.len()) {
            return Err(CommandError::Refused(format!(
                "there are {RULES_MAX} rules, which is the limit"
            )));
        }
        // Requests by number of the rule. If there are new settings, the analyzer needs the
        // requests of all rules.
        let mut requests = BTreeMap::new();
        if settings.is_some() {
            let all = rules.by_name.values();
            requests.extend(all.map(|entry| (entry.number, entry.request.clone())));
            old.iter().for_each(|number| _ = requests.remove(number));
        }
        let removed = old.iter().copied().map(RuleChange::Remove);
        let mut changes: Vec<RuleChange> = default.into_iter().chain(removed).collect();
        let (mut after, mut added) = (Vec::with_capacity(edits.len()), Vec::new());
        for (name, edit) in edits {
            let entry = match edit {
                Edit::Remove => None,
                Edit::Keep(entry) => {
                    let before = rules.by_name.get(&name);
                    if before.is_some_and(|before| before.is_enabled != entry.is_enabled) {
                        changes.push(RuleChange::Enable(entry.number, entry.is_enabled));
                    }
                    Some(entry)
                }
                Edit::Put(mut entry, ready) => {
                    let (mut prepared, template) = *ready;
                    entry.number = rules.next + added.len();
                    if let Err(error) = self.rules.shared.add(entry.number, &mut prepared) {
                        self.rules.shared.remove(&added);
                        return Err(error.into());
                    }
                    added.push(entry.number);
                    changes.push(RuleChange::Add(Box::new(entry.to_rule(prepared)), template));
                    Some(entry)
                }
            };
            requests.extend(entry.iter().map(|it| (it.number, it.request.clone())));
            after.push((name, entry));
        }
        let new = || {
            let after = after.iter();
            let new = after.filter_map(|(name, entry)| Some((name, entry.as_ref()?.number)));
            new.filter(|(_, number)| *number >= rules.next)
        };
        new().for_each(|(name, number)| outcomes.add_rule(number, name));
        self.rules.shared.join();
        let (reply, answer) = sync_channel(1);
        let told = self.send(AnalyzerCommand::Rules {
            changes,
            requests: requests.into_iter().collect(),
            settings,
            reply,
        });
        told.inspect_err(|_| {
            self.rules.shared.remove(&added);
            added.iter().for_each(|number| outcomes.forget(*number));
            let new = new().filter(|(name, _)| !is_there(name));
            new.for_each(|(name, _)| outcomes.remove_rule(name));
        })?;
        rules.next += added.len();
        for (name, entry) in after {
            if let Some(entry) = entry {
                rules.by_name.insert(name, entry);
            } else {
                rules.by_name.remove(&name);
                outcomes.remove_rule(&name);
            }
        }
        rules.leaving.extend(old);
        self.answered(rules, &answer)
    }

    /// Waits for the analyzer's answer. Other threads may read and change the rules meanwhile.
    fn answered(
        &self,
        mut rules: MutexGuard<'_, RuleTable>,
        answer: &Receiver<()>,
    ) -> Result<(), CommandError> {
        let leaving = std::mem::take(&mut rules.leaving);
        let keeps = rules.keeps();
        if let Some(keeper) = &self.keeper
            && keeps != rules.kept
        {
            rules.kept.clone_from(&keeps);
            keeper.set_rule_limits(keeps);
        }
        drop(rules);
        let answered = answer.recv_timeout(self.answer_wait).map_err(late);
        match answered {
            // The analyzer may still need the removed rules.
            Err(_) => self.rules.table().leaving.extend(leaving),
            Ok(()) => self.rules.shared.remove(&leaving),
        }
        answered
    }

    /// Waits until the analyzer has carried out all earlier edits.
    ///
    /// # Errors
    /// [`CommandError`].
    fn wait_for_earlier_edits(&self) -> Result<(), CommandError> {
        self.edit(self.rules.table(), Vec::new(), None, None)
    }

    /// Removes a rule under a `condition`; its dumps go on. Returns whether the rule existed.
    ///
    /// # Errors
    /// [`CommandError`]; `RuleChangedBefore`: the condition is false for an existing rule.
    pub fn remove_rule(&self, name: &str, condition: Condition<'_>) -> Result<bool, CommandError> {
        self.check_live()?;
        let rules = self.rules.table();
        let Some(entry) = rules.by_name.get(name) else {
            drop(rules);
            return self.wait_for_earlier_edits().map(|()| false);
        };
        condition.check(name, Some(entry))?;
        entry.check_no_script(name)?;
        let edits = vec![(name.to_owned(), Edit::Remove)];
        self.edit(rules, edits, None, None).map(|()| true)
    }

    /// Enables or disables a rule under a `condition`: whether its matches are hits. `single`:
    /// whether the next dump disables the rule (`None`: as it is). Returns the rule as this change
    /// made it.
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: there is no such rule, or it is a script; `RuleChangedBefore`:
    /// the condition is false for a rule that would change.
    pub fn enable_rule(
        &self,
        name: &str,
        (is_enabled, single): (bool, Option<bool>),
        condition: Condition<'_>,
    ) -> Result<RuleStatus, CommandError> {
        self.check_live()?;
        let rules = self.rules.table();
        let entry = rules.by_name.get(name).ok_or_else(|| no_rule(name))?;
        entry.check_no_script(name)?;
        let single = single.unwrap_or(entry.request.single);
        if (entry.is_enabled, entry.request.single) == (is_enabled, single) {
            let present = entry.status(name);
            drop(rules);
            return self.wait_for_earlier_edits().map(|()| present);
        }
        condition.check(name, Some(entry))?;
        let mut entry = entry.clone();
        entry.is_enabled = is_enabled;
        entry.request.single = single;
        let made = entry.status(name);
        let edits = vec![(name.to_owned(), Edit::Keep(entry))];
        self.edit(rules, edits, None, None).map(|()| made)
    }
}

impl RuleEntry {
    /// The rule for the shards.
    fn to_rule(&self, prepared: PreparedFilter) -> Rule {
        Rule {
            number: self.number,
            text: self.expression.clone(),
            prepared,
            hits: self.hits.clone().unwrap_or_default(),
            is_enabled: self.is_enabled,
            scan: self.scan.clone(),
        }
    }

    fn check_no_script(&self, name: &str) -> Result<(), CommandError> {
        if self.hits.is_some() {
            return Ok(());
        }
        Err(CommandError::Refused(format!(
            "rule '{name}' is a script, which cannot be changed while it runs"
        )))
    }
}

#[cfg(test)]
impl RuleBook {
    pub(crate) fn skip_to(&self, number: usize) {
        lock(&self.rules).next = number;
    }
}

fn no_rule(name: &str) -> CommandError {
    CommandError::Refused(format!("there is no rule '{name}'"))
}

/// A scan is requested for a rule that already has this filter.
pub(super) fn no_second_try(name: &str) -> CommandError {
    CommandError::NoScan(format!(
        "rule '{name}' has this filter already, and has tried the packets since it was added: remove the rule first, or test the filter"
    ))
}
