//! The tables of `docs/benchmarks.md`, made from rows, so that every number there is one that a run measured.
//!
//! The document is written by hand, but for blocks between two markers:
//!
//! ```text
//! <!-- generated: limits -->
//! …
//! <!-- end -->
//! ```
//!
//! [`update`] replaces what is between them. `blocks.rs` knows which names there are; `figure NAME` is one for each
//! [`Figure`]. Where no row of a block ran, the block says "not run": a partial run leaves no number of
//! another run behind. The two [parts](Part) of the document come from runs of their own, and so do the sections that begin with
//! `<!-- processor: AMD -->`: their blocks are of a run on a processor with that word in its name.

pub(crate) mod blocks;
mod capture;
mod filters;
mod inside;
mod judged;
pub(crate) mod names;
mod queues;
mod report;

pub use report::report;

use std::{
    cell::Cell,
    path::{Path, PathBuf},
};

use crate::{machine::Machine, plot::Figure, rows::Row};

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or folder could not be used.
    #[error("cannot {call} {}: {source}", path.display())]
    File {
        /// What was tried.
        call: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The document asks for a block that nobody makes.
    #[error("{}:{line}: there is no block '{name}'", path.display())]
    Block {
        /// The document.
        path: PathBuf,
        /// The line of the marker, from 1.
        line: usize,
        /// What stands in the marker.
        name: String,
    },
    /// Every block of the document is of another kind of processor.
    #[error("{} has no section for this processor: {processor}", path.display())]
    Section {
        /// The document.
        path: PathBuf,
        /// Its name.
        processor: String,
    },
    /// A block has no `<!-- end -->` before the next one or the end of the document.
    #[error("{}:{line}: the block '{name}' does not end", path.display())]
    Unclosed {
        /// The document.
        path: PathBuf,
        /// The line of the marker, from 1.
        line: usize,
        /// What stands in the marker.
        name: String,
    },
}

/// What one command measures. A report of one part leaves the other alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `make bench` and `make bench-quick`: what one process can do with itself.
    InProcess,
    /// `make bench-capture`: programs on live traffic.
    Capture,
}

impl Part {
    /// Whether the figure belongs to it.
    pub(crate) fn has_figure(self, figure: Figure) -> bool {
        figure.is_of_capture() == (self == Self::Capture)
    }

    /// Whether the block does.
    fn has_block(self, name: &str) -> bool {
        let name = name.strip_prefix(blocks::FIGURE).unwrap_or(name);
        name.starts_with("capture") == (self == Self::Capture)
    }
}

const START: &str = "<!-- generated: ";
const START_END: &str = " -->";
/// Begins a section: what follows is of a processor with this word in its name.
const PROCESSOR: &str = "<!-- processor: ";
const END: &str = "<!-- end -->";

/// What [`update`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Updated {
    /// It filled blocks that show figures.
    pub figures: bool,
}

/// Replaces every generated block of a part of the document at `path`, where its section is of this machine's processor. Its
/// other lines stay as they are.
///
/// # Errors
/// [`ReportError`]: the document cannot be read or written, its markers are wrong, or none of its sections is of this processor; then
/// it is left as it was.
pub fn update(
    rows: &[Row],
    machine: &Machine,
    part: Part,
    path: &Path,
) -> Result<Updated, ReportError> {
    let fails = |call| {
        move |source| ReportError::File {
            call,
            path: path.to_owned(),
            source,
        }
    };
    let before = std::fs::read_to_string(path).map_err(fails("read"))?;
    let facts = || machine.facts();
    let processor = facts()
        .find(|(name, _)| *name == "cpu")
        .map_or("", |(_, fact)| fact);
    let (filled_any, figures) = (Cell::new(false), Cell::new(false));
    let after = filled(&before, path, |section, name, body| {
        if section.is_some_and(|word| !processor.contains(word)) {
            return Some(body.to_owned());
        }
        filled_any.set(true);
        if !part.has_block(name) {
            return Some(body.to_owned());
        }
        figures.set(figures.get() || name.starts_with(blocks::FIGURE));
        blocks::block(name, rows, machine)
    })?;
    if !filled_any.get() {
        return Err(ReportError::Section {
            path: path.to_owned(),
            processor: processor.to_owned(),
        });
    }
    if after != before {
        std::fs::write(path, after).map_err(fails("write"))?;
    }
    Ok(Updated {
        figures: figures.get(),
    })
}

