//! The trigger rules by name: what [`Handle`] adds to them, changes and removes while the recorder runs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_filter::{Filled, Filter, FilterError, KnownFlow, Template};

use crate::{
    analysis::{
        fragments::asks_for_flows,
        native::NativeCode,
        prepared::{LinkTypes, Prepared, mode, template},
        terms::TriggerRequest,
        triggers::{Rule, SharedRules, Triggers},
    },
    control::{lock, outcomes::Outcomes},
    dump::store::retention::RuleKeep,
    start::{
        config::Config,
        edits::{Edit, Ready},
        expressions::check_label_template,
        handle::{CommandError, Handle, check_name},
        reload::Configured,
    },
};

/// An expression that takes no packet, on every link type: of a rule that is for alerts alone.
pub const NO_PACKET: &str = "less 0";

/// Rules at once.
pub(super) const RULES_MAX: usize = 16_384;
/// Bytes of the expressions of rules that are added, in all. A rule costs 30 to 240 times its text: most if it is short, or is no list.
const TEXT_BYTES_MAX: usize = 4 << 20;

/// The rules by name, as the analyzer was told them: it answers when it has them so.
#[derive(Debug)]
pub(crate) struct RuleBook {
    pub(super) shared: SharedRules,
    pub(super) native: Arc<NativeCode>,
    /// From files the result is a function of the packets: nothing changes while they are read.
    pub(super) offline: bool,
    /// Several threads look at packets, and those of one flow may come to any of them.
    are_flows_apart: bool,
    /// Nobody has it while they wait for the analyzer.
    pub(super) rules: Mutex<Numbered>,
    /// What else of the configuration may change. Who reloads has it, while they wait for the analyzer too; taken before `rules`.
    pub(super) configured: Mutex<Configured>,
}

#[derive(Debug)]
pub(super) struct Numbered {
    /// Scripts among them.
    pub(super) by_name: BTreeMap<String, Entry>,
    /// The number of the next rule. No number is used twice, and nothing is kept of a removed rule.
    pub(super) next: usize,
    /// Numbers of removed rules that leave the rule set when the analyzer has answered whatever it is told next.
    pub(super) leaving: Vec<usize>,
    /// What is kept of whose dumps, as it was told last.
    pub(super) kept: HashMap<String, RuleKeep>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) number: usize,
    pub(super) expression: String,
    pub(super) request: TriggerRequest,
    pub(super) is_enabled: bool,
    /// `None`: a script, whose hits are not told apart.
    pub(super) hits: Option<Arc<AtomicU64>>,
    /// It is of the configuration, and follows it when that is [given anew](Handle::reload).
    pub(super) is_configured: bool,
    /// Its texts came by a command, and count against [`TEXT_BYTES_MAX`].
    pub(super) is_counted: bool,
}

/// What somebody wants under a name.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    name: &'a str,
    expression: &'a str,
    request: &'a TriggerRequest,
    /// Whether its matches are hits, from its first packet on; `None`: as it is, and of a new rule so.
    is_enabled: Option<bool>,
    aim: Aim,
}

/// What to do if there is a rule of the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// Refuse, unless that rule is as wanted.
    Add,
    /// Refuse, and say whether that rule is as wanted.
    Create,
    /// Change that rule; refuse if there is none.
    Change,
}

/// A rule at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStatus {
    /// Its name: as given, or its place among the triggers of the start, from 1.
    pub name: String,
    /// The trigger expression, or the script's file.
    pub expression: String,
    /// What it asks for of its own.
    pub request: TriggerRequest,
    /// Whether its matches are hits.
    pub is_enabled: bool,
    /// Packets that matched this expression; `None`: not counted, of a script.
    pub hits: Option<u64>,
    /// Whether it is of the configuration ([`Handle::reload`]), and not added by a command.
    pub is_configured: bool,
}

