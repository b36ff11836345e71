//! The metrics of the recorder.

use std::collections::BTreeMap;

use retroscope_recorder::{
    AgeHistogram, DumpCounts, HitCounts, ModuleStatus, ProcessingHistogram, Reason, RecorderStatus,
    SourceSnapshot, ThreadStatus,
};

use super::{Process, exposition::Exposition};

/// Maximum number of names with separate groups from [`grouped`].
pub(super) const SERIES_MAX: usize = 256;

/// The label value for items without separate series.
const OTHER: &str = "other";
/// The label value for manual triggers.
const MANUAL: &str = "manual";

/// Name, help text, and value of a counter; `None`: unknown.
type Counter<T> = (&'static str, &'static str, fn(&T) -> Option<u64>);

/// Groups items by name. Names after the first [`SERIES_MAX`] names are in the group `other`.
fn grouped<T>(all: &[T], name: impl Fn(&T) -> &str) -> BTreeMap<String, Vec<&T>> {
    let mut groups: BTreeMap<String, Vec<&T>> = BTreeMap::new();
    for one in all {
        let is_own = groups.len() < SERIES_MAX || groups.contains_key(name(one));
        let name = if is_own { name(one) } else { OTHER };
        groups.entry(name.to_owned()).or_default().push(one);
    }
    groups
}

/// Adds counters for each group. A group with an unknown value has no sample.
fn counters<T>(
    exposition: &mut Exposition,
    label: &str,
    groups: &BTreeMap<String, Vec<&T>>,
    counters: &[Counter<T>],
) {
    for (name, help, count) in counters {
        let mut family = exposition.counter(name, help);
        for (name, group) in groups {
            let sum = group.iter().map(|one| count(one)).sum::<Option<u64>>();
            family.add(&[(label, name)], sum);
        }
    }
}

pub(super) fn sources(exposition: &mut Exposition, sources: &[SourceSnapshot]) {
    let groups = grouped(sources, |source| &source.name);
    counters(
        exposition,
        "source",
        &groups,
        &[
            (
                "retroscope_received_packets",
                "Packets that reached the capture engine, by its own counter.",
                |it| it.received,
            ),
            (
                "retroscope_stored_packets",
                "Packets stored in the ring.",
                |it| Some(it.stored),
            ),
            (
                "retroscope_stored_bytes",
                "Captured bytes of the packets stored in the ring.",
                |it| Some(it.stored_bytes),
            ),
            (
                "retroscope_filtered_packets",
                "Packets that did not match the capture filter. Absent if the kernel filters.",
                |it| it.filtered,
            ),
            (
                "retroscope_cut_packets",
                "Stored packets that the snap length truncated.",
                |it| Some(it.cut),
            ),
            (
                "retroscope_late_packets",
                "Upper bound on packets that arrived too late for dumps that were finished.",
                |it| Some(it.late),
            ),
            (
                "retroscope_interface_outages",
                "Times that the interface went down or was removed.",
                |it| Some(it.gaps),
            ),
        ],
    );
    let mut family = exposition.counter(
        "retroscope_interface_outage_seconds",
        "Time during which the interface was down or removed.",
    );
    for (name, group) in &groups {
        let ns: u64 = group.iter().map(|source| source.gap_ns).sum();
        family.add(&[("source", name)], Some(seconds(ns)));
    }
    let mut family = exposition.counter(
        "retroscope_lost_packets",
        "Packets lost before the ring, by cause. Cause shed: packets that were not stored on purpose.",
    );
    for (name, group) in &groups {
        let mut lost: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for (cause, packets) in group.iter().flat_map(|source| &source.lost) {
            let sum = lost.entry(cause).or_insert(Some(0));
            *sum = sum.zip(*packets).map(|(a, b)| a + b);
        }
        for (cause, packets) in lost {
            family.add(&[("source", name), ("cause", cause)], packets);
        }
    }
}

