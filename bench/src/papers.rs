//! Writes docs/dev/papers.md: each figure and table of the papers, and our figures for it.
//!
//! The list is `papers.txt`. A line that begins with `#` is a heading. Each other line that is not
//! empty has the fields of an [`Entry`]. The figures of a row come from runs of `make papers`
//! ([`PublishedRun`]), so that nobody copies a figure by hand.

use std::{
    cmp::Reverse,
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    machine::Facts,
    report::cell,
    rows,
    session::{Row, at, read_json},
};

/// Headings, and the fields of [`Entry`].
const PAPERS: &str = include_str!("papers.txt");

const HEAD: &str = "\
# The papers' figures and tables

<!-- bench/src/papers.txt has the entries. `UPDATE_GOLDEN=1 cargo test -p retroscope-bench papers` writes this page. -->

Retroscope follows five documents. This page lists each of their figures and tables in order: what it shows, the
paper's result, and ours. Below a figure or table, each line has one of our rows, with a column for each machine. A name
in `code font` and parentheses is a row of [Benchmarks](benchmarks.md), which says how it is measured. A row that is not
measured yet names its command, which measures this row alone with `ROWS=NAME` before it. Parentheses in a column have
the least and the greatest repetition. The papers' machines differ from ours: compare shapes and ratios, not absolute
figures.
";

/// A figure, table or section of a paper, or future work of a paper.
struct Entry {
    /// The place in the paper, for example `Figure 7.1`.
    item: &'static str,
    /// What the figure, table or section shows.
    shows: &'static str,
    /// The result in the paper.
    theirs: &'static str,
    /// Labels and names of rows, `LABEL: ROW; …`.
    ours: &'static str,
    /// Markdown: the place of our result, or why there is none.
    note: &'static str,
}

impl Entry {
    /// Labels and rows.
    fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let items = self.ours.split(';').map(str::trim);
        items.filter_map(|item| item.rsplit_once(": "))
    }

    /// The lines of the table: what the papers show, then a line for each row, with a column for
    /// each machine, then the note. Without rows, the note is on the first line.
    fn lines(&self, machines: &[Machine<'_>], has_theirs: bool) -> String {
        let Self {
            item,
            shows,
            theirs,
            note,
            ..
        } = self;
        let line = |item: &str, what: &str, theirs: &str, figures: Vec<String>| {
            let theirs = has_theirs.then(|| theirs.to_owned());
            let cells = [item.to_owned(), what.to_owned()].into_iter();
            let cells: Vec<_> = cells.chain(theirs).chain(figures).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let (item, none) = (format!("**{item}**"), || {
            vec![String::new(); machines.len()]
        });
        if self.ours.is_empty() {
            let what = format!("{shows}. *Ours:* {note}");
            return line(&item, &what, theirs, none());
        }
        let rows = self.rows().map(|(label, name)| {
            let figures = machines.iter().map(|machine| machine.cell(name));
            let mut figures: Vec<_> = figures.collect();
            if figures.iter().all(|figure| figure == NO_FIGURE) {
                figures[0] = format!("not yet: `{}`", target(name));
            }
            line("", &format!("{label} (`{name}`)"), "", figures)
        });
        let mut text = line(&item, shows, theirs, none()) + &rows.collect::<String>();
        if !note.is_empty() {
            text += &line("", &format!("*{note}*"), "", none());
        }
        text
    }
}

/// The cell of a row that a machine did not measure.
const NO_FIGURE: &str = "–";

/// Finds the figure of a row by the row's name.
type FindFigure<'a> = Box<dyn Fn(&str) -> Option<String> + 'a>;

/// A machine with figures.
struct Machine<'a> {
    /// Names the machine in the headings of columns, if there are several machines.
    letter: char,
    /// Where the figures come from.
    origin: String,
    figure: FindFigure<'a>,
}

impl Machine<'_> {
    /// The figure of a row, with its unit if the unit is Mpps.
    fn cell(&self, name: &str) -> String {
        let Some(figure) = (self.figure)(name) else {
            return NO_FIGURE.to_owned();
        };
        let (value, remark) = match figure.split_once(", ") {
            Some((value, remark)) => (value, format!(", {remark}")),
            None => (figure.as_str(), String::new()),
        };
        format!("{value}{}{remark}", gigabits(name, value))
    }
}

