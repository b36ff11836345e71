//! Decides which dumps are deleted. Pure.

use std::collections::HashMap;

use super::{RetentionLimit, StoredDump, WhyDeleted};

/// Retention limits.
#[derive(Debug, Clone, Default)]
pub struct Retention {
    /// Limits on all dumps together.
    pub all: RetentionLimit,
    /// Limits on the dumps of each rule, by the name of the rule.
    pub rules: HashMap<String, RuleRetention>,
}

/// Retention limits of one rule's dumps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleRetention {
    /// The limits on the dumps of the rule.
    pub keep: RetentionLimit,
    /// The trigger expression of the dumps that count as dumps of the rule. `None`: dumps of any
    /// expression under the rule's name.
    pub expression: Option<String>,
}

impl Retention {
    /// Whether there is any limit.
    pub fn are_any(&self) -> bool {
        let is_any = |keep: &RetentionLimit| *keep != RetentionLimit::default();
        is_any(&self.all) || self.rules.values().any(|rule| is_any(&rule.keep))
    }

    /// The name and the limit of the rule of a dump.
    fn of_rule(&self, dump: &StoredDump) -> Option<(&str, &RetentionLimit)> {
        let (name, rule) = self.rules.get_key_value(dump.rule_name.as_deref()?)?;
        let is_of = |text: &String| *text == dump.rule;
        let is_its = rule.expression.as_ref().is_none_or(is_of);
        is_its.then_some((name, &rule.keep))
    }

    /// Dumps to delete because of a limit, the oldest first. Held dumps stay. `open_bytes` are the
    /// bytes of open dumps and of other dumps that are not in `dumps`; they count toward the limit
    /// on all dumps. `now_ns`: ns since the epoch.
    pub fn due<'d>(
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

impl RetentionLimit {
    /// The reason to delete the oldest dump of a set with this number of bytes, if there is a
    /// reason.
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

/// Dumps to delete for `wanted_bytes` of room: the oldest first, no more than needed. Held dumps
/// stay.
pub fn for_room<'d>(
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

/// Sorts dumps by time, dumps of the same time by ID.
fn oldest_first<'d>(dumps: impl Iterator<Item = &'d StoredDump>) -> Vec<&'d StoredDump> {
    let mut dumps: Vec<_> = dumps.collect();
    dumps.sort_by(|one, other| (one.made_ns, &one.id).cmp(&(other.made_ns, &other.id)));
    dumps
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tests::S;

