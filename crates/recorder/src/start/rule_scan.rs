//! Adds a rule that also acts on packets of the past ([`RuleScan`]).
//!
//! The scan is a query of the ring on the client's thread. The analyzer gets the hits, oldest
//! first.

use std::{
    sync::{Arc, mpsc::sync_channel},
    thread::park_timeout,
    time::{Duration, Instant},
};

use retroscope_capture::{clock::duration_ns, quantity::duration_text};
use retroscope_packet::may_be_fragment;
use retroscope_ring::Packet;

use crate::{
    Cancel, Query, QueryReport,
    analysis::{
        director::HitOrder,
        fragments::{FirstFragments, asks_for_flows},
        predicate::DumpExpression,
        prepared::{PreparedFilter, view},
        shard::FoundHit,
        terms::TriggerRequest,
    },
    control::{
        commands::AnalyzerCommand,
        common::RecorderShared,
        events::RecorderEvent,
        hits::HitRefusal,
        lock,
        rule_scan::{RuleScan, RuleScanStatus},
    },
    start::{
        handle::{CommandError, RecorderHandle},
        rules::{Condition, RequestedRule, RuleStatus, no_second_try},
    },
};

/// Longest scan, unless the analyzer is slow.
const SCAN_MAX: Duration = Duration::from_secs(60);
/// Maximum number of hits that go to the analyzer together.
const HITS_MAX: usize = 256;
/// If the last hits went to the analyzer this long ago, ns, the next hit is sent at once.
const HITS_AGE_NS: i64 = 10_000_000;
/// Pause between two checks whether the last records to try are published.
const PUBLICATION_CHECK: Duration = Duration::from_millis(1);

/// Ends the scan if its thread fails.
struct RunningScan<'a>(&'a RuleScan);

impl Drop for RunningScan<'_> {
    fn drop(&mut self) {
        self.0.stop("the scan has failed");
    }
}

/// Hits on their way to the analyzer.
struct FoundInPast<'a> {
    handle: &'a RecorderHandle,
    common: &'a RecorderShared,
    scan: &'a Arc<RuleScan>,
    rule: usize,
    hits: Vec<FoundHit>,
    sent_ns: i64,
    /// Whether the rule still exists and is enabled.
    is_wanted: bool,
}

impl FoundInPast<'_> {
    fn push(&mut self, hit: FoundHit) {
        self.hits.push(hit);
        let age_ns = self.common.clock.mono_ns().saturating_sub(self.sent_ns);
        if self.hits.len() >= HITS_MAX || age_ns >= HITS_AGE_NS {
            self.send(false);
        }
    }

    /// Gives the hits to the analyzer, and waits for its answer.
    fn send(&mut self, is_last: bool) {
        let (reply, answer) = sync_channel(1);
        let hits = std::mem::take(&mut self.hits);
        let found = hits.len() as u64;
        let command = AnalyzerCommand::Scanned {
            rule: self.rule,
            hits,
            is_last,
            reply,
        };
        let sent = self.handle.commands.send(command);
        self.handle.waker.wake();
        let (dumps, is_wanted) = match sent {
            Ok(()) => answer.recv().unwrap_or_default(),
            Err(_) => (0, false),
        };
        self.is_wanted &= is_wanted;
        self.scan.update(|status| {
            status.hits += found;
            status.dumps += dumps;
        });
        self.sent_ns = self.common.clock.mono_ns();
    }
}

impl RecorderHandle {
    /// Adds or changes a rule as [`Self::put_rule`] does, and tries its filter on the packets of
    /// the ring that are at most `past` older than the rule. The rule is enabled. Returns after the
    /// scan, which takes about 60 s at most, and which `cancel` ends. Limits and hold-offs count
    /// from the time of the scan.
    ///
    /// A rule that is already as requested is not scanned again: the request may be a retry.
    ///
    /// # Errors
    /// As [`Self::put_rule`]; `NoScan`: the rule already has these filters, without such a scan, or
    /// a dump script makes its dump expression.
    pub fn put_rule_and_scan(
        &self,
        name: &str,
        (expression, request): (&str, &TriggerRequest),
        condition: Condition<'_>,
        (past, cancel): (Duration, &Cancel),
    ) -> Result<(RuleStatus, bool), CommandError> {
        self.check_live()?;
        let dump = {
            let config = &lock(&self.rules.configured).config;
            if request.dump.is_none() && config.scripts.dump.is_some() {
                let why = "the dump script may keep state from packet to packet, so it cannot act on the past: give the rule its own dump filter";
                return Err(CommandError::NoScan(why.to_owned()));
            }
            request.dump.clone().unwrap_or_else(|| config.dump.clone())
        };
        let filter = self.rules.prepare(expression)?;
        let scan = RuleScan::new(past);
        let wanted = RequestedRule {
            name,
            expression,
            request,
            is_enabled: Some(true),
            condition,
            past: Some((&filter, &scan)),
        };
        let running = RunningScan(&scan);
        let (present, existed) = self.put_requested(wanted)?;
        let Some(number) = scan.rule() else {
            return match present.scan {
                Some(_) => Ok((present, existed)), // a retry
                None => Err(no_second_try(name)),
            };
        };
        let report = self.scan(number, &dump, (&filter, &scan), cancel);
        scan.update(|status| status.end(report, cancel.why()));
        drop(running);
        let status = scan.status();
        let notice = format!("rule '{name}': {}", status.sentence());
        self.log.tell(RecorderEvent::Notice(notice));
        let now = self.rule(name).unwrap_or(present);
        let scan = Some(status);
        Ok((RuleStatus { scan, ..now }, existed))
    }

