//! The rows that are judged, with the least (or greatest) value that is good enough.

use super::blocks::{NOT_RUN, spread, table as blocks_table, words};
use super::names::{find, parts};
use crate::plot::number;
use crate::rows::Row;

/// A bound on a row's value.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for comparison.
    None,
}

impl Bound {
    fn verdict(self, value: f64) -> &'static str {
        let holds = match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
            Bound::None => return "",
        };
        if holds { "met" } else { "**missed**" }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtLeast(bound) => write!(f, "≥ {bound}"),
            Bound::AtMost(bound) => write!(f, "≤ {bound}"),
            Bound::None => write!(f, "–"),
        }
    }
}

/// Row, what it measures, its bound.
const GOALS: [(&str, &str, Bound); 28] = [
    (
        "ring/64B/1p1c/vs-qq2016",
        "64 B, 1P1C, against QQ of 2016",
        Bound::AtLeast(3.5),
    ),
    (
        "ring/64B/1p1c/vs-best-peer",
        "64 B, 1P1C, against the best queue used well",
        Bound::AtLeast(1.5),
    ),
    (
        "ring/64B/1p1c/vs-raw-insert",
        "64 B, 1P1C, against a raw insert without any queue",
        Bound::AtLeast(0.8),
    ),
    (
        "ring/64B/2p2c/vs-qq2016",
        "64 B, 2P2C, against QQ of 2016",
        Bound::AtLeast(3.5),
    ),
    (
        "ring/512B/1p1c/vs-qq2016",
        "512 B, 1P1C, against QQ of 2016",
        Bound::AtLeast(2.5),
    ),
    (
        "ring/1514B/1p1c/vs-qq2016",
        "1514 B, 1P1C, against QQ of 2016",
        Bound::AtLeast(2.0),
    ),
    (
        "ring/1514B/1p1c/vs-nt-fill",
        "1514 B, 1P1C, against filling the same memory",
        Bound::AtLeast(0.8),
    ),
    (
        "ring/cold-scan/vs-length-walk",
        "cold scan, against following lengths",
        Bound::AtLeast(4.0),
    ),
    (
        "ring/cold-scan/ns",
        "cold scan, ns a packet",
        Bound::AtMost(20.0),
    ),
    (
        "ring/latency/idle-p99-us",
        "store to peek on an idle link, p99, µs",
        Bound::AtMost(1000.0),
    ),
    (
        "ring/latency/1mpps-p99-us",
        "store to peek at 1 Mpps, p99, µs",
        Bound::AtMost(1000.0),
    ),
    (
        "ring/latency/idle-cpu",
        "CPU of an idle reader, percent",
        Bound::AtMost(2.0),
    ),
    (
        "ring/bytes-per-64B",
        "ring bytes a 64-byte packet",
        Bound::AtMost(81.0),
    ),
    (
        "ring/bucket-change-us",
        "a producer's change of buckets, 65,535 full ones and 1,000 reservations, µs",
        Bound::AtMost(5.0),
    ),
    (
        "limits/raw-insert/vs-nt-fill",
        "raw insert, bytes, of NT fill",
        Bound::AtLeast(0.7),
    ),
    (
        "limits/qq2016/vs-memcpy-insert",
        "QQ of 2016, of a plain memcpy insert",
        Bound::AtLeast(0.4),
    ),
    (
        "limits/best-peer/vs-memcpy-insert",
        "best queue used well, of a plain memcpy insert",
        Bound::AtLeast(0.8),
    ),
    (
        "recorder/64B/vs-ring",
        "whole recorder, one trigger filter, against the bare ring",
        Bound::AtLeast(0.4),
    ),
    (
        "recorder/inserters/2-vs-1",
        "two inserters, no reader, against one",
        Bound::AtLeast(1.8),
    ),
    (
        "capture/dpdk/net-null-vs-bare",
        "DPDK's made-up packets into the ring, against freeing them",
        Bound::AtLeast(0.6),
    ),
    (
        "filter/single/vs-libpcap",
        "five filters, packets in cache, against libpcap",
        Bound::AtLeast(3.5),
    ),
    (
        "filter/single/vs-handwritten-time",
        "their time, of the time by hand",
        Bound::AtMost(1.4),
    ),
    (
        "filter/100-hosts/vs-libpcap",
        "100 or-ed hosts, against libpcap",
        Bound::AtLeast(25.0),
    ),
    (
        "filter/10k-flows/vs-one-time",
        "10,000 flow rules, packets in the ring, of the time of one filter",
        Bound::AtMost(2.0),
    ),
    (
        "filter/10k-mixed/vs-one-time",
        "10,000 hosts, nets and ports, of the time of one filter",
        Bound::AtMost(3.0),
    ),
    (
        "filter/cold/vs-libpcap-walk",
        "one filter, packets in the ring, against libpcap following lengths",
        Bound::AtLeast(4.0),
    ),
    (
        "filter/install-10k-ms",
        "10,000 texts of flow rules until they match, ms",
        Bound::AtMost(50.0),
    ),
    (
        "filter/lua/vs-libpcap-time",
        "a port in Lua, of the time of libpcap",
        Bound::AtMost(0.6),
    ),
];

