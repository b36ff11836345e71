//! Commands, taken between two batches.

use std::collections::VecDeque;

use super::{Core, MANUAL};
use crate::{
    analysis::{
        director::{Hit, HitOrder, Order},
        predicate::Expression,
        terms::{Terms, TriggerRequest},
    },
    control::{
        commands::{Command, Triggered, WAITING_MAX},
        events::Event,
        ring_time::Moment,
    },
};

/// Keys of triggers that are remembered.
const KEYS: usize = 256;

/// Which dumps triggers by hand started that had a key: the last ones.
#[derive(Debug, Default)]
pub(super) struct Keys(VecDeque<(String, u64)>);

impl Keys {
    fn dump(&self, key: &str) -> Option<u64> {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.map(|(_, dump)| *dump)
    }

    fn add(&mut self, key: String, dump: u64) {
        self.0.push_back((key, dump));
        if self.0.len() > KEYS {
            self.0.pop_front();
        }
    }
}

impl Core {
    /// Takes the commands that wait: no more than can wait at once, because callers that are answered ask again, and packets wait meanwhile.
    /// A reply that nobody waits for any more is lost.
    pub(super) fn obey(&mut self, now: Moment) {
        for _ in 0..WAITING_MAX {
            let Ok(command) = self.parts.commands.try_recv() else {
                return;
            };
            match command {
                Command::Trigger {
                    key,
                    at_ns,
                    request,
                    expression,
                    reply,
                } => {
                    let expression = expression.unwrap_or_else(|| self.parts.manual.clone());
                    let triggered = self.trigger_by_hand((now, at_ns), key, &request, expression);
                    self.execute();
                    if let Some(reply) = reply {
                        let _ = reply.try_send(triggered);
                    }
                }
                Command::Alerts(alerts) => self.alerts.add(alerts),
                Command::Rules {
                    changes,
                    requests,
                    settings,
                    reply,
                } => {
                    self.change_rules(&changes);
                    self.change_terms(&requests, settings);
                    let _ = reply.try_send(());
                }
            }
        }
    }

    fn trigger_by_hand(
        &mut self,
        (now, at_ns): (Moment, Option<i64>),
        key: Option<String>,
        request: &TriggerRequest,
        mut expression: Expression,
    ) -> Result<Triggered, String> {
        if let Some(dump) = key.as_ref().and_then(|key| self.keys.dump(key)) {
            return Ok(Triggered {
                dump,
                existed: true,
            });
        }
        let time_ns = match at_ns {
            Some(at_ns) => at_ns,
            None if self.live => now.ring_ns,
            None => self.director.clock_ns,
        };
        if time_ns == i64::MIN {
            let nothing = "nothing is recorded yet, no dump";
            self.tell(Event::Notice(format!("a trigger by hand: {nothing}")));
            return Err(nothing.to_owned());
        }
        let order = HitOrder {
            time_ns,
            source: 0,
            producer: 0,
            record: u64::MAX,
            rule: MANUAL,
        };
        let terms = Terms::new(request, self.parts.window);
        let window = terms.window;
        expression.into.clone_from(&terms.into);
        let hit = Hit {
            order,
            terms,
            expression: Ok(expression.clone()),
        };
        self.director.manual(hit, &mut self.orders);
        let triggered = match self.orders.last() {
            Some(Order::Open { id, hit, .. }) if *hit == order => Ok((*id, false)),
            Some(Order::Refused { hit, why }) if *hit == order => Err(why.to_string()),
            _ => {
                let open = self
                    .director
                    .dump_of((MANUAL, &expression), window, time_ns);
                let open = open.ok_or_else(|| "it started no dump".to_owned());
                open.map(|dump| (dump, true))
            }
        };
        let (dump, existed) = triggered?;
        if let Some(key) = key {
            self.keys.add(key, dump);
        }
        Ok(Triggered { dump, existed })
    }
}