pub(super) fn ring(exposition: &mut Exposition, status: &RecorderStatus) {
    let ring = &status.ring;
    let (goal, limit) = status.history_goal.unzip();
    let goal = goal.map(|goal| goal.as_secs_f64());
    let history = status.history.map(|history| history.as_secs_f64());
    let oldest = status.oldest_stamp_ns.map(|ns| ns as f64 / 1e9);
    for (name, help, value) in [
        (
            "retroscope_ring_history_seconds",
            "History of the ring: every packet that was stored within this time is in the ring. Live only.",
            history,
        ),
        (
            "retroscope_ring_history_goal_seconds",
            "Goal of the ring's history (--history-goal).",
            goal,
        ),
        (
            "retroscope_ring_oldest_packet_timestamp_seconds",
            "Earliest time stamp in the ring, seconds since 1970.",
            oldest,
        ),
    ] {
        exposition.gauge(name, help).add(&[], value);
    }
    for (name, help, value) in [
        (
            "retroscope_history_limit_bytes",
            "Bytes of each direction of a flow that are kept to reach the history goal. Absent while all bytes are kept.",
            limit.flatten(),
        ),
        (
            "retroscope_ring_size_bytes",
            "Size of the ring.",
            Some(status.ring_bytes),
        ),
        (
            "retroscope_ring_reserved_buckets",
            "Closed buckets that dumps or pins need.",
            Some(ring.reserved_buckets as u64),
        ),
        (
            "retroscope_ring_pins",
            "Pins: time ranges that the ring keeps.",
            Some(status.pins.len() as u64),
        ),
        (
            "retroscope_unread_packets",
            "Packets in the ring that the triggers have not inspected yet.",
            Some(status.unread),
        ),
        (
            "retroscope_rules",
            "Trigger rules, including scripts and modules.",
            Some(status.rules as u64),
        ),
    ] {
        exposition.gauge(name, help).add(&[], value);
    }
    let mut family = exposition.gauge("retroscope_ring_buckets", "Buckets of the ring, by state.");
    for (state, buckets) in [
        ("free", ring.free_buckets),
        ("open", ring.open_buckets),
        ("closed", ring.closed_buckets),
    ] {
        family.add(&[("state", state)], Some(buckets));
    }
    counts(exposition, status);
}

fn counts(exposition: &mut Exposition, status: &RecorderStatus) {
    for (name, help, value) in [
        (
            "retroscope_ring_evicted_packets",
            "Packets that were overwritten by newer packets.",
            status.ring.evicted_packets,
        ),
        (
            "retroscope_ring_evicted_bytes",
            "Captured bytes of packets that were overwritten by newer packets.",
            status.ring.evicted_bytes,
        ),
        (
            "retroscope_ring_reservations_revoked",
            "Reservations of dumps and pins that lost packets to newer packets.",
            status.ring.reservations_fallen,
        ),
        (
            "retroscope_analyzed_packets",
            "Packets that the triggers inspected.",
            status.analyzed,
        ),
        (
            "retroscope_missed_packets",
            "Packets that the ring overwrote before the triggers inspected the packets.",
            status.lapped,
        ),
        (
            "retroscope_clock_steps",
            "Steps of the system clock by more than 100 ms.",
            status.clock_steps,
        ),
        (
            "retroscope_dumps_with_late_packets",
            "Dumps that may lack packets that arrived too late.",
            status.outdated,
        ),
        (
            "retroscope_events",
            "Events for listeners, such as finished dumps and notices.",
            status.next_event,
        ),
    ] {
        exposition.counter(name, help).add(&[], Some(value));
    }
    let mut family = exposition.histogram(
        "retroscope_packet_processing_seconds",
        "Time that the triggers needed to inspect a packet. One in eight groups of up to 64 packets is timed.",
    );
    for (shard, histogram) in status.processing.iter().enumerate() {
        let buckets = below(&ProcessingHistogram::BELOW_NS, &histogram.packets);
        let sum = Some(seconds(histogram.sum_ns));
        family.add_histogram(&[("shard", &shard.to_string())], buckets, sum);
    }
}