/// The same for `make bench-capture`.
const CAPTURE_GOALS: [(&str, &str, Bound); 6] = [
    (
        "capture/64B/cpu-vs-keeping",
        "64 B, against a tcpdump that keeps packets too",
        Bound::AtMost(0.4),
    ),
    (
        "capture/1514B/cpu-vs-keeping",
        "1514 B, against a tcpdump that keeps packets too",
        Bound::AtMost(0.4),
    ),
    (
        "capture/64B/cpu-vs-tcpdump",
        "64 B, against `tcpdump -w /dev/null`",
        Bound::None,
    ),
    (
        "capture/1514B/cpu-vs-tcpdump",
        "1514 B, against `tcpdump -w /dev/null`",
        Bound::None,
    ),
    (
        "capture/64B/cpu-vs-minimal",
        "64 B, against a reader that only copies",
        Bound::AtMost(1.6),
    ),
    (
        "capture/1514B/cpu-vs-minimal",
        "1514 B, against a reader that only copies",
        Bound::AtMost(0.8),
    ),
];

/// The table of judged rows.
pub(super) fn table(rows: &[Row]) -> String {
    goals(rows, &GOALS)
}

/// The table of those of live capture, and the times they are made of. `None` without any.
pub(super) fn capture(rows: &[Row]) -> Option<String> {
    let is_run = CAPTURE_GOALS
        .iter()
        .any(|(name, ..)| find(rows, name).is_some());
    let times = rows.iter().filter_map(|row| {
        let (size, program, threads) = match parts(row, "capture/") {
            Some([size, program]) => (size, program, "where they like"),
            None => {
                let [size, "one-cpu", program] = parts(row, "capture/")? else {
                    return None;
                };
                (size, program, "on one CPU")
            }
        };
        let program = match program.strip_suffix("-ns")? {
            "keeping" => "tcpdump that keeps",
            program => program,
        };
        Some(vec![
            program.to_owned(),
            threads.to_owned(),
            size.to_owned(),
            spread(row, number),
        ])
    });
    let times = blocks_table(
        &words(["program", "threads", "packets", "ns of processor time each"]),
        &times.collect::<Vec<_>>(),
    );
    is_run.then(|| {
        format!(
            "{}\n{}",
            goals(rows, &CAPTURE_GOALS),
            times.unwrap_or_default()
        )
    })
}

fn goals(rows: &[Row], goals: &[(&str, &str, Bound)]) -> String {
    let mut text =
        String::from("| case | row | against | goal | measured | |\n|---|---|---|---|---|---|\n");
    for (name, case, bound) in goals {
        let (versus, measured, verdict) = match find(rows, name) {
            None => ("", NOT_RUN.to_owned(), ""),
            Some(row) => match row.value {
                None => ("", format!("did not run: {}", reason(row)), ""),
                Some(value) => (
                    row.versus.as_deref().unwrap_or(""),
                    spread(row, number),
                    bound.verdict(value),
                ),
            },
        };
        text.push_str(&format!(
            "| {case} | `{name}` | {versus} | {bound} | {measured} | {verdict} |\n"
        ));
    }
    text
}

/// Why a row has no value, in its own words.
pub(super) fn reason(row: &Row) -> &str {
    row.versus.as_deref().unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::names::made_up;

    #[test]
    fn met_missed_and_not_run_are_told_apart() {
        let rows = [
            made_up("ring/64B/1p1c/vs-qq2016", 3.5, "ratio"),
            made_up("ring/512B/1p1c/vs-qq2016", 2.4, "ratio"),
            made_up("ring/cold-scan/ns", 20.1, "ns"),
            made_up("ring/latency/idle-cpu", 0.1, "percent"),
        ];
        let table = table(&rows);
        let line = |name: &str| {
            let line = table
                .lines()
                .find(|line| line.contains(&format!("`{name}`")));
            line.expect("every judged row has a line").to_owned()
        };
        assert!(line("ring/64B/1p1c/vs-qq2016").ends_with("| ≥ 3.5 | 3.50 | met |"));
        assert!(line("ring/512B/1p1c/vs-qq2016").ends_with("| **missed** |"));
        assert!(line("ring/cold-scan/ns").ends_with("| **missed** |"));
        assert!(line("ring/latency/idle-cpu").ends_with("| met |"));
        assert!(line("recorder/64B/vs-ring").ends_with("| not run |  |"));
    }

    #[test]
    fn live_capture_has_a_table_of_its_own() {
        assert_eq!(capture(&[]), None);
        let rows = [
            made_up("capture/64B/tcpdump-ns", 50.0, "ns"),
            made_up("capture/64B/cpu-vs-tcpdump", 0.6, "ratio"),
            made_up("capture/64B/one-cpu/keeping-ns", 500.0, "ns"),
            made_up("capture/64B/cpu-vs-keeping", 0.3, "ratio"),
            made_up("capture/1514B/cpu-vs-keeping", 0.5, "ratio"),
        ];
        let table = capture(&rows).unwrap();
        for line in [
            "| – | 0.600 |  |",
            "| ≤ 0.4 | 0.300 | met |",
            "| ≤ 0.4 | 0.500 | **missed** |",
            "| tcpdump | where they like | 64B | 50.0 |",
            "| tcpdump that keeps | on one CPU | 64B | 500 |",
        ] {
            assert!(table.contains(line), "{line} in {table}");
        }
    }
}
