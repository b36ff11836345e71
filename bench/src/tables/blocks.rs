//! Which blocks there are, and the table each becomes.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::names::{Topology, count, most_threads};
use super::{capture, filters, inside, judged, queues};
use crate::plot::{Figure, number};
use crate::{machine::Machine, rows::Row};

/// What a block or cell says whose rows are not in the results.
pub(super) const NOT_RUN: &str = "not run";

type Make = fn(&[Row], &Machine) -> Option<String>;

const TABLES: [(&str, Make); 20] = [
    ("machine", |_, machine| facts(machine)),
    ("judged", |rows, _| Some(judged::table(rows))),
    ("limits", |rows, _| queues::limits(rows)),
    ("inserts", |rows, _| queues::inserts(rows)),
    ("queues-1p1c", |rows, _| {
        queues::by_size(rows, Topology::ONE)
    }),
    ("queues-most-threads", |rows, _| {
        queues::by_size(rows, most_threads(rows)?)
    }),
    ("naive", |rows, _| queues::naive(rows)),
    ("requirements", |rows, _| queues::requirements(rows)),
    ("ablation", |rows, _| inside::ablation(rows)),
    ("bucket-sizes", |rows, _| inside::buckets(rows)),
    ("outer-queue", |rows, _| {
        inside::grid(rows, "outer/", "threads", |t| count(t, "t"))
    }),
    ("guard-distance", |rows, _| {
        inside::grid(rows, "guard/", "inner queues", |t| t.parse().ok())
    }),
    ("latency", |rows, _| inside::latency(rows)),
    ("filter-engines", |rows, _| filters::engines(rows)),
    ("filter-compile", |rows, _| filters::compile(rows)),
    ("filter-together", |rows, _| filters::together(rows)),
    ("filter-rules", |rows, _| filters::rules(rows)),
    ("capture-machine", |_, machine| facts(machine)),
    ("capture-judged", |rows, _| judged::capture(rows)),
    ("capture-lossless", |rows, _| capture::lossless(rows)),
];

pub(super) const FIGURE: &str = "figure ";

/// The names of all blocks.
#[cfg(test)]
pub(super) fn all() -> Vec<String> {
    let figures = Figure::ALL.map(|figure| format!("{FIGURE}{}", figure.name()));
    let tables = TABLES.map(|(name, _)| name.to_owned());
    tables.into_iter().chain(figures).collect()
}

/// The Markdown of block `name`; `None` when there is no such block.
pub(super) fn block(name: &str, rows: &[Row], machine: &Machine) -> Option<String> {
    let not_run = || format!("_{NOT_RUN}_");
    if let Some(name) = name.strip_prefix(FIGURE) {
        let figure = Figure::ALL
            .into_iter()
            .find(|figure| figure.name() == name)?;
        let image = || format!("![{}](plots/{name}.svg)", figure.description());
        return Some(if figure.has_rows(rows) {
            image()
        } else {
            not_run()
        });
    }
    let (_, make) = TABLES.into_iter().find(|(known, _)| *known == name)?;
    Some(make(rows, machine).unwrap_or_else(not_run))
}

/// A value with its least and greatest repetition, where they differ from it as written.
pub(super) fn spread(row: &Row, write: impl Fn(f64) -> String) -> String {
    let Some(value) = row.value else {
        return format!("did not run: {}", judged::reason(row));
    };
    let median = write(value);
    match (row.min.map(&write), row.max.map(&write)) {
        (Some(min), Some(max)) if min != median || max != median => {
            format!("{median} ({min}–{max})")
        }
        _ => median,
    }
}

/// The cell of a row that may not be there.
pub(super) fn cell(row: Option<&Row>) -> String {
    row.map_or_else(|| "–".to_owned(), |row| spread(row, number))
}

/// A table: its heading and lines of cells. `None` without lines.
pub(super) fn table(heading: &[String], lines: &[Vec<String>]) -> Option<String> {
    if lines.is_empty() {
        return None;
    }
    let mut text = String::new();
    let _ = writeln!(text, "| {} |", heading.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(heading.len()));
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    Some(text)
}

pub(super) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Facts in the order in which they are read, with the words for them; others follow under their own names.
const FACTS: [(&str, &str); 11] = [
    ("cpu", "processor"),
    ("cores", "CPUs of the run"),
    ("l1d", "first-level data cache"),
    ("l2", "second-level cache"),
    ("l3", "third-level cache"),
    ("memory", "memory"),
    ("hypervisor", "virtual machine"),
    ("kernel", "Linux"),
    ("rustc", "compiler"),
    ("commit", "commit"),
    ("date", "date"),
];

fn facts(machine: &Machine) -> Option<String> {
    let known = FACTS.iter().filter_map(|(name, label)| {
        let (_, fact) = machine.facts().find(|(of, _)| of == name)?;
        Some((*label, fact))
    });
    let others = machine
        .facts()
        .filter(|(name, _)| FACTS.iter().all(|(known, _)| known != name));
    let line = |(what, fact): (&str, &str)| vec![what.to_owned(), fact.replace('|', "\\|")];
    table(
        &words(["what", "is"]),
        &known.chain(others).map(line).collect::<Vec<_>>(),
    )
}

/// Distinct values, rising.
pub(crate) fn distinct<T: Ord>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.collect::<BTreeSet<T>>().into_iter().collect()
}

/// The Markdown of a block that is known, without facts about a machine.
#[cfg(test)]
pub(super) fn make_up(name: &str, rows: &[Row]) -> String {
    block(name, rows, &Machine::default()).expect("the block is known")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_rows_every_block_says_so() {
        for name in all() {
            assert!(make_up(&name, &[]).contains(NOT_RUN), "{name}");
        }
        assert_eq!(block("figure nothing", &[], &Machine::default()), None);
    }

    #[test]
    fn facts_have_an_order_and_words() {
        let mut machine = Machine::default();
        for (name, fact) in [("zeta", "a|b"), ("kernel", "6.1"), ("cpu", "some")] {
            machine.fact(name, Some(fact.to_owned()));
        }
        let text = block("machine", &[], &machine).expect("the block is known");
        let expected =
            "| what | is |\n|---|---|\n| processor | some |\n| Linux | 6.1 |\n| zeta | a\\|b |\n";
        assert_eq!(text, expected);
    }
}
