//! Every row of the reference table, through the functions that the program calls.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::Path,
};

use super::*;

/// How many packets match; the text of the error if the expression is refused.
fn count(path: &Path, expression: &str, out: &Path) -> Result<u64, String> {
    let filter = Filter::plain(expression).map_err(|error| error.render())?;
    let input = Input::open(path).expect("the capture is there");
    let output = Output::new(Target::File(out.to_owned()), Sink::Count);
    match search_input(input.file, filter, output) {
        Ok(_) => {
            let text = fs::read_to_string(out).expect("the count was written");
            Ok(text.trim_end().parse().expect("the count is a number"))
        }
        Err(SearchError::Refused(error)) => Err(error.render()),
        Err(SearchError::Output(error)) => panic!("{error:#}"),
    }
}

#[test]
fn every_row_of_filters_expected_agrees() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let Ok(table) = fs::read_to_string(shared.join("filters-expected.tsv")) else {
        // Around the test harness, which keeps what passing tests print.
        let _ = writeln!(
            io::stderr(),
            "SKIP: {} has no filters-expected.tsv; nothing was tested",
            shared.display()
        );
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("count");
    let mut wrong = Vec::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for line in table.lines().skip(1) {
        let [trace, expression, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("three columns: {line:?}");
        };
        let got = count(&shared.join(trace), expression, &out);
        let (kind, agrees) = match expected {
            "error" => ("error", got.is_err()),
            "rejects-all" => ("rejects-all", matches!(got, Ok(0) | Err(_))),
            number => ("number", got.as_ref().ok() == number.parse().ok().as_ref()),
        };
        *kinds.entry(kind).or_default() += 1;
        if !agrees {
            wrong.push(format!(
                "{trace}\t{expression}\texpected {expected}, got {got:?}"
            ));
        }
    }
    assert!(
        kinds.get("number") > Some(&5000) && kinds.get("error") > Some(&100),
        "the table is too small: {kinds:?}"
    );
    assert!(
        wrong.is_empty(),
        "{} rows disagree:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
