//! Commands of other threads to the analyzer.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::Core;
use crate::{
    analysis::{
        director::{HitOrder, MANUAL, TriggerHit},
        predicate::DumpExpression,
        terms::{TriggerRequest, TriggerTerms},
        triggers::RuleChange,
    },
    control::{
        commands::{AnalyzerCommand, NoDump, TriggerOutcome, WAITING_MAX},
        events::RecorderEvent,
        hits::{HitRefusal, Reason},
        ring_extent::RingExtent,
        ring_time::Moment,
    },
};

/// Maximum number of keys of manual triggers that the analyzer remembers.
const KEYS: usize = 256;
/// Maximum number of keys that the analyzer remembers of commands that trigger a rule.
const KEYS_OF_RULES: usize = 4096;

/// The dumps of the last triggers with a key, by key. A client that repeats a command with one of
/// these keys gets the same dump.
#[derive(Debug)]
pub(super) struct TriggerKeys {
    dumps: HashMap<String, u64>,
    order: VecDeque<String>,
    most: usize,
}

impl TriggerKeys {
    /// Two memories: for manual triggers, and for commands that trigger a rule.
    pub(super) fn both() -> [Self; 2] {
        [KEYS, KEYS_OF_RULES].map(|most| Self {
            dumps: HashMap::new(),
            order: VecDeque::new(),
            most,
        })
    }

    fn add(&mut self, key: String, dump: u64) {
        self.dumps.insert(key.clone(), dump);
        self.order.push_back(key);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.dumps.remove(&oldest);
        }
    }
}

impl Core {
    /// Processes at most [`WAITING_MAX`] commands in one call, so that commands cannot keep the
    /// analyzer from packets.
    pub(super) fn run_commands(&mut self, now: Moment) {
        for _ in 0..WAITING_MAX {
            let Ok(command) = self.parts.commands.try_recv() else {
                return;
            };
            match command {
                AnalyzerCommand::Trigger {
                    key,
                    at_ns,
                    rule,
                    held,
                    request,
                    expression,
                    reply,
                } => {
                    let expression = expression.unwrap_or_else(|| self.parts.manual.clone());
                    let triggered =
                        self.trigger((now, at_ns, held), key, (rule, &request), expression);
                    self.execute();
                    if let Some(reply) = reply {
                        let _ = reply.try_send(triggered);
                    }
                }
                AnalyzerCommand::Scanned {
                    rule,
                    hits,
                    is_last,
                    reply,
                } => _ = reply.try_send(self.act_on_scanned(rule, hits, is_last)),
                AnalyzerCommand::Alerts(alerts) => self.add_alerts(alerts, now),
                AnalyzerCommand::Rules {
                    changes,
                    requests,
                    settings,
                    reply,
                } => {
                    self.change_rules(&changes);
                    self.change_terms(&requests, settings);
                    // Set the terms first: `forget_removed_rules` acts on queued hits, which may
                    // include hits of a new rule.
                    let is_removed = |it: &RuleChange| matches!(it, RuleChange::Remove(_));
                    if changes.iter().any(is_removed) {
                        self.forget_removed_rules();
                    }
                    let _ = reply.try_send(());
                }
            }
        }
    }

    /// Processes a manual trigger, or a command that triggers a rule without a packet.
    fn trigger(
        &mut self,
        (now, at_ns, held): (Moment, Option<i64>, Option<RingExtent>),
        key: Option<String>,
        (rule, request): (Option<(usize, Arc<str>)>, &TriggerRequest),
        mut expression: DumpExpression,
    ) -> Result<TriggerOutcome, NoDump> {
        let is_of_rule = rule.is_some();
        let keys = &self.keys[usize::from(is_of_rule)];
        if let Some(dump) = key.as_ref().and_then(|key| keys.dumps.get(key)) {
            return Ok(TriggerOutcome {
                dump: *dump,
                existed: true,
                window_end_ns: None,
            });
        }
        let (number, called) = rule.unzip();
        if number.is_some_and(|number| !self.rules.contains_key(&number)) {
            return Err(NoDump::RuleChanged);
        }
        let time_ns = match at_ns {
            Some(at_ns) => at_ns,
            None if self.live => now.ring_ns,
            None => self.director.clock_ns,
        };
        if time_ns == i64::MIN {
            let nothing = "nothing is recorded yet, no dump";
            self.tell(RecorderEvent::Notice(format!(
                "a trigger by hand: {nothing}"
            )));
            return Err(NoDump::Other(nothing.to_owned()));
        }
        let mut terms = TriggerTerms::new(request, self.parts.window);
        terms.called = called;
        if let Some(gone) = held.and_then(|held| held.gone(terms.window.end_ns(time_ns))) {
            return Err(NoDump::Gone(gone));
        }
        expression.into.clone_from(&terms.into);
        // The stamps of files are ring time.
        let offset_ns = if self.live { now.offset_ns } else { 0 };
        let end_ns = terms.window.end_ns(time_ns).saturating_add(offset_ns);
        let hit = TriggerHit {
            order: HitOrder::without_packet(time_ns, number.unwrap_or(MANUAL)),
            terms,
            expression: Ok(expression),
        };
        let acted = if is_of_rule {
            self.director.hit(hit, &mut self.orders)
        } else {
            Some(self.director.manual(hit, &mut self.orders))
        };
        // `None`: the hit waits, only from files.
        let acted = acted.unwrap_or(Err(HitRefusal::HeldOff));
        let (dump, existed) = acted.map_err(|why| match why.reason() {
            Reason::Unfilled => NoDump::Other(why.to_string()),
            _ => NoDump::Limit(why.to_string()),
        })?;
        if let Some(key) = key {
            self.keys[usize::from(is_of_rule)].add(key, dump);
        }
        Ok(TriggerOutcome {
            dump,
            existed,
            window_end_ns: (!existed).then_some(end_ns),
        })
    }
}