pub(super) fn threads(exposition: &mut Exposition, threads: &[ThreadStatus]) {
    counters(
        exposition,
        "thread",
        &grouped(threads, |thread| &thread.name),
        &[
            (
                "retroscope_thread_stored_packets",
                "Packets that a capture thread stored in the ring.",
                |it| it.stored,
            ),
            (
                "retroscope_thread_analyzed_packets",
                "Packets that the thread inspected.",
                |it| Some(it.analysis?.analyzed),
            ),
            (
                "retroscope_thread_missed_packets",
                "Packets that the ring overwrote before the thread inspected them.",
                |it| Some(it.analysis?.missed),
            ),
        ],
    );
    let mut family = exposition.gauge(
        "retroscope_thread_unread_packets",
        "Packets in the ring that the thread has not inspected yet.",
    );
    for thread in threads {
        let unread = thread.analysis.map(|of| of.unread);
        family.add(&[("thread", &thread.name)], unread);
    }
    let mut family = exposition.gauge(
        "retroscope_thread_longest_analysis_seconds",
        "Longest time for which the thread inspected packets without a look at its source.",
    );
    for thread in threads {
        let longest = thread.analysis.map(|of| of.longest.as_secs_f64());
        family.add(&[("thread", &thread.name)], longest);
    }
    let mut family = exposition.counter(
        "retroscope_thread_cpu_seconds",
        "Processor time of a thread.",
    );
    for thread in threads {
        let seconds = thread.cpu.map(|cpu| cpu.as_secs_f64());
        family.add(&[("thread", &thread.name)], seconds);
    }
}

pub(super) fn dumps(exposition: &mut Exposition, status: &RecorderStatus) {
    // A user's rule may have the name `other` or `manual`. Its counts are then added to that
    // series.
    let mut rules: BTreeMap<&str, Vec<&HitCounts>> = BTreeMap::new();
    for hits in &status.hits_by_rule {
        let rule = hits.rule.as_deref().unwrap_or(OTHER);
        rules.entry(rule).or_default().push(&hits.counts);
    }
    rules.entry(MANUAL).or_default().push(&status.hits_by_hand);
    let mut family = exposition.counter(
        "retroscope_triggers",
        "Hits of trigger rules, by outcome: a dump, or the reason why no dump started.",
    );
    for (rule, counts) in rules {
        let triggers = counts.iter().map(|counts| counts.triggers).sum::<u64>();
        family.add(&[("rule", rule), ("outcome", "dump")], Some(triggers));
        for reason in Reason::ALL {
            let suppressed = counts.iter().map(|counts| counts.suppressed.of(reason));
            let labels = [("rule", rule), ("outcome", reason.as_str())];
            family.add(&labels, Some(suppressed.sum::<u64>()));
        }
    }
    let ages = &status.trigger_ages;
    exposition
        .histogram("retroscope_trigger_age_seconds", "Delay from the trigger packet to the opening of the dump. Live only, without sources that have a separate clock.")
        .add_histogram(&[], below(&AgeHistogram::BELOW_NS, &ages.dumps), Some(seconds(ages.sum_ns)));
    let totals = &status.dumps;
    let mut family = exposition.counter("retroscope_dumps", "Finished dumps, by verdict.");
    let DumpCounts {
        complete,
        incomplete,
        failed,
    } = totals.finished;
    for (verdict, dumps) in [
        ("complete", complete),
        ("incomplete", incomplete),
        ("failed", failed),
    ] {
        family.add(&[("verdict", verdict)], Some(dumps));
    }
    let mut family = exposition.counter(
        "retroscope_dumps_missing",
        "Dumps that lack packets, by cause. A dump with several causes counts for each cause.",
    );
    // Prometheus' `increase()` does not count the first event if the series appears with this
    // event. So these series exist from the start.
    let mut missing = BTreeMap::from([("disk", 0), ("evicted", 0)]);
    missing.extend(&totals.missing);
    for (cause, dumps) in missing {
        family.add(&[("cause", cause)], Some(dumps));
    }
    exposition
        .counter("retroscope_dump_packets", "Packets in finished dumps.")
        .add(&[], Some(totals.packets));
    exposition
        .counter(
            "retroscope_dump_bytes",
            "Captured bytes of the packets in finished dumps.",
        )
        .add(&[], Some(totals.bytes));
    exposition
        .gauge(
            "retroscope_open_dumps",
            "Dumps whose window is open or whose file is not finished.",
        )
        .add(&[], Some(status.dumps_open));
    exposition
        .gauge(
            "retroscope_dump_copied_bytes",
            "Bytes of packets that were copied for dumps and are not written yet.",
        )
        .add(&[], Some(status.copied_bytes));
    exposition
        .gauge(
            "retroscope_dump_copied_limit_bytes",
            "Limit of the bytes that are copied and not written. At the limit, dumps wait.",
        )
        .add(&[], Some(status.copied_bytes_max));
    exposition
        .gauge(
            "retroscope_failed_scripts",
            "Scripts and modules that are disabled because they failed or exceeded a budget.",
        )
        .add(&[], Some(status.scripts_failed));
}

