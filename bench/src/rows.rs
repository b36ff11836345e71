//! The list of all rows: name, unit and goal of each row, its function, and the table that shows
//! the row.
//!
//! `make bench-quick` measures the groups of [`Command::Quick`], `make bench` also the groups of
//! [`Command::Full`], `make bench-capture` the groups of [`Command::Capture`], and `make
//! bench-shed` those of [`Command::Shed`]. A judged row is in the table of its command (`judged`,
//! `capture-judged`, `shed-judged`) with its goal. Most other rows are families: `{l}` and `{c}` in
//! a name are placeholders, which `TABLES` and `FIGURES` of docs/dev/benchmarks.md arrange in lines
//! and columns. The lists are text with one line for each item. Fields have `|` between them; in
//! `WORDS` a ` = ` separates the two fields.
//!
//! A ratio is only as good as its denominator, so the `limits/…/vs-…` rows are measured in the same
//! turns. If a denominator misses its goal, each ratio over that denominator has a remark. A
//! selected row of 64 B and 1P1C also writes the row of its denominator.

use std::{io, sync::LazyLock};

use crate::{
    bucket_change, capture, cycles, filter, flow, latency, limits, queues, recorder, ring,
    session::Session, thesis,
};

/// The make target to which a group belongs. `make bench` also measures the groups of
/// [`Command::Quick`]. `make papers` measures all groups, but those on live traffic only as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `make bench-quick`: the judged rows, except the rows on live traffic.
    Quick,
    /// `make bench`: rows that are not judged, for example the evaluation of the thesis.
    Full,
    /// `make bench-capture`: programs on live traffic.
    Capture,
    /// `make bench-shed`: load shedding on live traffic.
    Shed,
}
use Command::{Capture, Full, Quick, Shed};

/// Measures the selected rows of a group, and writes them to the results.
pub(crate) type MeasureFn = fn(&Session) -> io::Result<()>;

/// Groups of rows by name, in the order of measurement, each with its command and its function.
pub(crate) const MEASURES: [(&str, Command, MeasureFn); 24] = [
    ("size", Quick, ring::retention),
    ("idle", Quick, latency::judged),
    ("queues", Quick, queues::judged),
    ("recorder", Quick, recorder::judged),
    ("analyzers", Quick, recorder::analyzers::rows),
    ("filters", Quick, filter::judged),
    ("flows", Quick, flow::judged),
    ("buckets", Quick, bucket_change::judged),
    ("limits", Full, limits::rows),
    ("latency", Full, latency::rows),
    ("cycles", Full, cycles::rows),
    ("processing", Full, recorder::processing::rows),
    ("hits", Full, recorder::hits::rows),
    ("dumps", Full, recorder::dump_rate::rows),
    ("filter-tables", Full, filter::rows),
    ("queue-tables", Full, queues::rows),
    ("thesis", Full, thesis::rows),
    ("lfn", Full, flow::lfn::errors),
    ("misses", Full, flow::misses::rows),
    ("capture", Capture, capture::judged),
    ("overload", Capture, capture::overload::rows),
    ("lossless", Capture, capture::overload::lossless::rows),
    ("stamps", Capture, capture::overload::stamps::rows),
    ("shed", Shed, capture::shed::judged),
];

/// Rows, and families of rows: a line each, with the fields of [`Listed`].
const ROWS: &str = include_str!("rows.txt");

/// Tables by line and column. The fields are the name of the block, the heading of the lines, the
/// heading of the columns, and the cells. Cells are patterns of names, each with a label for the
/// line, in which `{}` is replaced by the label of `{l}`.
pub(crate) const TABLES: &str = include_str!("tables.txt");

/// Figures. The fields are the name of block and file, the unit of its rows, the axis label, the
/// title, and cells as in [`TABLES`].
pub(crate) const FIGURES: &str = include_str!("figures.txt");

/// Labels for parts of names and for facts of the machine, in the order of lines and columns in
/// tables. A part without a label is its own label and follows the labeled parts; numbers are
/// sorted by size.
const WORDS: &str = include_str!("words.txt");