    /// Random dumps and limits: the dumps that stay are within the limits or held, and no dump is
    /// deleted for its bytes without need.
    #[test]
    fn what_is_due_agrees_with_an_oracle() {
        let mut random = fastrand::Rng::with_seed(50);
        for round in 0..3000 {
            let rules = ["udp", "tcp", "icmp"];
            let dump = |number: usize, random: &mut fastrand::Rng| StoredDump {
                id: format!("{number}"),
                number: None,
                is_open: false,
                is_held: random.u8(..5) == 0,
                rule: "udp".to_owned(),
                rule_name: Some(rules[random.usize(..3)].to_owned()),
                trigger_time: String::new(),
                from: String::new(),
                to: String::new(),
                verdict: None,
                packets: 0,
                bytes: random.u64(..100),
                made_ns: random.i64(0..20) * S,
                files: Vec::new(),
                recording: None,
            };
            let dumps: Vec<_> = (0..random.usize(..12))
                .map(|n| dump(n, &mut random))
                .collect();
            let limit = |random: &mut fastrand::Rng| RetentionLimit {
                bytes: random.bool().then(|| random.u64(..600)),
                age: random.bool().then(|| Duration::from_secs(random.u64(..25))),
            };
            let limits = Retention {
                all: limit(&mut random),
                rules: rules[1..]
                    .iter()
                    .map(|it| {
                        let keep = limit(&mut random);
                        let expression = None;
                        ((*it).to_owned(), RuleRetention { keep, expression })
                    })
                    .collect(),
            };
            let (open_bytes, now_ns) = (random.u64(..200), random.i64(0..30) * S);
            let due = limits.due(dumps.iter(), open_bytes, now_ns);
            let gone = |id: &str| due.iter().any(|(dump, _)| dump.id == id);
            // All dumps except held dumps are within the limits, and no dump was deleted for its
            // bytes without need.
            let left: Vec<_> = dumps.iter().filter(|dump| !gone(&dump.id)).collect();
            let may_go = |dump: &&&StoredDump| !dump.is_held;
            let none = RetentionLimit::default();
            for rule in rules {
                let own = limits.rules.get(rule).map_or(&none, |it| &it.keep);
                let of_rule: Vec<_> = left
                    .iter()
                    .filter(|it| it.rule_name.as_deref() == Some(rule))
                    .collect();
                let bytes: u64 = of_rule.iter().map(|it| it.bytes).sum();
                let is_within = own.bytes.is_none_or(|most| bytes <= most);
                assert!(
                    is_within || !of_rule.iter().any(|it| !it.is_held),
                    "round {round}"
                );
                let age_ns = |dump: &StoredDump| now_ns - dump.made_ns;
                for dump in of_rule.iter().filter(|it| !it.is_held) {
                    for age in [own.age, limits.all.age].into_iter().flatten() {
                        assert!(
                            age_ns(dump) <= i64::try_from(age.as_nanos()).unwrap(),
                            "round {round}"
                        );
                    }
                }
            }
            let bytes = open_bytes + left.iter().map(|dump| dump.bytes).sum::<u64>();
            let is_within = limits.all.bytes.is_none_or(|most| bytes <= most);
            assert!(
                is_within || left.iter().find(may_go).is_none(),
                "round {round}"
            );
            for (place, (dump, why)) in due.iter().enumerate() {
                assert!(!dump.is_held);
                if *why == WhyDeleted::Bytes {
                    // Without a limit on the bytes of all dumps, an older dump that counts for the
                    // limit stays only if it is held.
                    let older = left
                        .iter()
                        .filter(|it| it.made_ns < dump.made_ns && !it.is_held);
                    let is_all = limits.all.bytes.is_some();
                    let name = dump.rule_name.as_deref().unwrap();
                    let own = limits.rules.get(name).and_then(|it| it.keep.bytes);
                    let is_rule = own.is_some();
                    let is_counted = |it: &&&StoredDump| !is_rule || it.rule_name == dump.rule_name;
                    assert!(
                        is_all || older.clone().find(|it| is_counted(it)).is_none(),
                        "round {round}"
                    );
                    // With this dump and the dumps deleted after it, the limit would be exceeded.
                    let back = due[place..].iter().map(|(dump, _)| dump.bytes).sum::<u64>();
                    let of_rule: u64 = left
                        .iter()
                        .filter(|it| it.rule_name == dump.rule_name)
                        .map(|it| it.bytes)
                        .sum();
                    let back_of_rule = due[place..].iter();
                    let back_of_rule = back_of_rule.filter(|it| it.0.rule_name == dump.rule_name);
                    let back_of_rule: u64 = back_of_rule.map(|it| it.0.bytes).sum();
                    let too_much = limits.all.bytes.is_some_and(|most| bytes + back > most);
                    let too_much_of_rule = own.is_some_and(|most| of_rule + back_of_rule > most);
                    assert!(too_much || too_much_of_rule, "round {round}");
                }
            }
            let wanted = random.u64(..500);
            let room = for_room(dumps.iter(), wanted);
            let made: u64 = room.iter().map(|dump| dump.bytes).sum();
            let all: u64 = dumps
                .iter()
                .filter(|it| !it.is_held)
                .map(|it| it.bytes)
                .sum();
            assert!(made >= wanted.min(all) && room.iter().all(|dump| !dump.is_held));
            let last = room.last().map_or(0, |dump| dump.bytes);
            assert!(wanted == 0 || made - last < wanted, "no more than it takes");
        }
    }
}
