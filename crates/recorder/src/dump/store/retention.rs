//! Which dump goes next: pure.

use std::collections::HashMap;

use super::{Keep, StoredDump, WhyDeleted};

/// What is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct Limits {
    /// Of all dumps.
    pub(crate) all: Keep,
    /// Of the dumps of rules, by name.
    pub(crate) rules: HashMap<String, RuleKeep>,
}

/// What is kept of a rule's dumps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleKeep {
    pub(crate) keep: Keep,
    /// Its dumps are of this trigger expression; `None`: of whatever it was, under this name.
    pub(crate) expression: Option<String>,
}

impl Limits {
    /// Whether there are any.
    pub(crate) fn are_any(&self) -> bool {
        let is_any = |keep: &Keep| *keep != Keep::default();
        is_any(&self.all) || self.rules.values().any(|rule| is_any(&rule.keep))
    }

    /// What is kept of the rule that a dump is of, and the rule's name.
    fn of_rule(&self, dump: &StoredDump) -> Option<(&str, &Keep)> {
        let (name, rule) = self.rules.get_key_value(dump.rule_name.as_deref()?)?;
        let is_of = |text: &String| *text == dump.rule;
        let is_its = rule.expression.as_ref().is_none_or(is_of);
        is_its.then_some((name, &rule.keep))
    }

    /// All that are to go: the oldest first, none that is held. Open dumps have `open_bytes`, which count in all, and are not among `dumps`. `now_ns`: since
    /// the epoch.
    pub(crate) fn due<'d>(
        &self,
        dumps: impl Iterator<Item = &'d StoredDump>,
        open_bytes: u64,
        now_ns: i64,
    ) -> Vec<(&'d StoredDump, WhyDeleted)> {
        let dumps = oldest_first(dumps);
        let mut of_rules: HashMap<&str, u64> = HashMap::new();
        let mut bytes = open_bytes;
        for dump in &dumps {
            bytes = bytes.saturating_add(dump.bytes);
            if let Some((name, _)) = self.of_rule(dump) {
                let of_rule = of_rules.entry(name).or_default();
                *of_rule = of_rule.saturating_add(dump.bytes);
            }
        }
        let mut due = Vec::new();
        for dump in dumps.into_iter().filter(|dump| !dump.is_held) {
            let of_rule = self.of_rule(dump);
            let mut limits = vec![(&self.all, &mut bytes)];
            if let Some((name, keep)) = of_rule {
                limits.push((keep, of_rules.entry(name).or_default()));
            }
            let mut each = limits.iter();
            let why = each.find_map(|(keep, bytes)| keep.why(dump, **bytes, now_ns));
            if let Some(why) = why {
                for (_, bytes) in limits {
                    *bytes = bytes.saturating_sub(dump.bytes);
                }
                due.push((dump, why));
            }
        }
        due
    }
}

impl Keep {
    /// Why a dump goes that is the oldest of some with so many bytes.
    fn why(&self, dump: &StoredDump, bytes: u64, now_ns: i64) -> Option<WhyDeleted> {
        let age_ns = i128::from(now_ns) - i128::from(dump.made_ns);
        let is_old = |age: std::time::Duration| age_ns > age.as_nanos().cast_signed();
        if self.age.is_some_and(is_old) {
            Some(WhyDeleted::Age)
        } else {
            self.bytes
                .filter(|most| bytes > *most)
                .map(|_| WhyDeleted::Bytes)
        }
    }
}

/// What goes to make room for so many bytes: the oldest, as many as it takes, none that is held.
pub(crate) fn for_room<'d>(
    dumps: impl Iterator<Item = &'d StoredDump>,
    wanted_bytes: u64,
) -> Vec<&'d StoredDump> {
    let mut bytes = 0_u64;
    let dumps = oldest_first(dumps).into_iter();
    let may_go = dumps.filter(|dump| !dump.is_held);
    let is_wanted = |dump: &&StoredDump| {
        let is_wanted = bytes < wanted_bytes;
        bytes = bytes.saturating_add(dump.bytes);
        is_wanted
    };
    may_go.take_while(is_wanted).collect()
}

/// Those of the same time by name.
fn oldest_first<'d>(dumps: impl Iterator<Item = &'d StoredDump>) -> Vec<&'d StoredDump> {
    let mut dumps: Vec<_> = dumps.collect();
    dumps.sort_by(|one, other| (one.made_ns, &one.id).cmp(&(other.made_ns, &other.id)));
    dumps
}