    /// Scans the past for a rule that the analyzer has.
    fn scan(
        &self,
        rule: usize,
        dump: &str,
        (filter, scan): (&PreparedFilter, &Arc<RuleScan>),
        cancel: &Cancel,
    ) -> Result<QueryReport, String> {
        let text = |why: CommandError| why.to_string();
        let common = self.common().map_err(text)?;
        let mut found = FoundInPast {
            handle: self,
            common: &common,
            scan,
            rule,
            hits: Vec::new(),
            sent_ns: i64::MIN,
            is_wanted: true,
        };
        let report = found.read(dump, filter, cancel);
        found.send(true);
        report
    }
}

impl FoundInPast<'_> {
    fn read(
        &mut self,
        dump: &str,
        filter: &PreparedFilter,
        cancel: &Cancel,
    ) -> Result<QueryReport, String> {
        let rules = &self.handle.rules;
        let template = rules.compile(dump).map_err(|why| why.to_string())?;
        let deadline = Instant::now() + self.handle.answer_wait;
        let late = || "the analysis is late: a script may be slow".to_owned();
        let end_ns = self
            .common
            .clock
            .mono_ns()
            .saturating_add(duration_ns(SCAN_MAX));
        let bounds = self.scan.bounds(self.handle.answer_wait, end_ns);
        let bounds = bounds.ok_or_else(late)?;
        while !bounds.are_published(|producer| self.common.ring.published(producer)) {
            if Instant::now() > deadline {
                return Err(late());
            }
            park_timeout(PUBLICATION_CHECK);
        }
        let query = Query {
            last_ns: Some(duration_ns(self.scan.status().past)),
            ..Query::default()
        };
        let with_fragments = asks_for_flows(&template);
        let answer = self.handle.query(&query).map_err(|why| why.to_string())?;
        let answer = answer.for_rule(filter, bounds, with_fragments);
        let mut names = self.common.intake.interface_cache();
        let mut fragments = FirstFragments::new(with_fragments);
        let look = |place: (usize, u64), packet: &Packet<'_>| {
            let Some(interface) = names.interface(packet.interface) else {
                return true;
            };
            let link_type = interface.link_type;
            fragments.see(link_type, packet.time_ns, packet.data);
            let is_sure = !with_fragments || !may_be_fragment(link_type, packet.data);
            if is_sure || filter.filter.matches(&view(link_type, packet, filter.mode)) {
                let (producer, record) = place;
                let order = HitOrder {
                    time_ns: packet.time_ns,
                    source: interface.source,
                    producer,
                    record,
                    rule: self.rule,
                };
                let dump = DumpExpression::new(&template, interface, packet, &fragments);
                self.push((order, dump.map_err(HitRefusal::Variable)));
            }
            self.is_wanted
        };
        let report = answer.until(cancel).each_record(look);
        report.map_err(|why| why.to_string())
    }
}

impl RuleScanStatus {
    /// The scan ends with the report of its query, or with an error. `cancelled`: why the query was
    /// cancelled.
    fn end(&mut self, read: Result<QueryReport, String>, cancelled: Option<String>) {
        let stopped = match &read {
            Err(why) => Some(why.clone()),
            Ok(report) if report.clipped.contains(&"cancelled") => {
                Some(cancelled.unwrap_or_else(|| "the client has left".to_owned()))
            }
            Ok(report) if report.clipped.contains(&"limit") => {
                Some("the rule was disabled (also by its single dump) or removed".to_owned())
            }
            Ok(_) => None,
        };
        if self.is_whole.is_none() {
            (self.is_whole, self.why) = (Some(stopped.is_none()), stopped);
        }
        self.report = read.ok().map(Box::new);
    }

    /// The result in words.
    fn sentence(&self) -> String {
        let past = duration_text(self.past);
        let Self { hits, dumps, .. } = self;
        let report = self.report.as_ref();
        let inspected = report.map_or(0, |report| report.inspected);
        let reasons = report.map_or_else(String::new, |report| format!(": {}", report.reasons()));
        let early =
            (self.why.as_ref()).map_or_else(String::new, |why| format!(", ended early: {why}"));
        format!(
            "scan of the last {past}: {hits} hits in {inspected} packets, {dumps} dumps{reasons}{early}"
        )
    }
}