/// `document` with each block replaced by what `make` makes of its section's processor, its name and of what stood there.
fn filled(
    document: &str,
    path: &Path,
    make: impl Fn(Option<&str>, &str, &str) -> Option<String>,
) -> Result<String, ReportError> {
    let marked = |line: &'_ str, with: &str| -> Option<String> {
        let name = line.strip_prefix(with)?.strip_suffix(START_END)?;
        Some(name.to_owned())
    };
    let mut section = None;
    let mut result = String::with_capacity(document.len());
    let mut lines = document.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        result.push_str(line);
        result.push('\n');
        section = marked(line, PROCESSOR).or(section);
        let Some(name) = marked(line, START) else {
            continue;
        };
        let (mut before, mut end) = (String::new(), None);
        for (index, line) in lines.by_ref() {
            if line == END || line.starts_with(START) {
                end = Some((index, line));
                break;
            }
            before.push_str(line);
            before.push('\n');
        }
        let body = make(section.as_deref(), &name, &before).ok_or_else(|| ReportError::Block {
            path: path.to_owned(),
            line: index + 1,
            name: name.clone(),
        })?;
        if end.is_none_or(|(_, line)| line != END) {
            return Err(ReportError::Unclosed {
                path: path.to_owned(),
                line: index + 1,
                name,
            });
        }
        result.push_str(body.trim_end());
        result.push('\n');
        result.push_str(END);
        result.push('\n');
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(document: &str) -> Result<String, ReportError> {
        filled(
            document,
            Path::new("d.md"),
            |section, name, body| match name {
                "known" => Some(format!("new{}", section.unwrap_or_default())),
                "kept" => Some(body.to_owned()),
                _ => None,
            },
        )
    }

    #[test]
    fn only_what_is_between_markers_changes() {
        let document = "a\n<!-- generated: known -->\nold\nold\n<!-- end -->\nb\n";
        let expected = "a\n<!-- generated: known -->\nnew\n<!-- end -->\nb\n";
        assert_eq!(fill(document).expect("markers are right"), expected);
        assert_eq!(fill(expected).expect("markers are right"), expected);
        let kept = "<!-- generated: kept -->\n| a |\n\n| b |\n<!-- end -->\n";
        assert_eq!(fill(kept).expect("markers are right"), kept);
    }

    #[test]
    fn every_block_and_figure_is_of_one_part() {
        for figure in Figure::ALL {
            let block = format!("{}{}", blocks::FIGURE, figure.name());
            assert_eq!(
                Part::Capture.has_figure(figure),
                Part::Capture.has_block(&block)
            );
            assert_ne!(
                Part::Capture.has_figure(figure),
                Part::InProcess.has_figure(figure)
            );
        }
    }

    #[test]
    fn wrong_markers_are_told_with_their_line() {
        let unknown = fill("a\n<!-- generated: other -->\n<!-- end -->\n");
        assert!(
            matches!(unknown, Err(ReportError::Block { line: 2, name, .. }) if name == "other")
        );
        for open in [
            "<!-- generated: known -->\nb\n",
            "<!-- generated: known -->\n<!-- generated: known -->\n<!-- end -->\n",
        ] {
            assert!(matches!(
                fill(open),
                Err(ReportError::Unclosed { line: 1, .. })
            ));
        }
    }

    #[test]
    fn a_section_is_of_its_processor() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("d.md");
        let block = |body: &str| format!("<!-- generated: machine -->\n{body}\n<!-- end -->\n");
        let figure = "<!-- generated: figure latency -->\nold\n<!-- end -->\n";
        let sections = |amd: &str, intel: &str| {
            let (amd, intel) = (block(amd), block(intel));
            format!("<!-- processor: AMD -->\n{amd}{figure}<!-- processor: Intel -->\n{intel}")
        };
        std::fs::write(&path, sections("old", "old")).expect("a folder to write to");
        let update_on = |cpu: &str| {
            let mut machine = Machine::default();
            machine.fact("cpu", Some(cpu.to_owned()));
            update(&[], &machine, Part::InProcess, &path)
        };
        let updated = update_on("Intel(R) Xeon(R)").expect("it has a section");
        assert_eq!(updated, Updated { figures: false });
        let table = "| what | is |\n|---|---|\n| processor | Intel(R) Xeon(R) |";
        let text = std::fs::read_to_string(&path).expect("it was written");
        assert_eq!(text, sections("old", table));
        let error = update_on("POWER10").expect_err("it has no section");
        assert!(
            error.to_string().ends_with("this processor: POWER10"),
            "{error}"
        );
        let updated = update_on("AMD EPYC").expect("it has a section");
        assert_eq!(updated, Updated { figures: true });
        let text = std::fs::read_to_string(&path).expect("it was written");
        assert!(text.contains("AMD EPYC") && text.contains("Xeon") && text.contains("_not run_"));
    }

    #[test]
    fn the_document_asks_for_every_block_once_on_amd_and_for_none_twice_on_intel() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md");
        let document = std::fs::read_to_string(&path).expect("docs/benchmarks.md is there");
        let machine = Machine::default();
        let asked = std::cell::RefCell::new(Vec::new());
        let made = filled(&document, &path, |section, name, _| {
            let section = section.expect("every block is in a section").to_owned();
            asked.borrow_mut().push((section, name.to_owned()));
            blocks::block(name, &[], &machine)
        });
        let made = made.expect("its markers are right");
        assert!(made.contains("not run"));
        let asked = asked.into_inner();
        let of = |section: &str| {
            let names = asked.iter().filter(|(of, _)| of == section);
            let mut names: Vec<_> = names.map(|(_, name)| name.clone()).collect();
            names.sort();
            names
        };
        let mut known = blocks::all();
        known.sort();
        assert_eq!(of("AMD"), known);
        let intel = of("Intel");
        assert!(intel.iter().all(|name| known.contains(name)));
        assert!(intel.windows(2).all(|two| two[0] != two[1]), "{intel:?}");
        assert_eq!(asked.len(), known.len() + intel.len());
    }
}
