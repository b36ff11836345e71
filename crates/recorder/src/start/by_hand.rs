//! Manual triggers.

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

/// A manual trigger.
#[derive(Debug, Clone, Default)]
pub struct ManualTrigger {
    /// If an earlier trigger with this key got a dump, the result is that dump. The last 256 keys
    /// are kept; with `rule`, the last 4,096. 1 to 64 bytes.
    pub key: Option<String>,
    /// Time of the event, a stamp, ns since the epoch: the window is around this time. `None`: now.
    pub at_ns: Option<i64>,
    /// A flow to dump. The request's expression then selects packets of this flow.
    pub flow: Option<KnownFlow>,
    /// The trigger's request.
    pub request: TriggerRequest,
    /// Name of a rule: the trigger is a hit of this rule, with the window and limits of `request`.
    /// Triggers with a rule have separate keys. `None`: no rule.
    pub rule: Option<String>,
    /// Ring-wide number of the interface that replaces `$iface` in the request's expression.
    /// Ignored if `flow` is given.
    pub interface: Option<u16>,
}

impl RecorderHandle {
    /// Triggers manually, and waits until the dump is open. Without an expression in the request,
    /// `manual_dump` of the configuration selects the packets. `key`: see [`ManualTrigger::key`].
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

    /// Triggers manually, perhaps for an earlier time or for a flow, and waits until the dump is
    /// open.
    ///
    /// # Errors
    /// [`CommandError`]; `Filter`: the dump expression does not compile for any source, or needs a
    /// trigger packet. `Suppressed`, `Gone`, `Refused`: why there is no dump, for example because
    /// the time of the trigger is in the future.
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
                        // Compiled alone first, so that its parentheses are balanced.
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

    /// `manual_dump` of the current configuration. Waits for a running reload.
    #[must_use]
    pub fn manual_dump(&self) -> String {
        lock(&self.rules.configured).config.manual_dump.clone()
    }

    /// Triggers manually without waiting; events report a new dump or a refusal.
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

    /// Adds alerts of an IDS. Does not wait; events report the outcomes.
    ///
    /// # Errors
    /// [`CommandError::Busy`]: try again with the same alerts; [`CommandError::Ended`]; `Refused`:
    /// from files, alerts belong to the configuration.
    pub fn alerts(&self, alerts: Vec<Arc<Alert>>) -> Result<(), CommandError> {
        self.check_live()?;
        self.send(AnalyzerCommand::Alerts(alerts))
    }

    /// Adds line counts to [`AlertCounts::lines`](crate::AlertCounts::lines).
    pub fn count_alert_lines(&self, more: &AlertLines) {
        if let Some(common) = self.common.upgrade()
            && *more != AlertLines::default()
        {
            common.alerts.add_lines(more);
        }
    }

    /// The present time range of the ring.
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

    /// The ring time of a stamp. If the clock showed the stamp several times, the last of these
    /// times that is not in the future.
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
