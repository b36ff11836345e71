//! The one list of rows: what each is called, its unit, what is good enough, who measures it and where it is shown.
//!
//! `make bench-quick` measures the groups of [`Command::Quick`], `make bench` those of [`Command::Full`] too, `make bench-capture`
//! those of [`Command::Capture`]. A judged row stands in the table of its command (`judged`, `capture-judged`) with its goal. The
//! others are families: `{l}` and `{c}` in a name stand for something, which [`TABLES`] and [`FIGURES`] of docs/benchmarks.md put in
//! lines and columns. All lists are text with `|` between fields, a line for each thing.
//!
//! A ratio is nothing without a sound denominator, so the `limits/…/vs-…` rows are measured in the same turns, and a ratio whose
//! denominator falls short has no figure but a sentence. A selection of rows brings the rows of its denominators with it.

use std::{io, sync::LazyLock};

use crate::{
    ablation, bucket_change, capture, filter, latency, limits, outer, queues, recorder, ring,
    session::Session,
};

/// What measures a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `make bench-quick`: the rows that ring and filters are judged by.
    Quick,
    /// `make bench`: the evaluation of the thesis too, reproduced and extended.
    Full,
    /// `make bench-capture`: programs on live traffic.
    Capture,
}
use Command::{Capture, Full, Quick};

/// Measures the wanted rows of a group, and writes them.
type Run = fn(&Session) -> io::Result<()>;

/// Command, who measures, and the rows: name, unit, goal, and the case that the table of judged rows tells. In the order in which
/// they are measured.
const LIST: &[(Command, Run, &str)] = &[
    (
        Quick,
        ring::retention,
        "ring/bytes-per-64B | bytes | ≤ 81 | ring bytes a 64-byte packet",
    ),
    (
        Quick,
        latency::judged,
        "
        ring/latency/idle-p99-us | us | ≤ 1000 | store to peek on an idle link, p99, µs
        ring/latency/1mpps-p99-us | us | ≤ 1000 | store to peek at 1 Mpps, p99, µs
        ring/latency/idle-cpu | percent | ≤ 2 | CPU of an idle reader, percent
        ",
    ),
    (
        Quick,
        queues::judged,
        "
        ring/64B/1p1c/vs-qq2016 | ratio | ≥ 3.5 | 64 B, 1P1C, against QQ of 2016
        ring/64B/1p1c/vs-best-peer | ratio | ≥ 1.5 | 64 B, 1P1C, against the best queue used well
        ring/64B/1p1c/vs-raw-insert | ratio | ≥ 0.8 | 64 B, 1P1C, against a raw insert without any queue
        ring/64B/2p2c/vs-qq2016 | ratio | ≥ 3.5 | 64 B, 2P2C, against QQ of 2016
        ring/512B/1p1c/vs-qq2016 | ratio | ≥ 2.5 | 512 B, 1P1C, against QQ of 2016
        ring/1514B/1p1c/vs-qq2016 | ratio | ≥ 2 | 1514 B, 1P1C, against QQ of 2016
        ring/1514B/1p1c/vs-nt-fill | ratio | ≥ 0.8 | 1514 B, 1P1C, against filling the same memory
        ring/60B/1p1c/vs-qq2016 | ratio | – | 60 B, 1P1C, against QQ of 2016
        ring/60B/1p1c/vs-nt-fill | ratio | – | 60 B, 1P1C, against filling the same memory
        ring/590B/1p1c/vs-qq2016 | ratio | – | 590 B, 1P1C, against QQ of 2016
        ring/590B/1p1c/vs-nt-fill | ratio | – | 590 B, 1P1C, against filling the same memory
        limits/raw-insert/vs-nt-fill | ratio | ≥ 0.7 | raw insert, bytes, of NT fill
        limits/qq2016/vs-memcpy-insert | ratio | ≥ 0.4 | QQ of 2016, of a plain memcpy insert
        limits/best-peer/vs-memcpy-insert | ratio | ≥ 0.8 | best queue used well, of a plain memcpy insert
        ",
    ),
    (
        Quick,
        recorder::judged,
        "
        recorder/64B/vs-ring | ratio | ≥ 0.4 | whole recorder, one trigger filter, against the bare ring
        recorder/inserters/2-vs-1 | ratio | ≥ 1.8 | two inserters, no reader, against one
        capture/dpdk/net-null-vs-bare | ratio | ≥ 0.6 | DPDK's made-up packets into the ring, against freeing them
        ",
    ),
    (
        Quick,
        filter::judged,
        "
        ring/cold-scan/vs-length-walk | ratio | ≥ 4 | cold scan, against following lengths
        ring/cold-scan/ns | ns | ≤ 20 | cold scan, ns a packet
        filter/single/vs-libpcap | ratio | ≥ 3.5 | five filters, packets in cache, against libpcap
        filter/single/vs-handwritten-time | ratio | ≤ 1.4 | their time, of the time by hand
        filter/100-hosts/vs-libpcap | ratio | ≥ 25 | 100 or-ed hosts, against libpcap
        filter/10k-flows/vs-one-time | ratio | ≤ 2 | 10,000 flow rules, packets in the ring, of the time of one filter
        filter/10k-mixed/vs-one-time | ratio | ≤ 3 | 10,000 hosts, nets and ports, of the time of one filter
        filter/cold/vs-libpcap-walk | ratio | ≥ 4 | one filter, packets in the ring, against libpcap following lengths
        filter/install-10k-ms | ms | ≤ 50 | 10,000 texts of flow rules until they match, ms
        filter/lua/vs-libpcap-time | ratio | ≤ 0.6 | a port in Lua, of the time of libpcap
        ",
    ),
    (
        Quick,
        bucket_change::judged,
        "ring/bucket-change-us | us | ≤ 5 | a producer's change of buckets, 65,535 full ones and 1,000 reservations, µs",
    ),
    (Full, limits::rows, "limits/{l}/{c}t | GB/s | – |\nlimits/{l}/{c}B | Mpps | – |"),
    (Full, ablation::rows, "ablation/{l} | Mpps | – |"),
    (Full, queues::guard, "guard/{l}/{c} | Mpps | – |"),
    (
        Full,
        queues::buckets,
        "bucket/{c}MiB/{l}B | Mpps | – |\nbucket-qq2016/{c}MiB/{l}B | Mpps | – |",
    ),
    (Full, outer::rows, "outer/{l}/{c}t | Mops/s | – |"),
    (
        Full,
        latency::rows,
        "
        latency/{l}/stolen | ms | – |
        latency/saturated/{c} | us | – |
        latency/{l}/p99 | us | ≤ 500 |
        latency/{l}/{c} | us | – |
        latency/two-buckets | us | – |
        ",
    ),
    (
        Full,
        filter::rows,
        "
        filter-ns/{l}/{c} | ns | – |
        filter-compile/{l}/{c} | us | – |
        filter-together/{l}/{c} | ns | – |
        filter-rules/{l}/{c} | ns | – |
        ",
    ),
    (Full, queues::rows, "queue/{l}/{c}B/{t}/{use} | Mpps | – |"),
    (
        Capture,
        capture::judged,
        "
        capture/64B/cpu-vs-keeping | ratio | ≤ 0.4 | 64 B, against a tcpdump that keeps packets too
        capture/1514B/cpu-vs-keeping | ratio | ≤ 0.4 | 1514 B, against a tcpdump that keeps packets too
        capture/64B/cpu-vs-tcpdump | ratio | – | 64 B, against `tcpdump -w /dev/null`
        capture/1514B/cpu-vs-tcpdump | ratio | – | 1514 B, against `tcpdump -w /dev/null`
        capture/64B/cpu-vs-minimal | ratio | ≤ 1.6 | 64 B, against a reader that only copies
        capture/1514B/cpu-vs-minimal | ratio | ≤ 0.8 | 1514 B, against a reader that only copies
        capture/{c}B/{l}-ns | ns | – |
        capture/{c}B/one-cpu/{l}-ns | ns | – |
        ",
    ),
    (Capture, capture::lossless, "capture/lossless/{c}B/{l} | Mpps | – |"),
];

