//! Turns the rows of a run into the tables of `docs/dev/benchmarks.md`, so that nobody copies a
//! number into these tables by hand.
//!
//! The document is handwritten, except blocks between `<!-- generated: NAME -->` and `<!-- end
//! -->`, which are replaced. Most blocks are tables by line and column (`rows::TABLES`) or show a
//! figure (`figure NAME`, `rows::FIGURES`). If no row of a replaced block ran, the block says "not
//! run", so that it keeps no number of an earlier run. Blocks and figures whose names begin with
//! `capture` have results of `make bench-capture`, and with `shed` of `make bench-shed`; the other
//! blocks come from `make bench`. Blocks after `<!-- processor: AMD -->`, up to the next such
//! marker, belong to a run on a processor with that word in its name.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    machine::{self, Facts},
    measure::SPREAD_MAX,
    papers, plot,
    rows::{self, Command, words},
    session::{self, Row, at},
};

const NOT_RUN: &str = "not run";
/// Ends a block.
const END: &str = "<!-- end -->\n";
/// Marks a figure with an unsteady spread.
const UNSTEADY: &str = "†";
/// Rows by line and column.
#[derive(Debug)]
pub(crate) struct Grid<'r> {
    /// Labels of the lines, and the row in each column.
    pub(crate) lines: Vec<(String, Vec<Option<&'r Row>>)>,
    /// Columns, as in the names of rows.
    pub(crate) columns: Vec<&'r str>,
}

impl<'r> Grid<'r> {
    /// `cells`: patterns and labels, `PATTERN = LABEL ; …`.
    pub(crate) fn new(rows: &'r [Row], cells: &str) -> Self {
        let mut found = Vec::new();
        for (number, cell) in cells.split(';').enumerate() {
            let (pattern, name) = cell.split_once(" = ").unwrap_or_default();
            for row in rows {
                if let Some((line, column)) = rows::parts(pattern.trim(), &row.name) {
                    let (place, value, line) = words(line);
                    let place = (place, value, line, number);
                    found.push((place, name.trim().replace("{}", line), column, row));
                }
            }
        }
        let mut columns: Vec<&str> = found.iter().map(|(_, _, column, _)| *column).collect();
        columns.sort_by_key(|column| words(column));
        columns.dedup();
        found.sort_by(|one, other| one.0.cmp(&other.0));
        let mut lines: Vec<(String, Vec<_>)> = Vec::new();
        for (_, name, column, row) in found {
            if lines.last().is_none_or(|(last, _)| *last != name) {
                lines.push((name, vec![None; columns.len()]));
            }
            let at = columns.iter().position(|known| *known == column);
            if let (Some(at), Some((_, cells))) = (at, lines.last_mut()) {
                cells[at] = Some(row);
            }
        }
        Self { lines, columns }
    }
}

/// Formats a figure: from 100 on an integer with commas, otherwise at most four decimals and
/// usually three significant digits.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 || size == 0.0 => 2,
        size if size >= 0.0995 => 3,
        _ => 4,
    };
    let mut text = format!("{value:.digits$}");
    let mut at = if digits == 0 { text.len() } else { 0 };
    while at > 3 && text.as_bytes()[at - 4].is_ascii_digit() {
        at -= 3;
        text.insert(at, ',');
    }
    text
}

/// The text of a row in a table: the value, its minimum and maximum repetition, if these differ in
/// writing, and the mark for an unsteady figure. Rows that are not judged also get the mark for a
/// missed goal, and the remark. Without a value, the reason.
pub(crate) fn cell(row: Option<&Row>) -> String {
    let Some(row) = row else {
        return "–".to_owned();
    };
    let Some(value) = row.value else {
        let why = row.versus.as_deref().unwrap_or("no reason given");
        return format!("did not run: {why}");
    };
    let median = number(value);
    let mut spread = match (row.min.map(number), row.max.map(number)) {
        (Some(min), Some(max)) if min != median || max != median => {
            format!("{median} ({min}–{max})")
        }
        _ => median,
    };
    if row.unsteady {
        spread = format!("{spread} {UNSTEADY}");
    }
    // Judged rows have a separate column for the verdict and the remark.
    let Some(listed) = rows::find(&row.name).filter(|listed| listed.case.is_empty()) else {
        return spread;
    };
    if listed.is_met(value) == Some(false) {
        spread += " **missed**";
    }
    match &row.remark {
        Some(remark) => format!("{spread}, {remark}"),
        None => spread,
    }
}