/// A run of `make papers` whose figures are published, as in docs/dev/papers/: only the rows that
/// the page names.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PublishedRun {
    machine: Facts,
    rows: Vec<Row>,
}

impl PublishedRun {
    /// The name of the file for the runs of this processor with this number of CPUs.
    fn file_name(&self) -> String {
        let fact = |name| self.machine.get(name).map_or("", String::as_str);
        let (model, _) = fact("cpu-model")
            .split_once(", stepping")
            .unwrap_or_default();
        let name = format!("{} {model} {} CPUs", fact("cpu"), fact("cores"));
        let words = name.split(|c: char| !c.is_ascii_alphanumeric());
        let words = words.filter(|word| !word.is_empty()).map(str::to_lowercase);
        format!("{}.json", words.collect::<Vec<_>>().join("-"))
    }
}

/// Writes the figures of a run into the folder `papers` of `docs`, instead of those of an earlier
/// run on the same kind of machine, and the page. Returns the written files.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn publish(docs: &Path, rows: &[Row], facts: &Facts) -> io::Result<[PathBuf; 2]> {
    let papers = entries();
    let names = papers.iter().flat_map(|(_, entries)| entries);
    let names: HashSet<_> = names.flat_map(Entry::rows).map(|(_, name)| name).collect();
    let rows = rows.iter().filter(|row| names.contains(row.name.as_str()));
    let run = PublishedRun {
        machine: facts.clone(),
        rows: rows.cloned().collect(),
    };
    let folder = docs.join("papers");
    fs::create_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    let path = folder.join(run.file_name());
    let text = serde_json::to_string_pretty(&run)? + "\n";
    fs::write(&path, text).map_err(|error| at(&path, &error))?;
    Ok([path, write_published(docs)?])
}

/// Writes the page from the published runs in `docs`. Returns its path.
///
/// # Errors
/// A file cannot be read or written.
fn write_published(docs: &Path) -> io::Result<PathBuf> {
    let page = docs.join("papers.md");
    fs::write(&page, published_page(docs)?).map_err(|error| at(&page, &error))?;
    Ok(page)
}

/// Headings, each with its entries.
fn entries() -> Vec<(&'static str, Vec<Entry>)> {
    let mut papers: Vec<(_, Vec<_>)> = Vec::new();
    for fields in rows::table(PAPERS) {
        match (&fields[..], papers.last_mut()) {
            (&[item, shows, theirs, ours, note], Some((_, entries))) => entries.push(Entry {
                item,
                shows,
                theirs,
                ours,
                note,
            }),
            _ => papers.push((fields[0].trim_start_matches("# "), Vec::new())),
        }
    }
    papers
}

/// The make target that measures a row.
fn target(name: &str) -> &'static str {
    let is_of = |command| rows::of(command).any(|row| rows::parts(row.name, name).is_some());
    let targets = [
        (rows::Command::Quick, "make bench-quick"),
        (rows::Command::Capture, "make bench-capture"),
        (rows::Command::Shed, "make bench-shed"),
    ];
    let target = targets.iter().find(|(command, _)| is_of(*command));
    target.map_or("make bench", |(_, target)| target)
}

