//! From the files of a run to figures and document, in one call.

use std::path::{Path, PathBuf};

use super::{Part, ReportError, update};
use crate::{
    machine::{MACHINE, Machine},
    plot,
    rows::{self, RESULTS},
};

/// Draws the figures of a part, from the run whose `results.json` and `machine.json` are in `folder` into the same folder. Where `docs` is
/// given, fills the tables of its `benchmarks.md`, and draws them also into its folder `plots` if the document shows them.
///
/// Rows that are not in the results are left out or said to be not run. Returns the files that were written, the document
/// included.
///
/// # Errors
/// [`ReportError`]: a file cannot be read or written, or the markers of the document are wrong.
pub fn report(folder: &Path, part: Part, docs: Option<&Path>) -> Result<Vec<PathBuf>, ReportError> {
    let unreadable = |name: &str| {
        let path = folder.join(name);
        move |source| ReportError::File {
            call: "read",
            path,
            source,
        }
    };
    let rows = rows::read(&folder.join(RESULTS)).map_err(unreadable(RESULTS))?;
    let machine = Machine::read(folder).map_err(unreadable(MACHINE))?;
    let mut written = plot::write_all(&rows, part, folder)?;
    if let Some(docs) = docs {
        let document = docs.join("benchmarks.md");
        if update(&rows, &machine, part, &document)?.figures {
            written.extend(plot::write_all(&rows, part, &docs.join("plots"))?);
        }
        written.push(document);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rows::Results, tables::names::made_up};

    #[test]
    fn a_run_with_few_rows_gives_a_document_that_says_so() {
        let run = tempfile::tempdir().expect("a folder");
        let docs = tempfile::tempdir().expect("a folder");
        let mut results = Results::start(run.path()).expect("a folder to write to");
        let row = made_up("limits/nt-fill/1t", 22.5, "GB/s");
        results.add([row]).expect("a folder to write to");
        let mut machine = Machine::default();
        machine.fact("cpu", Some("a processor".to_owned()));
        machine.write(run.path()).expect("a folder to write to");
        let template = "<!-- generated: machine -->\n<!-- end -->\n\
            <!-- generated: limits -->\n<!-- end -->\n\
            <!-- generated: figure machine-limits -->\n<!-- end -->\n\
            <!-- generated: latency -->\n<!-- end -->\n";
        let document = docs.path().join("benchmarks.md");
        std::fs::write(&document, template).expect("a folder to write to");

        let written =
            report(run.path(), Part::InProcess, Some(docs.path())).expect("everything is there");
        let figure = docs.path().join("plots/machine-limits.svg");
        assert_eq!(
            written,
            [
                run.path().join("machine-limits.svg"),
                figure.clone(),
                document.clone()
            ]
        );
        assert!(figure.is_file());
        let text = std::fs::read_to_string(&document).expect("it was written");
        for part in [
            "a processor",
            "| 22.5 |",
            "](plots/machine-limits.svg)",
            "_not run_",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_folder_without_a_run_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = report(folder.path(), Part::Capture, None).expect_err("nothing ran");
        assert!(matches!(&error, ReportError::File { call: "read", .. }));
        assert!(error.to_string().contains("results.json"), "{error}");
    }
}