pub(super) fn flows(exposition: &mut Exposition, status: &RecorderStatus) {
    if let Some(flows) = &status.flows {
        exposition
            .gauge("retroscope_live_flows", "Flows that have not ended.")
            .add(&[], Some(flows.live));
        for (name, help, value) in [
            (
                "retroscope_started_flows",
                "Flows that started.",
                flows.begun,
            ),
            (
                "retroscope_flow_packets",
                "Packets counted in flows.",
                flows.packets,
            ),
            (
                "retroscope_unattributed_packets",
                "Packets whose flow could not be determined.",
                flows.unattributed,
            ),
            (
                "retroscope_unreported_flows",
                "Ended flows without a flow record, because EVE output was too slow.",
                flows.untold,
            ),
        ] {
            exposition.counter(name, help).add(&[], Some(value));
        }
        let mut family =
            exposition.counter("retroscope_ended_flows", "Flows that ended, by reason.");
        for (why, ended) in [
            ("timeout", flows.timed_out),
            ("reuse", flows.reused),
            ("table-full", flows.evicted),
            ("end", flows.finished),
        ] {
            family.add(&[("reason", why)], Some(ended));
        }
    }
    let groups = grouped(&status.modules, |module| &module.name);
    counters(
        exposition,
        "module",
        &groups,
        &[
            (
                "retroscope_module_packets",
                "Packets that the module handled.",
                |it: &ModuleStatus| Some(it.counts.packets),
            ),
            (
                "retroscope_module_lost_packets",
                "Packets that the module did not handle, because it failed or is disabled.",
                |it| Some(it.counts.lost),
            ),
            (
                "retroscope_module_wanted_packets",
                "Packets for which the module requested a dump.",
                |it| Some(it.counts.wanted),
            ),
            (
                "retroscope_module_faults",
                "Calls of the module that failed.",
                |it| Some(it.counts.faults),
            ),
            (
                "retroscope_module_evicted_flows",
                "Flows of the module that were dropped to make room for other flows.",
                |it| Some(it.counts.evicted),
            ),
        ],
    );
    let mut family = exposition.gauge(
        "retroscope_module_live_flows",
        "Flows of the module that have not ended.",
    );
    for (name, group) in &groups {
        let live: u64 = group.iter().map(|module| module.counts.live).sum();
        family.add(&[("module", name)], Some(live));
    }
}

pub(super) fn process(exposition: &mut Exposition, process: &Process) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    exposition
        .info("retroscope_build", "Version of the program.")
        .add(&version, Some(1));
    exposition
        .gauge(
            "process_start_time_seconds",
            "Start time of the process, seconds since 1970.",
        )
        .add(&[], process.start_seconds);
    exposition
        .counter("process_cpu_seconds", "Processor time of all threads.")
        .add(&[], process.cpu_seconds);
    exposition
        .gauge(
            "process_resident_memory_bytes",
            "Memory of the process, the ring included.",
        )
        .add(&[], process.resident_bytes);
    exposition
        .gauge(
            "process_virtual_memory_bytes",
            "Address space of the process.",
        )
        .add(&[], process.virtual_bytes);
    exposition
        .gauge("process_threads", "Threads of the process.")
        .add(&[], process.threads);
}

/// The buckets of a histogram, with bounds in seconds.
pub(super) fn below<'a>(
    below_ns: &'a [u64],
    counts: &'a [u64],
) -> impl Iterator<Item = (f64, u64)> {
    let bounds = below_ns.iter().map(|ns| match *ns {
        u64::MAX => f64::INFINITY,
        ns => seconds(ns),
    });
    bounds.zip(counts.iter().copied())
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