/// Tables by line and column: the name of the block, what stands above the lines, the heading of a column, and [`Cells`].
pub const TABLES: &str = include_str!("tables.txt");

/// Figures: the name of block and file, its panels, the label below, the title, [`Cells`], and rows that are drawn as a limit, with a
/// factor to the unit of the last panel. A panel is `bars`, `linear`, `log`, or `bits`: Mpps as Gbit/s of packets of as many bytes as the column
/// says.
pub const FIGURES: &str = include_str!("figures.txt");

/// Patterns of names, each with the words for a line: `{}` in them is what `{l}` stands for. `{most}` is the topology with the most
/// pairs.
pub type Cells = Vec<(String, String)>;

/// Words for what stands in names, in the order in which lines and columns stand in tables. What has no words stands for itself,
/// behind these, numbers by their size.
const WORDS: &str = include_str!("words.txt");

/// Rows that are measured together.
#[derive(Debug)]
pub struct Group {
    /// By which command.
    pub command: Command,
    /// Measures those that are wanted, and writes them.
    pub run: Run,
    /// What it writes.
    pub rows: Vec<Listed>,
}

/// A row, or a family of them.
#[derive(Debug)]
pub struct Listed {
    /// The name; words in braces stand for a part of it.
    pub name: &'static str,
    /// Of the value.
    pub unit: &'static str,
    /// `≥ 3.5`, `≤ 50`, or `–`: shown for comparison.
    pub goal: &'static str,
    /// What the table of judged rows says of it; empty: it does not stand there.
    pub case: &'static str,
}

