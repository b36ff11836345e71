//! Triggers by hand: SIGUSR1, the control socket, HTTP.

use std::sync::{Arc, mpsc::sync_channel};

use retroscope_alert::Alert;
use retroscope_filter::{FilterError, KnownFlow};

use crate::{
    analysis::{predicate::DumpExpression, terms::TriggerRequest},
    control::{
        alerts::AlertLines,
        commands::{AnalyzerCommand, TriggerOutcome},
        lock,
        ring_extent::RingExtent,
    },
    start::handle::{CommandError, RecorderHandle, check_name, late},
};

/// A trigger by hand.
#[derive(Debug, Clone, Default)]
pub struct ManualTrigger {
    /// A key that started a dump before (of the last 256) stands for that dump. 1 to 64 bytes.
    pub key: Option<String>,
    /// When it happened, a stamp, ns since the epoch: the window lies around it. `None`: now.
    pub at_ns: Option<i64>,
    /// Of what flow it is: what is dumped is that flow, of it what the request's expression takes.
    pub flow: Option<KnownFlow>,
    /// What it asks for.
    pub request: TriggerRequest,
    /// The rule whose hit it is, by name: its limits are kept to, it is counted as the rule's, and starts no dump where all of its window is before what the ring
    /// has. `None`: a trigger by hand, of no rule. Keys are remembered apart, the last 4,096 of rules.
    pub rule: Option<String>,
    /// The interface that `$iface` of the request's expression stands for, a ring-wide number.
    pub interface: Option<u16>,
}

impl RecorderHandle {
    /// Triggers by hand, and waits until the dump is open: of what the request says or else `manual_dump` of the configuration, with a window of its
    /// own. A `key` that started a dump before (of the last 256) stands for that dump.
    ///
    /// # Errors
    /// As [`Self::trigger_by_hand`].
    pub fn trigger(
        &self,
        key: Option<&str>,
        request: TriggerRequest,
    ) -> Result<TriggerOutcome, CommandError> {
        self.trigger_by_hand(ManualTrigger {
            key: key.map(str::to_owned),
            request,
            ..ManualTrigger::default()
        })
    }

    /// Triggers by hand, perhaps for a time before now, or for a flow, and waits until the dump is open.
    ///
    /// # Errors
    /// [`CommandError`]; `Filter`: the dump expression does not compile for any source, or asks for a trigger packet; `Suppressed`, `Gone`, `Refused`: why there
    /// is no dump, for example because its time is to come.
    pub fn trigger_by_hand(&self, by_hand: ManualTrigger) -> Result<TriggerOutcome, CommandError> {
        let ManualTrigger {
            key,
            at_ns,
            flow,
            request,
            rule,
            interface,
        } = by_hand;
        let rule = rule.map(|name| Ok::<_, CommandError>((self.rules.number(&name)?, name.into())));
        let rule = rule.transpose()?;
        key.as_deref().map(check_name).transpose()?;
        let at_ns = at_ns.map(|at_ns| self.ring_time(at_ns)).transpose()?;
        let dump = request.dump.as_deref();
        let expression = match &flow {
            None => dump.map(|text| {
                if let Some(interface) = interface {
                    return self.rules.on(text, interface);
                }
                let prepared = self.rules.prepare(text)?;
                Ok::<_, FilterError>(prepared.filter.filled().clone())
            }),
            Some(flow) => {
                let term = match flow {
                    KnownFlow::Key(_) => "$flow",
                    KnownFlow::CommunityId(_) => "$communityId",
                };
                let text = match dump.map(str::trim) {
                    None | Some("") => term.to_owned(),
                    Some(text) => {
                        // By itself, so that it stays within its parentheses.
                        self.rules.about(text, flow)?;
                        format!("{term} and ({text})")
                    }
                };
                Some(self.rules.about(&text, flow))
            }
        };
        let expression = expression.transpose()?.map(DumpExpression::plain);
        let held = rule.as_ref().map(|_| self.held()).transpose()?;
        let (reply, answer) = sync_channel(1);
        let reply = Some(reply);
        self.send(AnalyzerCommand::Trigger {
            key,
            at_ns,
            rule,
            held,
            request: Box::new(request),
            expression,
            reply,
        })?;
        let triggered = answer.recv_timeout(self.answer_wait).map_err(late)?;
        Ok(triggered?)
    }

    /// What a trigger by hand dumps that does not say: `manual_dump` of the configuration that is followed. Waits for a reload that goes on.
    #[must_use]
    pub fn manual_dump(&self) -> String {
        lock(&self.rules.configured).config.manual_dump.clone()
    }

    /// Triggers by hand, and does not wait: what became of it, the events tell.
    ///
    /// # Errors
    /// [`CommandError::Busy`], [`CommandError::Ended`].
    pub fn trigger_unanswered(&self) -> Result<(), CommandError> {
        self.send(AnalyzerCommand::Trigger {
            key: None,
            at_ns: None,
            rule: None,
            held: None,
            request: Box::default(),
            expression: None,
            reply: None,
        })
    }

    /// Alerts of an IDS: each acts when its time and [`AlertConfig::delay`](crate::AlertConfig::delay) have passed. Does not wait: what becomes of them, the events
    /// tell.
    ///
    /// # Errors
    /// [`CommandError::Busy`]: try again with the same ones; [`CommandError::Ended`]; `Refused`: from files they are given with the configuration.
    pub fn alerts(&self, alerts: Vec<Arc<Alert>>) -> Result<(), CommandError> {
        self.check_live()?;
        self.send(AnalyzerCommand::Alerts(alerts))
    }

    /// Counts what lines of alerts' sources were, for [`AlertCounts::lines`](crate::AlertCounts::lines).
    pub fn count_alert_lines(&self, more: &AlertLines) {
        if let Some(common) = self.common.upgrade()
            && *more != AlertLines::default()
        {
            common.alerts.add_lines(more);
        }
    }

    /// What the ring has now.
    fn held(&self) -> Result<RingExtent, CommandError> {
        let common = self.common()?;
        let now = common.clock.now();
        let since_ns = |start_ns| now.mono_ns.saturating_sub(start_ns);
        let ring = common.ring.attached();
        let buckets = ring.buckets().map_err(|_| CommandError::Ended)?;
        let producers = ring.producers().map_err(|_| CommandError::Ended)?;
        Ok(RingExtent {
            begun_ns: (self.start_mono_ns).map_or(i64::MIN, |start_ns| {
                now.ring_ns.saturating_sub(since_ns(start_ns))
            }),
            oldest_ns: buckets.iter().filter_map(|it| Some(it.span_ns?.0)).min(),
            evicted_ns: producers.iter().filter_map(|it| it.evicted_ns).max(),
        })
    }

    /// When a stamp was, in ring time; where the clock showed it several times, the last.
    fn ring_time(&self, stamp_ns: i64) -> Result<i64, CommandError> {
        self.check_live()?;
        let common = self.common()?;
        let now_ns = common.clock.now().ring_ns;
        let times = common.ring_times((stamp_ns, stamp_ns)).into_iter();
        let passed = times.map(|(ns, _)| ns).filter(|ns| *ns <= now_ns);
        passed.max().ok_or_else(|| {
            let why = "the time of a trigger by hand is to come, or the clock never showed it";
            CommandError::Refused(why.to_owned())
        })
    }
}
