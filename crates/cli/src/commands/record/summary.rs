//! Prints the results of `record` at the end and determines the exit code.

use std::{process::ExitCode, time::Duration};

use retroscope_capture::af_packet::interfaces;
use retroscope_recorder::{
    AlertCounts, DumpCounts, DumpReport, FlowCounts, HitCounts, ModuleStatus, PostCounts,
    ProcessingHistogram, Reason, RecorderSummary, SourceSnapshot, Suppressions, Verdict,
};
use retroscope_ring::Ring;
use serde::Serialize;

use super::{
    Settings,
    screen::{shed_by, source_line},
};
use crate::{
    eve::Counters,
    failure::{Code, Failure, print_line, put, put_json, say},
    units::{counted, show_size},
};

/// Maximum number of unfinished files whose names are printed.
const UNFINISHED_MAX: usize = 100;

/// The JSON object that `--json` prints.
#[derive(Debug, Serialize)]
struct SummaryJson<'a> {
    sources: &'a [SourceSnapshot],
    analyzers: AnalyzersJson,
    triggers: u64,
    suppressed: u64,
    suppressed_by: Suppressions,
    refused: u64,
    unfilled: u64,
    scripts_failed: u64,
    /// Packets that were not analyzed while rules could trigger.
    not_analyzed: u64,
    /// Number of dumps that may lack packets, because these packets arrived too late.
    dumps_with_late_packets: u64,
    /// Status of each module.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    modules: &'a [ModuleStatus],
    /// Counts of alerts, if any alert or line arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    alerts: Option<AlertCounts>,
    /// Counts of flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    flows: Option<FlowCounts>,
    /// Counts of the commands of --post.
    #[serde(skip_serializing_if = "Option::is_none")]
    post: Option<PostCounts>,
    /// Counts of EVE lines, with --eve.
    #[serde(skip_serializing_if = "Option::is_none")]
    eve: Option<Counters>,
    /// Numbers, by verdict, of the earlier dumps that `dumps` does not list.
    dumps_before: DumpCounts,
    dumps: &'a [DumpReport],
}

/// Balance of the analyzers: `stored = analyzed + missed + unread`.
#[derive(Debug, Serialize)]
struct AnalyzersJson {
    stored: u64,
    analyzed: u64,
    missed: u64,
    unread: u64,
}

/// Prints the results and determines the exit code. A failure takes precedence over incomplete
/// dumps.
pub(crate) fn finish(
    args: &Settings,
    summary: &RecorderSummary,
    ring: &Ring,
    (eve, aborted): (Option<Counters>, bool),
) -> Result<ExitCode, Failure> {
    let mut told: Vec<String> = Vec::new();
    for error in summary.errors.iter().map(ToString::to_string) {
        // All queues of an interface may report the same error.
        if !told.contains(&error) {
            say(&error);
            told.push(error);
        }
    }
    if !args.quiet {
        print_totals(summary);
        print_flows(summary);
        summary.modules.iter().for_each(print_module);
        print_alerts(summary);
        if !args.verbose && summary.hits.suppressed.refused() > 0 {
            say(&hits_line(&summary.hits));
        }
    }
    if args.verbose {
        print_details(summary, ring);
    }
    if summary.not_analyzed > 0 {
        let packets = counted(summary.not_analyzed, "packet");
        say(&format!(
            "{packets} not seen by the trigger rules: triggers may have been missed"
        ));
    }
    if summary.outdated > 0 {
        let dumps = counted(summary.outdated, "dump");
        say(&format!("{dumps} may lack packets that came too late"));
    }
    print_unfinished(summary);
    let flows_lost = say_lost_flows(summary, eve);
    if args.json {
        print_json(summary, eve)?;
    }
    if summary.panicked {
        return Err(Failure::failed(
            "a thread of the recorder failed: please report this bug with the text above",
        ));
    }
    let before = &summary.dumps_before;
    let incomplete = before.total() > before.complete
        || summary.not_analyzed + summary.outdated + flows_lost > 0
        || summary.alerts.unmatched() > 0
        || (summary.dumps.iter()).any(|dump| dump.verdict != Verdict::Complete);
    Ok(
        if !summary.errors.is_empty() || have_scripts_failed(summary) || aborted {
            Code::Failed.into()
        } else if incomplete {
            Code::Incomplete.into()
        } else {
            ExitCode::SUCCESS
        },
    )
}

/// Prints the names of unfinished files.
fn print_unfinished(summary: &RecorderSummary) {
    let is_part = |dump: &&DumpReport| dump.file.extension().is_some_and(|it| it == "part");
    let unfinished: Vec<_> = summary.dumps.iter().filter(is_part).collect();
    for dump in unfinished.iter().take(UNFINISHED_MAX) {
        say(&format!("unfinished: {}", dump.file.display()));
    }
    if let Some(rest @ 1..) = unfinished.len().checked_sub(UNFINISHED_MAX) {
        say(&format!("unfinished: {rest} more"));
    }
}