/// A row, or a family of rows.
#[derive(Debug)]
pub(crate) struct Listed {
    /// The group. The rows of a group are measured together.
    pub(crate) group: &'static str,
    /// The name. Words in braces are placeholders.
    pub(crate) name: &'static str,
    /// Unit of the value.
    pub(crate) unit: &'static str,
    /// The goal, for example `≥ 3.5` or `≤ 50`. `–`: no goal, the row is only shown.
    pub(crate) goal: &'static str,
    /// The row's description in the table of judged rows. Empty: the row is not in that table.
    pub(crate) case: &'static str,
}

impl Listed {
    /// The parts of the name before the first placeholder.
    pub(crate) fn stem(&self) -> &str {
        match self.name.split_once('{') {
            Some((before, _)) => before.rsplit_once('/').map_or("", |(stem, _)| stem),
            None => self.name,
        }
    }

    /// Whether a value meets the goal; `None` without a goal.
    pub(crate) fn is_met(&self, value: f64) -> Option<bool> {
        let (sign, bound) = self.goal.split_once(' ')?;
        let bound: f64 = bound.parse().ok()?;
        Some(if sign == "≥" {
            value >= bound
        } else {
            value <= bound
        })
    }
}

/// All rows and families.
pub(crate) static LIST: LazyLock<Vec<Listed>> = LazyLock::new(|| {
    let row = |fields: Vec<&'static str>| Listed {
        group: fields[0],
        name: fields[1],
        unit: fields[2],
        goal: fields[3],
        case: fields[4],
    };
    table(ROWS).map(row).collect()
});

/// The rows of a command.
pub(crate) fn of(command: Command) -> impl Iterator<Item = &'static Listed> {
    let is_of = move |row: &&Listed| {
        MEASURES
            .iter()
            .any(|(group, of, _)| *group == row.group && *of == command)
    };
    LIST.iter().filter(is_of)
}

/// The fields of each line of a list with `|` between fields.
pub(crate) fn table(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.split('|').map(str::trim).collect())
}

/// The row with this name, or its family.
pub(crate) fn find(name: &str) -> Option<&'static Listed> {
    LIST.iter().find(|row| parts(row.name, name).is_some())
}

/// The values of `{l}` and `{c}` in a name that matches the pattern; empty if the pattern has no
/// such placeholder. Other words in braces match anything. A column that is followed by a unit must
/// be a number.
pub(crate) fn parts<'n>(pattern: &str, name: &'n str) -> Option<(&'n str, &'n str)> {
    let (mut line, mut column) = ("", "");
    let mut names = name.split('/');
    for part in pattern.split('/') {
        let name = names.next()?;
        let Some((before, (hole, after))) = part
            .split_once('{')
            .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
        else {
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

/// The position of a part of a name in lines and columns (its place in the list, then its number),
/// and its label. An empty part, of a pattern without a placeholder, is first.
pub(crate) fn words(part: &str) -> (usize, u32, &str) {
    if part.is_empty() {
        return (0, 0, part);
    }
    let known = WORDS.lines().filter_map(|line| line.split_once(" = "));
    match known.zip(0..).find(|((of, _), _)| *of == part) {
        Some(((_, words), place)) => (place, 0, words),
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
        assert_eq!(parts("limits/{l}", "limits/read"), Some(("read", "")));
        assert_eq!(parts("limits/{l}", "limits/read/1t"), None);
        let unit = |name| find(name).map(|row| row.unit);
        assert_eq!(unit("capture/64B/one-cpu/keeping-ns"), Some("ns"));
        assert_eq!(unit("limits/raw-insert/64B"), Some("Mpps"));
        assert_eq!(unit("latency/idle/p99"), Some("us"));
        assert_eq!(unit("ring/64B/1p1c/vs-nt"), None);
        let stem = find("filter-together/8/joint").map(Listed::stem);
        assert_eq!(stem, Some("filter-together"));
    }

    #[test]
    fn goals_bound_from_below_and_above() {
        let met = |name, value| find(name).unwrap().is_met(value);
        assert_eq!(met("ring/64B/1p1c/vs-qq2016", 3.5), Some(true));
        assert_eq!(met("ring/64B/1p1c/vs-qq2016", 3.4), Some(false));
        assert_eq!(met("ring/latency/idle-cpu", 2.1), Some(false));
        assert_eq!(met("ring/60B/1p1c/vs-qq2016", 1.0), None);
        for row in LIST.iter().filter(|row| row.goal != "–") {
            assert!(row.is_met(1.0).is_some(), "{row:?}");
        }
    }
}