/// The page.
fn page(machines: &[Machine<'_>]) -> String {
    let mut text = format!("{HEAD}\n");
    for Machine { letter, origin, .. } in machines {
        text += &match machines.len() {
            1 => format!("{origin}\n"),
            _ => format!("- **{letter}**: {origin}\n"),
        };
    }
    text += "\nA figure with † is unsteady.\n";
    for (heading, entries) in entries() {
        text += &format!("\n## {heading}\n\n");
        let has_theirs = entries.iter().any(|entry| !entry.theirs.is_empty());
        let theirs = if has_theirs { " theirs |" } else { "" };
        let columns: String = match machines {
            [_] => " ours |".to_owned(),
            several => several
                .iter()
                .map(|it| format!(" {} |", it.letter))
                .collect(),
        };
        let head = format!("| | what, and our rows |{theirs}{columns}");
        let count = head.matches('|').count() - 1;
        text += &format!("{head}\n|{}\n", "---|".repeat(count));
        for entry in entries {
            text += &entry.lines(machines, has_theirs);
        }
    }
    text
}

/// The text after the figure of a row in Mpps: the unit and, if the row is for one packet size, the
/// Gbit/s of the packets without their descriptors. Empty for rows in other units.
fn gigabits(name: &str, figure: &str) -> String {
    let unit = rows::find(name).map_or("", |row| row.unit);
    if unit != "Mpps" {
        return String::new();
    }
    let mut parts = name.split('/');
    let bytes = parts.find_map(|part| part.strip_suffix('B')?.parse::<f64>().ok());
    let median = figure.split(' ').next().unwrap_or_default();
    let Ok(median) = median.replace(',', "").parse::<f64>() else {
        // Not a number: `figure` says why there is no figure.
        return String::new();
    };
    let bits = bytes.map(|bytes| format!(", {:.0} Gbit/s", median * bytes * 8e-3));
    format!(" Mpps{}", bits.unwrap_or_default())
}

/// The page with the figures of the published runs in `docs`.
///
/// # Errors
/// A file cannot be read.
fn published_page(docs: &Path) -> io::Result<String> {
    let runs = runs(&docs.join("papers"))?;
    let machines = runs.iter().zip('A'..);
    let machines = machines.map(|(run, letter)| machine_of((&run.rows, &run.machine), letter));
    Ok(page(&machines.collect::<Vec<_>>()))
}

/// The published runs, the newest first.
fn runs(folder: &Path) -> io::Result<Vec<PublishedRun>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        paths.push(entry?.path());
    }
    paths.sort();
    let runs = paths.iter().map(|path| read_json(path));
    let mut runs = runs.collect::<io::Result<Vec<PublishedRun>>>()?;
    runs.sort_by_key(|run| Reverse(run.machine.get("date").cloned()));
    Ok(runs)
}

/// The page with the figures of a run.
pub(crate) fn page_of(rows: &[Row], facts: &Facts) -> String {
    page(&[machine_of((rows, facts), 'A')])
}