/// What the triggers of a configuration are called, in their order.
///
/// # Errors
/// Two have one name, or a name is none.
pub(crate) fn names(config: &Config, triggers: usize) -> Result<Vec<String>, CommandError> {
    let mut names = Vec::with_capacity(triggers);
    let mut taken = BTreeSet::new();
    for place in 0..triggers {
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
    /// Of the rules of the start, scripts behind expressions, whose names are these.
    pub(crate) fn new<'a>(
        triggers: &Triggers,
        scripts: impl Iterator<Item = &'a str>,
        (config, names): (&Config, Vec<String>),
        native: Arc<NativeCode>,
        are_flows_apart: bool,
        configured: Configured,
    ) -> Self {
        let rules = triggers.iter();
        let rules = rules.map(|rule| (rule.text.as_str(), Some(Arc::clone(&rule.hits))));
        let all = rules.chain(scripts.map(|script| (script, None)));
        let mut requests = config.requests.iter().cloned();
        let entry = |(number, ((text, hits), name)): (usize, ((&str, _), _))| {
            let entry = Entry {
                number,
                expression: text.to_owned(),
                request: requests.next().unwrap_or_default(),
                is_enabled: true,
                hits,
                is_configured: true,
                is_counted: false,
            };
            (name, entry)
        };
        let by_name: BTreeMap<_, _> = all.zip(names).enumerate().map(entry).collect();
        let mut rules = Numbered {
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
            configured: Mutex::new(configured),
        }
    }

    /// Has the hits of the rules of the start counted.
    pub(crate) fn count_in(&self, outcomes: &Outcomes) {
        for (name, entry) in &lock(&self.rules).by_name {
            outcomes.add_rule(entry.number, name);
        }
    }

    /// What is kept of whose dumps.
    pub(super) fn keeps(&self) -> HashMap<String, RuleKeep> {
        lock(&self.rules).keeps()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.rules).by_name.len()
    }

    /// Compiles an expression for the sources.
    pub(super) fn prepare(&self, expression: &str) -> Result<Prepared, FilterError> {
        let mut prepared = Prepared::new(Filter::resolved(expression)?, mode(self.offline));
        let known = self.shared.link_types();
        let link_types = LinkTypes::new(&known, &Vec::new);
        prepared.check(&link_types)?;
        prepared.seal(&link_types);
        Ok(prepared)
    }

    /// Compiles the dump expression of a rule, where it has one of its own, and tries that of alerts.
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
    pub(super) fn about(&self, text: &str, flow: &KnownFlow) -> Result<Filled, FilterError> {
        let known = self.shared.link_types();
        let link_types = LinkTypes::new(&known, &Vec::new);
        template(text, &link_types, mode(self.offline))?.filled_for(flow)
    }

    /// Compiles an expression about an interface.
    pub(super) fn on(&self, text: &str, interface: u16) -> Result<Filled, FilterError> {
        let known = self.shared.link_types();
        let link_types = LinkTypes::new(&known, &Vec::new);
        template(text, &link_types, mode(self.offline))?.filled_on(interface)
    }

    /// The number of the rule of a name, if it is enabled.
    pub(super) fn number(&self, name: &str) -> Result<usize, CommandError> {
        let rules = lock(&self.rules);
        let entry = rules.by_name.get(name).ok_or_else(|| no_rule(name))?;
        if !entry.is_enabled {
            let why = format!("rule '{name}' is disabled");
            return Err(CommandError::Suppressed(why));
        }
        Ok(entry.number)
    }

    /// Compiles a dump expression for the sources.
    pub(super) fn template(&self, text: &str) -> Result<Arc<Template>, CommandError> {
        let known = self.shared.link_types();
        let template = template(text, &LinkTypes::new(&known, &Vec::new), mode(self.offline))?;
        if self.are_flows_apart && asks_for_flows(&template) {
            let why = "the dump expression asks for flows, whose fragments come by several queues that several threads look at: start the recorder with --analyzers 1, or with a rule that asks for flows";
            return Err(CommandError::Refused(why.to_owned()));
        }
        Ok(template)
    }
}