/// Formats a heading and lines of cells as a table.
fn table(lines: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        text += &format!("| {} |\n", line.join(" | "));
        if number == 0 {
            text += &format!("|{}\n", "---|".repeat(line.len()));
        }
    }
    text
}

fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// The Markdown of a block. `None`: no block has this name.
fn made(name: &str, rows: &[Row], machine: &Facts) -> Option<String> {
    let made = match name {
        "machine" | "capture-machine" | "shed-machine" => facts(machine),
        "judged" => judged(rows, Command::Quick),
        "capture-judged" => judged(rows, Command::Capture),
        "shed-judged" => judged(rows, Command::Shed),
        _ => match name.strip_prefix("figure ") {
            Some(name) => {
                let figure = rows::table(rows::FIGURES).find(|figure| figure[0] == name)?;
                let drawn = plot::draw(rows, &figure);
                drawn.map(|(title, _)| format!("![{title}](plots/{name}.svg)"))
            }
            None => {
                let fields = rows::table(rows::TABLES).find(|table| table[0] == name)?;
                by_line_and_column(rows, &fields)
            }
        },
    };
    let mut made = made.unwrap_or_else(|| format!("_{NOT_RUN}_"));
    if made.contains(UNSTEADY) {
        made += &legend();
    }
    Some(made)
}

/// The line below a table that explains [`UNSTEADY`].
fn legend() -> String {
    let percent = SPREAD_MAX * 100.0;
    format!(
        "\n{UNSTEADY} The least and the greatest repetition are more than {percent:.0} % of the median apart.\n"
    )
}

fn by_line_and_column(rows: &[Row], fields: &[&str]) -> Option<String> {
    let [_, corner, column, cells] = fields else {
        return None;
    };
    let grid = Grid::new(rows, cells);
    let columns = grid.columns.iter();
    let columns = columns.map(|part| column.replace("{}", words(part).2));
    let mut lines = vec![
        [(*corner).to_owned()]
            .into_iter()
            .chain(columns)
            .collect::<Vec<_>>(),
    ];
    for (label, cells) in &grid.lines {
        let cells = cells.iter().map(|row| cell(*row));
        lines.push([label.clone()].into_iter().chain(cells).collect());
    }
    (lines.len() > 1).then(|| table(&lines))
}

/// The judged rows of a command with their goals.
fn judged(rows: &[Row], command: Command) -> Option<String> {
    let listed = rows::of(command).filter(|row| !row.case.is_empty());
    let heading = ["case", "row", "against", "goal", "measured", ""];
    let (mut lines, mut has_run) = (vec![strings(heading)], false);
    for listed in listed {
        let row = rows.iter().find(|row| row.name == listed.name);
        has_run |= row.is_some();
        let measured = row.filter(|row| row.value.is_some());
        let versus = measured.and_then(|row| row.versus.as_deref());
        let value = measured.and_then(|row| row.value);
        let remark = row.and_then(|row| row.remark.as_deref());
        lines.push(strings([
            listed.case,
            &format!("`{}`", listed.name),
            versus.unwrap_or_default(),
            listed.goal,
            &row.map_or_else(|| NOT_RUN.to_owned(), |row| cell(Some(row))),
            &verdict(value.and_then(|value| listed.is_met(value)), remark),
        ]));
    }
    has_run.then(|| table(&lines))
}