/// Whether a script is disabled, or a call of a module failed.
fn have_scripts_failed(summary: &RecorderSummary) -> bool {
    let has_failed = |module: &ModuleStatus| module.counts.faults > 0;
    summary.scripts_failed > 0 || summary.modules.iter().any(has_failed)
}

/// Prints the counts of flows in a line.
fn print_flows(summary: &RecorderSummary) {
    let Some(flows) = &summary.flows else {
        return;
    };
    let mut text = format!(
        "{} of {}",
        counted(flows.begun, "flow"),
        counted(flows.packets, "packet")
    );
    if flows.unattributed > 0 {
        let packets = counted(flows.unattributed, "packet");
        text.push_str(&format!("; of no flow that can be told: {packets}"));
    }
    if flows.evicted > 0 {
        let evicted = counted(flows.evicted, "flow");
        text.push_str(&format!("; ended for others by max-flows: {evicted}"));
    }
    print_line(&text);
}

/// Prints the counts of a module in a line.
fn print_module(module: &ModuleStatus) {
    let counts = &module.counts;
    let (flows, packets) = (
        counted(counts.begun, "flow"),
        counted(counts.packets, "packet"),
    );
    let mut text = format!("module {}: {flows} of {packets}", module.name);
    if counts.unattributed > 0 {
        let packets = counted(counts.unattributed, "packet");
        text.push_str(&format!("; of no flow: {packets}"));
    }
    if counts.evicted > 0 {
        let evicted = counted(counts.evicted, "flow");
        text.push_str(&format!("; given up for others: {evicted}"));
    }
    if counts.faults > 0 {
        let (faults, lost) = (
            counted(counts.faults, "call"),
            counted(counts.lost, "packet"),
        );
        text.push_str(&format!("; failed: {faults}, lost with that: {lost}"));
    }
    print_line(&text);
}

/// Prints the counts of alerts in a line.
fn print_alerts(summary: &RecorderSummary) {
    if has_alerts(summary) {
        print_line(&summary.alerts.to_string());
    }
}

/// Whether any alert, or any line of a source of alerts, arrived.
fn has_alerts(summary: &RecorderSummary) -> bool {
    summary.alerts.total() + summary.alerts.lines.lines > 0
}

/// Prints and returns the number of lost flows and lines.
fn say_lost_flows(summary: &RecorderSummary, eve: Option<Counters>) -> u64 {
    // With --top and without --eve, no flows are written, so no flow can be lost.
    let flows = summary.flows.filter(|_| eve.is_some());
    let untold = flows.map_or(0, |flows| flows.untold);
    if untold > 0 {
        let flows = counted(untold, "flow");
        say(&format!(
            "{flows} not written: they ended faster than --eve writes"
        ));
    }
    let lost = eve.map_or(0, |eve| eve.lost);
    if lost > 0 {
        let lines = counted(lost, "line");
        say(&format!("{lines} of EVE lost: --eve had no room for them"));
    }
    untold + lost
}

/// Prints the same three lines as tcpdump, and a line about shed packets if there are any.
fn print_totals(summary: &RecorderSummary) {
    let packets = |n: Option<u64>| n.map_or("unknown packets".to_owned(), |n| counted(n, "packet"));
    let sources = || summary.sources.iter();
    let stored: u64 = sources().map(|source| source.stored).sum();
    let received = sources().map(|source| source.received).sum();
    let kernel = sources().filter_map(|source| source.lost.get("kernel").copied());
    print_line(&format!("{} captured", packets(Some(stored))));
    print_line(&format!("{} received by filter", packets(received)));
    print_line(&format!("{} dropped by kernel", packets(kernel.sum())));
    if let shed @ 1.. = sources()
        .filter_map(|source| source.lost.get("shed").copied()?)
        .sum()
    {
        let by = shed_by(sources());
        print_line(&format!("{} shed by {by}", counted(shed, "packet")));
    }
}

fn print_details(summary: &RecorderSummary, ring: &Ring) {
    for source in &summary.sources {
        say(&source_line(source));
    }
    let overwritten = counted(ring.statistics().evicted_packets, "packet");
    say(&format!(
        "ring: {} in {} of {}, {overwritten} overwritten",
        show_size(ring.bytes()),
        counted(ring.buckets() as u64, "bucket"),
        show_size(ring.bucket_bytes() as u64),
    ));
    let (analyzed, missed, unread) = (summary.analyzed, summary.lapped, summary.unread());
    say(&format!(
        "analyzed {analyzed}, missed {missed}, unread {unread}"
    ));
    let shards = summary.processing.iter().enumerate();
    let lines = shards.filter_map(|(shard, histogram)| processing_line(shard, histogram));
    lines.for_each(|line| say(&line));
    for source in &summary.sources {
        say_buffer(source, summary.elapsed);
    }
    say(&hits_line(&summary.hits));
}

