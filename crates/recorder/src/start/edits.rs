//! Carries out changes of the trigger rules, together or not at all, and waits until the analyzer has them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, MutexGuard,
        mpsc::{Receiver, sync_channel},
    },
};

use retroscope_filter::Template;

use crate::{
    analysis::{prepared::Prepared, terms::TriggerRequest, triggers::RuleChange},
    control::{
        commands::{Command, Settings},
        lock,
    },
    start::{
        handle::{CommandError, Handle, late},
        rules::{Entry, Numbered, RULES_MAX},
    },
};

/// What a rule needs in addition to its texts: its filter, and its dump expression if it has one.
pub(super) type Ready = (Prepared, Option<Arc<Template>>);

/// A change of one rule.
#[derive(Debug)]
pub(super) enum Edit {
    Remove,
    /// The rule keeps its number and its filters.
    Keep(Entry),
    /// A new rule, or other filters. The rule gets a new number.
    Put(Entry, Ready),
}

impl Numbered {
    /// The rule of a name, new or not, with these texts. It keeps the count of its hits if the
    /// expression is the same.
    pub(super) fn edited(
        &self,
        name: &str,
        (expression, request): (&str, &TriggerRequest),
    ) -> Entry {
        let before = self.by_name.get(name);
        let same = before.filter(|before| before.expression == expression);
        let hits = same.and_then(|before| before.hits.clone());
        Entry {
            number: before.map_or(0, |before| before.number),
            expression: expression.to_owned(),
            request: request.clone(),
            is_enabled: before.is_none_or(|before| before.is_enabled),
            hits: hits.or_else(|| Some(Arc::default())),
            is_configured: before.is_some_and(|before| before.is_configured),
            is_counted: before.is_some_and(|before| before.is_counted),
        }
    }
}

impl Handle {
    /// Changes rules, by name, together or not at all, and waits until the analyzer has the changes.
    /// `default`: another dump expression of the rules that have none. `settings`: others that rules follow.
    ///
    /// # Errors
    /// [`CommandError`]; after [`CommandError::Late`] the rules will be as asked for.
    pub(super) fn edit(
        &self,
        mut rules: MutexGuard<'_, Numbered>,
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
        // By number. With settings, the analyzer needs the requests of all rules.
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
                Edit::Put(mut entry, (mut prepared, template)) => {
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
        let told = self.send(Command::Rules {
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
        mut rules: MutexGuard<'_, Numbered>,
        answer: &Receiver<()>,
    ) -> Result<(), CommandError> {
        let leaving = std::mem::take(&mut rules.leaving);
        let keeps = rules.keeps();
        if let Some(keeper) = &self.keeper
            && keeps != rules.kept
        {
            rules.kept.clone_from(&keeps);
            keeper.keep(keeps);
        }
        drop(rules);
        let answered = answer.recv_timeout(self.answer_wait).map_err(late);
        match answered {
            // The analyzer may still need the removed rules.
            Err(_) => lock(&self.rules.rules).leaving.extend(leaving),
            Ok(()) => self.rules.shared.remove(&leaving),
        }
        answered
    }

    /// Waits until the analyzer has carried out all earlier edits.
    ///
    /// # Errors
    /// [`CommandError`].
    pub(super) fn settled(&self) -> Result<(), CommandError> {
        self.edit(lock(&self.rules.rules), Vec::new(), None, None)
    }
}