/// Whether a goal is met, as text, with the remark. A figure with a remark misses its goal or is
/// not judged, because the figure may be too good.
fn verdict(is_met: Option<bool>, remark: Option<&str>) -> String {
    let verdict = match (is_met, remark) {
        (Some(true), None) => "met",
        (Some(true), Some(_)) => "not judged",
        (Some(false), _) => "**missed**",
        (None, _) => "",
    };
    let parts = [Some(verdict).filter(|verdict| !verdict.is_empty()), remark];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// The table of the facts of a machine. Facts with a label come first, in the order of the labels;
/// other facts follow under their own names.
fn facts(facts: &Facts) -> Option<String> {
    let mut facts: Vec<_> = facts.iter().collect();
    facts.sort_by_key(|(name, _)| words(name));
    let line =
        |(name, fact): &(&String, &String)| strings([words(name).2, &fact.replace('|', "\\|")]);
    let heading = [strings(["what", "is"])];
    let lines: Vec<_> = heading.into_iter().chain(facts.iter().map(line)).collect();
    (lines.len() > 1).then(|| table(&lines))
}

/// The command whose results a block or a figure has; [`Command::Full`] also for the rows of
/// [`Command::Quick`].
fn command_of(name: &str) -> Command {
    match name.split('-').next() {
        Some("capture") => Command::Capture,
        Some("shed") => Command::Shed,
        _ => Command::Full,
    }
}

/// The commit and the date of a run, for its figures.
fn origin(facts: &Facts) -> String {
    let fact = |name| facts.get(name).map_or("unknown", String::as_str);
    format!("commit {}, {}", fact("commit"), fact("date"))
}

/// Draws the figures of the run whose results are in `folder` into the same folder: those of
/// `command`. For [`Command::Full`], draws all figures, and writes `papers.md` (module `papers`).
/// If `docs` is given, also fills the blocks of its `benchmarks.md` that belong to this command and
/// this processor, and writes its `papers.md`. If these blocks show figures, draws the figures into
/// its folder `plots`. If `papers` is given, adds the figures of this run to its `papers.md`.
/// Returns the written files.
///
/// # Errors
/// A file cannot be read or written, the markers of the document are wrong, or the document has no
/// section for this processor. In the last two cases the document does not change.
pub fn report(
    folder: &Path,
    command: Command,
    (docs, papers): (Option<&Path>, Option<&Path>),
) -> io::Result<Vec<PathBuf>> {
    let (rows, machine) = (session::read(folder)?, machine::read(folder)?);
    let is_ours = |figure: &str| command_of(figure) == command;
    let is_full = command == Command::Full;
    let draw = |folder: &Path, is_drawn: &dyn Fn(&str) -> bool| {
        plot::write_all(&rows, &origin(&machine), folder, is_drawn)
    };
    let mut written = draw(folder, &|figure| is_full || is_ours(figure))?;
    if is_full {
        let page = folder.join("papers.md");
        let text = papers::page_of(&rows, &machine);
        fs::write(&page, text).map_err(|error| at(&page, &error))?;
        written.push(page);
    }
    if let Some(docs) = docs {
        let path = docs.join("benchmarks.md");
        let before = fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
        let after = filled(&before, &rows, &machine, command);
        let (after, has_figures) = after.map_err(|error| at(&path, &io::Error::other(error)))?;
        if has_figures {
            written.extend(draw(&docs.join("plots"), &is_ours)?);
        }
        fs::write(&path, after).map_err(|error| at(&path, &error))?;
        written.push(path);
    }
    if let Some(docs) = papers {
        written.extend(papers::publish(docs, &rows, &machine)?);
    }
    Ok(written)
}

/// The document with the blocks filled that belong to this command and to this machine's processor,
/// and whether figures were among these blocks.
fn filled(
    document: &str,
    rows: &[Row],
    machine: &Facts,
    command: Command,
) -> Result<(String, bool), String> {
    const PROCESSOR: &str = "<!-- processor: ";
    const BLOCK: &str = "<!-- generated: ";
    let processor = machine.get("cpu").map_or("", String::as_str);
    let (mut sections, mut is_ours, mut ours, mut has_figures) = (Vec::new(), true, 0, false);
    for section in document.split(PROCESSOR) {
        if let (false, Some((word, _))) = (sections.is_empty(), section.split_once(" -->")) {
            is_ours = processor.contains(word);
        }
        let mut blocks = section.split(BLOCK);
        let mut text = vec![blocks.next().unwrap_or_default().to_owned()];
        for block in blocks {
            let (name, rest) = block.split_once(" -->\n").unwrap_or((block, ""));
            let (old, after) = rest
                .split_once(END)
                .ok_or_else(|| format!("the block '{name}' does not end"))?;
            let made = made(name, rows, machine);
            let made = made.ok_or_else(|| format!("the block '{name}' is not known"))?;
            let figure = name.strip_prefix("figure ");
            let of_command = command_of(figure.unwrap_or(name)) == command;
            let fills = is_ours && of_command;
            ours += u32::from(is_ours);
            has_figures |= fills && figure.is_some();
            let body = if fills {
                made.trim_end()
            } else {
                old.trim_end()
            };
            text.push(format!("{name} -->\n{body}\n{END}{after}"));
        }
        sections.push(text.join(BLOCK));
    }
    match ours {
        0 => Err(format!(
            "there is no section for this processor: {processor}"
        )),
        _ => Ok((sections.join(PROCESSOR), has_figures)),
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