/// Processing times of the packets of a shard. `None`: no packet was timed.
fn processing_line(shard: usize, histogram: &ProcessingHistogram) -> Option<String> {
    let most = show_short(histogram.p9999_ns?);
    let counts = histogram.packets.iter().zip(ProcessingHistogram::BELOW_NS);
    let counts = counts.filter(|(packets, _)| **packets > 0);
    let counts = counts.map(|(packets, below_ns)| match below_ns {
        u64::MAX => format!("{packets} longer"),
        below_ns => format!("{packets} below {}", show_power(below_ns)),
    });
    let counts: Vec<String> = counts.collect();
    Some(format!(
        "shard {shard}: 99.99 % of packets were analyzed within {most}; of those timed {}",
        counts.join(", ")
    ))
}

/// Formats a power of ten of nanoseconds.
fn show_power(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", ns / 1_000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

/// Prints how many packets the buffer of a live source holds, and for how long at the mean rate.
/// Also prints how long the processing of a packet may take at common link speeds before the source
/// drops packets.
fn say_buffer(source: &SourceSnapshot, elapsed: Option<Duration>) {
    let (Some(packets), Some(elapsed)) = (source.buffer_packets(), elapsed) else {
        return;
    };
    let name = &source.name;
    let times = SourceSnapshot::LINK_GBITS.map(|gbits| {
        let longest = source.longest_ns(gbits * 1_000_000_000).unwrap_or(0);
        format!("{} at {gbits} Gbit/s", show_short(longest))
    });
    say(&format!(
        "{name}: a packet may take so long without a drop: {}",
        times.join(", ")
    ));
    let rate = source.stored as f64 / elapsed.as_secs_f64().max(1e-9);
    let packets_text = counted(packets, "packet");
    if source.stored == 0 {
        return say(&format!(
            "{name}: its buffer holds some {packets_text}; no rate"
        ));
    }
    let holds_ns = u128::from(packets) * elapsed.as_nanos() / u128::from(source.stored);
    say(&format!(
        "{name}: its buffer holds some {packets_text}, {} at the mean rate of {rate:.0} packets/s",
        show_short(u64::try_from(holds_ns).unwrap_or(u64::MAX))
    ));
}

/// Formats a time: whole ns, µs and ms with three decimals, or s with one decimal.
fn show_short(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.3} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// Formats the outcome of hits: `triggers 3, suppressed 12 (open 10, max-dumps 2)`.
fn hits_line(hits: &HitCounts) -> String {
    let by = hits.suppressed.to_string();
    let by = if by.is_empty() {
        by
    } else {
        format!(" ({by})")
    };
    let (triggers, suppressed) = (hits.triggers, hits.suppressed.total());
    format!("triggers {triggers}, suppressed {suppressed}{by}")
}

/// Prints the object of `--json`.
pub(crate) fn print_json(summary: &RecorderSummary, eve: Option<Counters>) -> Result<(), Failure> {
    let suppressed = summary.hits.suppressed;
    let json = SummaryJson {
        sources: &summary.sources,
        analyzers: AnalyzersJson {
            stored: summary.stored,
            analyzed: summary.analyzed,
            missed: summary.lapped,
            unread: summary.unread(),
        },
        triggers: summary.hits.triggers,
        suppressed: suppressed.total(),
        suppressed_by: suppressed,
        refused: suppressed.refused(),
        unfilled: suppressed.of(Reason::Unfilled),
        scripts_failed: summary.scripts_failed,
        not_analyzed: summary.not_analyzed,
        dumps_with_late_packets: summary.outdated,
        flows: summary.flows,
        post: summary.post,
        modules: &summary.modules,
        alerts: has_alerts(summary).then_some(summary.alerts),
        eve,
        dumps_before: summary.dumps_before,
        dumps: &summary.dumps,
    };
    put_json(&json).map(drop)
}

/// Prints the interfaces for `-D`.
pub(crate) fn print_interfaces() -> Result<ExitCode, Failure> {
    let mut text = String::new();
    let all = interfaces()
        .map_err(|error| Failure::failed(format!("cannot list the interfaces: {error}")))?;
    for interface in all {
        let state = match (interface.up, interface.running) {
            (false, _) => "down",
            (true, false) => "up, no carrier",
            (true, true) => "up",
        };
        let supported = match interface.link_type {
            Some(_) => "",
            None => ", link type not supported",
        };
        let (name, kind) = (interface.name, interface.kind);
        text.push_str(&format!("{name}\t{kind}, {state}{supported}\n"));
    }
    put(&text)
}