impl Numbered {
    /// What is kept of whose dumps. A rule whose name is a place may have been another one in an earlier recording: of it only dumps of its expression are.
    pub(super) fn keeps(&self) -> HashMap<String, RuleKeep> {
        let keep = |(name, entry): (&String, &Entry)| {
            let keep = entry.request.keep?;
            let is_place = name.bytes().all(|it| it.is_ascii_digit());
            let expression = is_place.then(|| entry.expression.clone());
            Some((name.clone(), RuleKeep { keep, expression }))
        };
        self.by_name.iter().filter_map(keep).collect()
    }

    /// Whether it is so already; refused where there is another rule, or none to be changed.
    fn has(&self, wanted: Wanted<'_>) -> Result<bool, CommandError> {
        let name = wanted.name;
        match self.by_name.get(name) {
            None if wanted.aim == Aim::Change => Err(no_rule(name)),
            None => Ok(false),
            Some(entry) if wanted.aim == Aim::Create => Err(CommandError::RuleExists {
                name: name.to_owned(),
                is_as_wanted: entry.is_so(wanted),
            }),
            Some(entry) if entry.is_so(wanted) => Ok(true),
            Some(entry) if wanted.aim == Aim::Change => entry.check_no_script(name).map(|()| false),
            Some(_) => Err(CommandError::Refused(format!(
                "rule '{name}' has another expression, window or limit: change it, or remove it first"
            ))),
        }
    }
}

impl Numbered {
    /// Refuses what is too much beside the other rules that were added.
    fn check_bytes(&self, wanted: Wanted<'_>) -> Result<(), CommandError> {
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

impl<'a> Wanted<'a> {
    fn rule(&self) -> (&'a str, &'a TriggerRequest) {
        (self.expression, self.request)
    }
}

impl Entry {
    pub(super) fn rule(&self) -> (&str, &TriggerRequest) {
        (&self.expression, &self.request)
    }

    /// Whether the filters of a rule with these texts are those of this rule.
    pub(super) fn has_filters(&self, (expression, request): (&str, &TriggerRequest)) -> bool {
        self.expression == expression && self.request.dump == request.dump
    }

    fn is_so(&self, wanted: Wanted<'_>) -> bool {
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
            is_configured: self.is_configured,
        }
    }
}

impl Handle {
    /// The rule of a name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<RuleStatus> {
        let rules = lock(&self.rules.rules);
        rules.by_name.get(name).map(|entry| entry.status(name))
    }