fn machine_of<'a>((rows, facts): (&'a [Row], &'a Facts), letter: char) -> Machine<'a> {
    let fact = |name| facts.get(name).map_or("unknown", String::as_str);
    let remark = facts.get("remark").map(|remark| format!(" {remark}."));
    let origin = format!(
        "`{}`: {}, {}, {} CPUs, commit {}, {}.{}",
        fact("command"),
        fact("cpu"),
        fact("cpu-model"),
        fact("cores"),
        fact("commit"),
        fact("date"),
        remark.unwrap_or_default(),
    );
    let is_quick = facts.contains_key("quick");
    let figure = move |name: &str| {
        let row = rows.iter().find(|row| row.name == name)?;
        let figure = cell(Some(row));
        Some(match row.value {
            Some(_) if is_quick => format!("{figure} *quick*"),
            _ => figure,
        })
    };
    Machine {
        letter,
        origin,
        figure: Box::new(figure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures and tables of the papers by heading, as counted in the papers.
    const NUMBERS: [(&str, &str); 5] = [
        (
            "QQ thesis (Pudelko, 2016)",
            "Table 2.1, Figure 2.1, Figure 2.2, Table 3.1, Figure 4.1, Table 4.1, Figure 5.1, Figure 5.2, Figure 6.1, \
             Table 6.1, Figure 6.2, Table 7.1, Table 7.2, Table 7.3, Figure 7.1, Figure 7.2, Figure 7.3, Figure 7.4, \
             Figure 7.5, Figure 7.6, Table 7.4",
        ),
        (
            "Slides of the thesis (2016)",
            "Table 1, Figure 1, Figure 2, Figure 3, Figure 4, Figure 5, Table 2",
        ),
        (
            "FlowScope (Emmerich et al., 2017)",
            "Figure 1, Figure 2, Figure 3, Figure 4, Table I, Figure 5, Figure 6, Table II, Figure 7",
        ),
        (
            "Survey (García-Dorado et al., 2013)",
            "Figure 1, Figure 2, Figure 3, Figure 4, Figure 5, Figure 6, Table 1, Figure 7, Figure 8, Figure 9, \
             Figure 10, Figure 11",
        ),
        (
            "R-Scope (Ros-Giralt et al., 2018)",
            "Figure 1, Figure 2, Figure 3, Table 1, Table 2, Table 3, Figure 4, Figure 5, Figure 6, Figure 7, Figure 8, \
             Figure 9, Figure 10, Table 4, Figure 11, Figure 12, Table 5",
        ),
    ];

    #[test]
    fn every_figure_and_table_has_an_entry_in_the_order_of_its_paper() {
        let papers = entries();
        for (heading, numbers) in NUMBERS {
            let paper = papers.iter().find(|(paper, _)| *paper == heading);
            let entries = &paper.expect("a heading of the list").1;
            let items = entries.iter().map(|entry| entry.item);
            let items = items.filter(|item| !item.starts_with("Section"));
            let numbers: Vec<_> = numbers.split(", ").collect();
            assert_eq!(items.collect::<Vec<_>>(), numbers, "{heading}");
        }
        assert_eq!(papers.len(), NUMBERS.len() + 1, "and future work");
    }

    #[test]
    fn every_entry_names_rows_that_exist_or_says_why_not() {
        for (heading, entries) in entries() {
            for entry in entries {
                let what = format!("{heading}, {}", entry.item);
                let items = entry.ours.split(';').filter(|item| !item.trim().is_empty());
                assert_eq!(entry.rows().count(), items.count(), "{what}");
                assert!(!entry.ours.is_empty() || !entry.note.is_empty(), "{what}");
                for (_, name) in entry.rows() {
                    assert!(rows::find(name).is_some(), "{what}: {name}");
                }
            }
        }
    }

    #[test]
    fn rates_are_also_bits() {
        let name = "queue/ring/1514B/1p1c/well";
        assert_eq!(gigabits(name, "16.9 (16.9–17.1)"), " Mpps, 205 Gbit/s");
        assert_eq!(gigabits(name, "did not run"), "");
    }

    #[test]
    fn a_brief_run_is_marked() {
        let name = "ring/bytes-per-64B";
        let row = Row::new(name, None, Ok(crate::measure::Spread::once(80.2)));
        let mut facts = Facts::from([("command".to_owned(), "make papers".to_owned())]);
        let line = |facts: &Facts| page_of(std::slice::from_ref(&row), facts);
        assert!(line(&facts).contains(&format!("(`{name}`) |  | 80.2 |")));
        facts.insert("quick".to_owned(), "yes".to_owned());
        assert!(line(&facts).contains(&format!("(`{name}`) |  | 80.2 *quick* |")));
    }

    #[test]
    fn figures_of_several_machines_stand_side_by_side() {
        let docs = tempfile::tempdir().unwrap();
        let name = "ring/bytes-per-64B";
        let row = |value| Row::new(name, None, Ok(crate::measure::Spread::once(value)));
        let other = Row::new(
            "limits/read/64B",
            None,
            Ok(crate::measure::Spread::once(1.0)),
        );
        let facts = |cores: &str, date: &str| {
            let facts = [
                ("cpu", "two"),
                ("cores", cores),
                ("date", date),
                ("cpu-model", "family 1, stepping 2"),
            ];
            facts
                .map(|(name, fact)| (name.to_owned(), fact.to_owned()))
                .into()
        };
        let days = ["2026-01-01", "2026-01-03", "2026-01-02"];
        for ((value, cores), date) in [(81.0, "2"), (82.0, "4"), (83.0, "2")]
            .into_iter()
            .zip(days)
        {
            let rows = [row(value), other.clone()];
            publish(docs.path(), &rows, &facts(cores, date)).unwrap();
        }
        let page = fs::read_to_string(docs.path().join("papers.md")).unwrap();
        assert!(
            page.contains(&format!("(`{name}`) |  | 82.0 | 83.0 |")),
            "{page}"
        );
        let run = fs::read_to_string(docs.path().join("papers/two-family-1-2-cpus.json")).unwrap();
        assert!(run.contains(name) && !run.contains("limits/read"), "{run}");
    }

    /// `UPDATE_GOLDEN=1` writes the page.
    #[test]
    fn the_page_is_as_its_list_and_the_published_runs() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dev");
        let (page, path) = (published_page(&folder).unwrap(), folder.join("papers.md"));
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            write_published(&folder).expect("a writable folder");
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page,
            "docs/dev/papers.md is old: UPDATE_GOLDEN=1 writes it"
        );
    }
}
