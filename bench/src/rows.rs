//! The one list of rows: what each is called, its unit, what is good enough, who measures it and where it is shown.
//!
//! `make bench-quick` measures the groups of [`Command::Quick`], `make bench` those of [`Command::Full`] too, `make bench-capture`
//! those of [`Command::Capture`]. A judged row stands in the table of its command (`judged`, `capture-judged`) with its goal. The
//! others are families: `{l}` and `{c}` in a name stand for something, which `TABLES` and `FIGURES` of docs/dev/benchmarks.md put in
//! lines and columns. All lists are text with `|` between fields, a line for each thing.
//!
//! A ratio says little without a sound denominator, so the `limits/…/vs-…` rows are measured in the
//! same turns. If one misses its goal, each ratio over that denominator has a remark. A selection
//! of rows brings the rows of its denominators with it.

use std::{io, sync::LazyLock};

use crate::{
    bucket_change, capture, filter, flow, latency, limits, queues, recorder, ring, session::Session,
};

/// What measures a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `make bench-quick`: the rows that ring, filters and flows are judged by.
    Quick,
    /// `make bench`: the evaluation of the thesis too, reproduced and extended.
    Full,
    /// `make bench-capture`: programs on live traffic.
    Capture,
}
use Command::{Capture, Full, Quick};

/// Measures the wanted rows of a group, and writes them.
pub(crate) type MeasureFn = fn(&Session) -> io::Result<()>;

/// Groups of rows by name: the command, and who measures. In the order in which they are measured.
pub(crate) const MEASURES: [(&str, Command, MeasureFn); 15] = [
    ("size", Quick, ring::retention),
    ("idle", Quick, latency::judged),
    ("queues", Quick, queues::judged),
    ("recorder", Quick, recorder::judged),
    ("filters", Quick, filter::judged),
    ("flows", Quick, flow::judged),
    ("buckets", Quick, bucket_change::judged),
    ("limits", Full, limits::rows),
    ("latency", Full, latency::rows),
    ("hits", Full, recorder::hits::rows),
    ("filter-tables", Full, filter::rows),
    ("queue-tables", Full, queues::rows),
    ("lfn", Full, flow::lfn::errors),
    ("misses", Full, flow::misses::rows),
    ("capture", Capture, capture::judged),
];

/// Rows, and families of them: the group, and the fields of [`Listed`].
const ROWS: &str = include_str!("rows.txt");

/// Tables by line and column: the name of the block, what stands above the lines, the heading of a column, and cells: patterns of names, each
/// with the words for a line, in which `{}` is what `{l}` stands for.
pub(crate) const TABLES: &str = include_str!("tables.txt");

/// Figures: the name of block and file, the unit of its rows, the label below, the title, and cells as above.
pub(crate) const FIGURES: &str = include_str!("figures.txt");

/// Words for what stands in names, in the order in which lines and columns stand in tables. What has no words stands for itself,
/// behind these, numbers by their size.
const WORDS: &str = include_str!("words.txt");

/// A row, or a family of them.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Those of a group are measured together.
    pub(crate) group: &'static str,
    /// The name; words in braces stand for a part of it.
    pub(crate) name: &'static str,
    /// Of the value.
    pub(crate) unit: &'static str,
    /// `≥ 3.5`, `≤ 50`, or `–`: shown for comparison.
    pub(crate) goal: &'static str,
    /// What the table of judged rows says of it; empty: it does not stand there.
    pub(crate) case: &'static str,
}

impl Listed {
    /// The parts of the name before the first one that differs within a family.
    pub(crate) fn stem(&self) -> &str {
        match self.name.split_once('{') {
            Some((before, _)) => before.rsplit_once('/').map_or("", |(stem, _)| stem),
            None => self.name,
        }
    }

    /// Whether a value is good enough; `None` without a goal.
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

/// Those of a command.
pub(crate) fn of(command: Command) -> impl Iterator<Item = &'static Listed> {
    let is_of = move |row: &&Listed| {
        MEASURES
            .iter()
            .any(|(group, of, _)| *group == row.group && *of == command)
    };
    LIST.iter().filter(is_of)
}

/// The fields of each line of one of the lists above.
pub(crate) fn table(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.split('|').map(str::trim).collect())
}

/// The row of this name, or the family that it is of.
pub(crate) fn find(name: &str) -> Option<&'static Listed> {
    LIST.iter().find(|row| parts(row.name, name).is_some())
}

/// What `{l}` and `{c}` stand for in a name that fits the pattern; nothing where the pattern has none. Other words in braces stand
/// for anything. A column with a unit behind it is a number.
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

/// The words for a part of a name, and where it stands in lines and columns.
pub(crate) fn words(part: &str) -> (usize, u32, &str) {
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