    /// The rules, by name.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleStatus> {
        let rules = lock(&self.rules.rules);
        let by_name = rules.by_name.iter();
        by_name.map(|(name, entry)| entry.status(name)).collect()
    }

    /// Adds a trigger rule, which takes the packets that the analyzer looks at from when this returns on. Whether it was there already: a
    /// name stands for one expression and request.
    ///
    /// # Errors
    /// [`CommandError`]; `Filter`: the expression, or the dump expression, does not compile for any source.
    pub fn add_rule(
        &self,
        name: &str,
        expression: &str,
        request: &TriggerRequest,
    ) -> Result<bool, CommandError> {
        self.want_rule(Wanted {
            name,
            expression,
            request,
            is_enabled: None,
            aim: Aim::Add,
        })
    }

    /// Gives a rule another expression and request between two packets: each is looked at by the one or by the other. Whether that is new. Dumps
    /// that are open go on as they were asked for, and hits count for them no more; hits of another expression are counted from 0, and not held
    /// off because of its dumps.
    ///
    /// # Errors
    /// [`CommandError`], and then the rule is as it was; `Refused`: there is no such rule.
    pub fn change_rule(
        &self,
        name: &str,
        expression: &str,
        request: &TriggerRequest,
    ) -> Result<bool, CommandError> {
        let was_so = self.want_rule(Wanted {
            name,
            expression,
            request,
            is_enabled: None,
            aim: Aim::Change,
        })?;
        Ok(!was_so)
    }

    /// Adds a rule, or changes the one of its name unless `only_new`, and says in the same step whether its matches are hits (`None`: as it is, and of a
    /// new rule so): none is a hit before that is known. Whether the rule was there.
    ///
    /// # Errors
    /// Those of [`Self::add_rule`] and [`Self::change_rule`]; `RuleExists`: with `only_new`, where there is a rule of this name.
    pub fn put_rule(
        &self,
        name: &str,
        (expression, request): (&str, &TriggerRequest),
        is_enabled: Option<bool>,
        only_new: bool,
    ) -> Result<bool, CommandError> {
        let is_there = lock(&self.rules.rules).by_name.contains_key(name);
        let aim = match (only_new, is_there) {
            (true, _) => Aim::Create,
            (false, true) => Aim::Change,
            (false, false) => Aim::Add,
        };
        let was_so = self.want_rule(Wanted {
            name,
            expression,
            request,
            is_enabled,
            aim,
        })?;
        Ok(is_there || was_so)
    }

    /// Sees to it that a rule is as it is wanted. Whether it was.
    fn want_rule(&self, wanted: Wanted<'_>) -> Result<bool, CommandError> {
        self.check_live()?;
        check_name(wanted.name)?;
        let is_so = lock(&self.rules.rules).has(wanted)?;
        if !is_so {
            // Outside of the lock, because it may take long. Who wants the same meanwhile is found below.
            let prepared = self.rules.prepare(wanted.expression)?;
            prepared.compile(&self.rules.native);
            let template = self.rules.own_template(wanted.request)?;
            let rules = lock(&self.rules.rules);
            if !rules.has(wanted)? {
                return self
                    .put(rules, wanted, (prepared, template))
                    .map(|()| false);
            }
        }
        self.settled().map(|()| true)
    }

    fn put(
        &self,
        rules: MutexGuard<'_, Numbered>,
        wanted: Wanted<'_>,
        ready: Ready,
    ) -> Result<(), CommandError> {
        rules.check_bytes(wanted)?;
        let mut entry = rules.edited(wanted.name, wanted.rule());
        entry.is_enabled = wanted.is_enabled.unwrap_or(entry.is_enabled);
        let old = rules.by_name.get(wanted.name);
        let edit = if old.is_some_and(|old| old.has_filters(wanted.rule())) {
            Edit::Keep(entry)
        } else {
            entry.is_counted = true;
            Edit::Put(entry, ready)
        };
        self.edit(rules, vec![(wanted.name.to_owned(), edit)], None, None)
    }

    /// Removes a rule; its dumps go on. Whether it was there.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn remove_rule(&self, name: &str) -> Result<bool, CommandError> {
        self.check_live()?;
        let rules = lock(&self.rules.rules);
        let Some(entry) = rules.by_name.get(name) else {
            drop(rules);
            return self.settled().map(|()| false);
        };
        entry.check_no_script(name)?;
        let edits = vec![(name.to_owned(), Edit::Remove)];
        self.edit(rules, edits, None, None).map(|()| true)
    }

    /// Says whether a rule's matches are hits. Whether that is new.
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: there is no such rule.
    pub fn enable_rule(&self, name: &str, is_enabled: bool) -> Result<bool, CommandError> {
        self.check_live()?;
        let rules = lock(&self.rules.rules);
        let entry = rules.by_name.get(name).ok_or_else(|| no_rule(name))?;
        entry.check_no_script(name)?;
        if entry.is_enabled == is_enabled {
            drop(rules);
            return self.settled().map(|()| false);
        }
        let mut entry = entry.clone();
        entry.is_enabled = is_enabled;
        let edits = vec![(name.to_owned(), Edit::Keep(entry))];
        self.edit(rules, edits, None, None).map(|()| true)
    }
}

impl Entry {
    /// The rule, for those who look at packets.
    pub(super) fn to_rule(&self, prepared: Prepared) -> Rule {
        Rule {
            number: self.number,
            text: self.expression.clone(),
            prepared,
            hits: self.hits.clone().unwrap_or_default(),
            is_enabled: self.is_enabled,
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
    /// The next rule has this number.
    pub(crate) fn skip_to(&self, number: usize) {
        lock(&self.rules).next = number;
    }
}

fn no_rule(name: &str) -> CommandError {
    CommandError::Refused(format!("there is no rule '{name}'"))
}
