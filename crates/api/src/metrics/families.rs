//! Which metrics there are.

use std::collections::BTreeMap;

use retroscope_recorder::{ProcessingHistogram, SourceSnapshot, Status};

use super::{Process, exposition::Exposition};

/// Sources that have series of their own, the first ones. Those behind them are summed up as `other`.
pub const SOURCES_MAX: usize = 256;

/// The label of what has no series of its own.
const OTHER: &str = "other";

/// What the sources counted. Several of one name are one.
pub(super) fn sources(exposition: &mut Exposition, sources: &[SourceSnapshot]) {
    let mut by_name: BTreeMap<&str, Vec<&SourceSnapshot>> = BTreeMap::new();
    for source in sources {
        let is_own = by_name.len() < SOURCES_MAX || by_name.contains_key(source.name.as_str());
        let name = if is_own { source.name.as_str() } else { OTHER };
        by_name.entry(name).or_default().push(source);
    }
    let mut counter = |name, help, count: &dyn Fn(&SourceSnapshot) -> Option<u64>| {
        let mut family = exposition.counter(name, help);
        for (name, sources) in &by_name {
            // Where it is not known of one it is not known of all.
            let sum = sources
                .iter()
                .map(|source| count(source))
                .sum::<Option<u64>>();
            family.add(&[("source", name)], sum);
        }
    };
    counter(
        "retroscope_received_packets",
        "Packets that reached the capture engine, by its own counter.",
        &|source| source.received,
    );
    counter(
        "retroscope_stored_packets",
        "Packets stored in the ring.",
        &|source| Some(source.stored),
    );
    counter(
        "retroscope_stored_bytes",
        "Captured bytes of the packets stored in the ring.",
        &|source| Some(source.stored_bytes),
    );
    counter(
        "retroscope_filtered_packets",
        "Packets that the capture filter refused.",
        &|source| source.filtered,
    );
    counter(
        "retroscope_cut_packets",
        "Stored packets that the snap length cut.",
        &|source| Some(source.cut),
    );
    let mut family = exposition.counter(
        "retroscope_lost_packets",
        "Packets lost before the ring, by cause.",
    );
    for (name, sources) in &by_name {
        let mut lost: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for (cause, packets) in sources.iter().flat_map(|source| &source.lost) {
            let sum = lost.entry(cause).or_insert(Some(0));
            *sum = sum.zip(*packets).map(|(a, b)| a + b);
        }
        for (cause, packets) in lost {
            family.add(&[("source", name), ("cause", cause)], packets);
        }
    }
}

/// What the recorder counted.
pub(super) fn recorder(exposition: &mut Exposition, status: &Status) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    exposition
        .info("retroscope_build", "The program.")
        .add(&version, Some(1));
    let mut family = exposition.histogram(
        "retroscope_packet_processing_seconds",
        "How long packets took to be looked at for triggers, of one burst in eight.",
    );
    for (shard, histogram) in status.processing.iter().enumerate() {
        let bounds = ProcessingHistogram::BELOW_NS.map(|below| match below {
            u64::MAX => f64::INFINITY,
            below => below as f64 / 1e9,
        });
        let buckets = bounds.into_iter().zip(histogram.packets);
        family.add_histogram(&[("shard", &shard.to_string())], buckets, None);
    }
    let history = status.history.map(|history| history.as_secs_f64());
    exposition
        .gauge(
            "retroscope_ring_history_seconds",
            "How far the ring reaches back: all that was stored within this time is in it.",
        )
        .add(&[], history);
}

/// What the system says of the process.
pub(super) fn process(exposition: &mut Exposition, process: &Process) {
    exposition
        .gauge(
            "process_start_time_seconds",
            "When the process was started, seconds since 1970.",
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