impl Listed {
    /// The parts of the name before the first one that differs within a family.
    #[must_use]
    pub fn stem(&self) -> &str {
        match self.name.split_once('{') {
            Some((before, _)) => before.rsplit_once('/').map_or("", |(stem, _)| stem),
            None => self.name,
        }
    }

    /// Whether a value is good enough; `None` without a goal.
    #[must_use]
    pub fn is_met(&self, value: f64) -> Option<bool> {
        let (sign, bound) = self.goal.split_once(' ')?;
        let bound: f64 = bound.parse().ok()?;
        Some(if sign == "≥" {
            value >= bound
        } else {
            value <= bound
        })
    }
}

/// All groups, in the order in which they are measured.
pub static GROUPS: LazyLock<Vec<Group>> = LazyLock::new(|| {
    let row = |fields: Vec<&'static str>| Listed {
        name: fields[0],
        unit: fields[1],
        goal: fields[2],
        case: fields[3],
    };
    let group = |(command, run, rows): &(Command, Run, &'static str)| Group {
        command: *command,
        run: *run,
        rows: table(rows).map(row).collect(),
    };
    LIST.iter().map(group).collect()
});

/// The fields of each line of one of the lists above.
pub fn table(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.split('|').map(str::trim).collect())
}

/// The row of this name, or the family that it is of.
#[must_use]
pub fn find(name: &str) -> Option<&'static Listed> {
    let mut rows = GROUPS.iter().flat_map(|group| &group.rows);
    rows.find(|row| parts(row.name, name).is_some())
}

/// What `{l}` and `{c}` stand for in a name that fits the pattern; nothing where the pattern has none. Other words in braces stand
/// for anything. A column with a unit behind it is a number.
#[must_use]
pub fn parts<'n>(pattern: &str, name: &'n str) -> Option<(&'n str, &'n str)> {
    let (mut line, mut column) = ("", "");
    let mut names = name.split('/');
    for part in pattern.split('/') {
        let name = names.next()?;
        let hole = part
            .split_once('{')
            .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
        let Some((before, (hole, after))) = hole else {
            if part == name {
                continue;
            }
            return None;
        };
        let found = name.strip_prefix(before)?.strip_suffix(after)?;
        match hole {
            "l" => line = found,
            "c" if after.is_empty() || found.parse::<u32>().is_ok() => column = found,
            "c" => return None,
            _ => {}
        }
    }
    names.next().is_none().then_some((line, column))
}

/// The words for a part of a name, and where it stands in lines and columns.
#[must_use]
pub fn words(part: &str) -> (usize, u32, &str) {
    let mut known = WORDS
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .enumerate();
    match known.find(|(_, (of, _))| *of == part) {
        Some((place, (_, words))) => (place, 0, words),
        None => (usize::MAX, part.parse().unwrap_or_default(), part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let well = "queue/{l}/{c}B/1p1c/well";
        assert_eq!(
            parts(well, "queue/rtrb/64B/1p1c/well"),
            Some(("rtrb", "64"))
        );
        assert_eq!(parts(well, "queue/rtrb/64/1p1c/well"), None);
        assert_eq!(parts("limits/{l}/{c}t", "limits/raw-insert/vs-nt"), None);
        assert_eq!(parts("ablation/{l}", "ablation/1-a"), Some(("1-a", "")));
        assert_eq!(parts("ablation/{l}", "ablation/1-a/b"), None);
        let unit = |name| find(name).map(|row| row.unit);
        assert_eq!(unit("capture/64B/one-cpu/keeping-ns"), Some("ns"));
        assert_eq!(unit("limits/raw-insert/64B"), Some("Mpps"));
        assert_eq!(unit("latency/idle/stolen"), Some("ms"));
        assert_eq!(unit("ring/64B/1p1c/vs-nt-fill"), None);
        let stem = find("capture/lossless/64B/sender").map(Listed::stem);
        assert_eq!(stem, Some("capture/lossless"));
    }

    #[test]
    fn goals_bound_from_below_and_above() {
        let met = |name, value| find(name).unwrap().is_met(value);
        assert_eq!(met("ring/64B/1p1c/vs-qq2016", 3.5), Some(true));
        assert_eq!(met("ring/64B/1p1c/vs-qq2016", 3.4), Some(false));
        assert_eq!(met("ring/latency/idle-cpu", 2.1), Some(false));
        assert_eq!(met("ring/60B/1p1c/vs-qq2016", 1.0), None);
        let rows = GROUPS.iter().flat_map(|group| &group.rows);
        for row in rows.filter(|row| row.goal != "–") {
            assert!(row.is_met(1.0).is_some(), "{row:?}");
        }
    }
}
