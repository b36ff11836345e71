use super::*;
use crate::{measure::Spread, session::RESULTS};

fn row(name: &str, value: f64) -> Row {
    Row::new(name, None, Ok(Spread::once(value)))
}

fn machine(cpu: &str) -> Facts {
    Facts::from([("cpu".to_owned(), cpu.to_owned())])
}

fn made(name: &str, rows: &[Row]) -> String {
    super::made(name, rows, &Facts::new()).expect("the block is known")
}

#[test]
fn numbers_have_three_digits_that_count() {
    let values = [
        0.0,
        0.0123,
        0.5,
        1.5,
        12.34,
        99.97,
        190.4,
        1234.0,
        -1_234_567.0,
    ];
    let expected = [
        "0.00",
        "0.0123",
        "0.500",
        "1.50",
        "12.3",
        "100",
        "190",
        "1,234",
        "-1,234,567",
    ];
    assert_eq!(values.map(number), expected);
}

#[test]
fn contestants_stand_by_size_ours_first() {
    let mut ours = row("queue/ring/64B/1p1c/well", 180.0);
    (ours.min, ours.max) = (Some(170.0), Some(190.0));
    let rows = [
        row("queue/rtrb/512B/1p1c/well", 17.0),
        row("queue/rtrb/64B/1p1c/well", 99.5),
        ours,
    ];
    let expected = "| Mpps, 1P1C | 64 B | 512 B |\n|---|---|---|\n\
        | Retroscope's ring | 180 (170–190) | – |\n| rtrb | 99.5 | 17.0 |\n";
    assert_eq!(made("queues-1p1c", &rows), expected);
    assert_eq!(made("queues-most-threads", &rows), "_not run_");
    let late = [
        row("latency/idle/p99", 501.0),
        row("latency/1kpps/p99", 500.0),
    ];
    let told = "| idle | 501 **missed** |\n| 1 k | 500 |\n";
    assert!(made("latency", &late).ends_with(told));
}

#[test]
fn met_missed_and_not_run_are_told_apart() {
    let mut failed = row("ring/64B/2p2c/vs-qq2016", 1.0);
    (failed.value, failed.versus) = (None, Some("one core".to_owned()));
    let rows = [
        row("ring/64B/1p1c/vs-qq2016", 3.5),
        row("ring/512B/1p1c/vs-qq2016", 2.4),
        failed,
    ];
    let table = made("judged", &rows);
    let line = |name: &str| {
        let mut lines = table.lines();
        lines
            .find(|line| line.contains(&format!("`{name}`")))
            .expect("a line of its own")
            .to_owned()
    };
    assert!(line("ring/64B/1p1c/vs-qq2016").ends_with("| ≥ 3.5 | 3.50 | met |"));
    assert!(line("ring/512B/1p1c/vs-qq2016").ends_with("| **missed** |"));
    assert!(line("ring/64B/2p2c/vs-qq2016").contains("| did not run: one core |"));
    assert!(line("recorder/64B/vs-ring").ends_with("| not run |  |"));
}

#[test]
fn a_remark_stands_beside_its_figure_and_an_unsteady_one_is_marked() {
    let spread = Spread {
        median: 4.0,
        min: 3.6,
        max: 4.3,
    };
    let remarked = |name: &str, value: f64| {
        let spread = Spread {
            median: value,
            ..spread
        };
        let mut row = Row::new(name, Some("qq2016"), Ok(spread));
        row.remark = Some("qq2016 is slow".to_owned());
        row
    };
    let rows = [
        remarked("ring/64B/1p1c/vs-qq2016", 4.0),
        remarked("ring/512B/1p1c/vs-qq2016", 2.4),
        remarked("ring/60B/1p1c/vs-qq2016", 2.4),
        row("ring/64B/2p2c/vs-qq2016", 4.0),
    ];
    let table = made("judged", &rows);
    for line in [
        "| qq2016 | ≥ 3.5 | 4.00 (3.60–4.30) † | not judged: qq2016 is slow |",
        "| qq2016 | ≥ 2.5 | 2.40 (3.60–4.30) † | **missed**: qq2016 is slow |",
        "| qq2016 | – | 2.40 (3.60–4.30) † | qq2016 is slow |",
        "| ≥ 3.5 | 4.00 | met |",
    ] {
        assert!(table.contains(line), "{line} in {table}");
    }
    assert!(table.ends_with("of the median apart.\n"), "{table}");
    assert!(!made("judged", &rows[3..]).contains('†'));
}

#[test]
fn only_blocks_of_the_command_and_processor_change() {
    let block =
        |name: &str, body: &str| format!("<!-- generated: {name} -->\n{body}\n<!-- end -->\n");
    let document = |amd: &str, intel: &str| {
        let (amd, intel) = (block("machine", amd), block("machine", intel));
        let others = ["capture-machine", "shed-machine"].map(|name| block(name, "kept"));
        let capture = others.concat();
        format!("a\n<!-- processor: AMD -->\n{amd}{capture}<!-- processor: Intel -->\n{intel}b\n")
    };
    let table = "| what | is |\n|---|---|\n| processor | Intel(R) Xeon(R) |";
    let fill = |document: &str, cpu| filled(document, &[], &machine(cpu), Command::Full);
    let filled = fill(&document("old", "old"), "Intel(R) Xeon(R)");
    assert_eq!(filled, Ok((document("old", table), false)));
    let error = fill(&document("old", "old"), "POWER10").expect_err("it has no section");
    assert!(error.ends_with("this processor: POWER10"), "{error}");
    let unknown = fill("a\n<!-- generated: other -->\n<!-- end -->\n", "AMD");
    assert_eq!(unknown, Err("the block 'other' is not known".to_owned()));
    for open in ["", "<!-- generated: machine -->\n<!-- end -->\n"] {
        let unclosed = fill(&format!("<!-- generated: machine -->\n{open}"), "AMD");
        assert_eq!(unclosed, Err("the block 'machine' does not end".to_owned()));
    }
}

/// Rows for each figure, with plain values.
fn rows_of_all_figures() -> Vec<Row> {
    let mut rows = Vec::new();
    for (contestant, speed) in [("ring", 180.0), ("qq2016", 48.0), ("rtrb", 100.0)] {
        for (threads, size) in [(1, 64), (1, 1514), (2, 64), (2, 1514)] {
            let value = speed * f64::from(threads) * 64.0 / f64::from(size);
            let name = format!("queue/{contestant}/{size}B/{threads}p{threads}c/well");
            rows.push(row(&name, value));
        }
    }
    for (name, value) in [
        ("limits/raw-insert/64B", 221.0),
        ("latency/idle/p99", 90.0),
        ("processing/ttl/1us", 80.0),
        ("flow/lfn/negatives/formula/5pc", 2.5),
        ("overload/af-packet/1q", 41.0),
        ("overload/af-xdp/60B", 53.0),
        ("rx-queues/slowed/2q", 33.0),
        ("shed/queue/thread/16MiB", 12.0),
        ("shed/all/400pc/events", 17.3),
        ("shed/none/400pc/connections", 39.5),
    ] {
        rows.push(row(name, value));
    }
    rows
}

#[test]
fn every_figure_is_drawn_from_its_rows_and_left_out_without() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = rows_of_all_figures();
    let written = plot::write_all(&rows, "commit 1234567", folder.path(), &|_| true);
    let written = written.expect("a folder");
    assert_eq!(written.len(), rows::table(rows::FIGURES).count());
    for path in &written {
        let file = fs::read_to_string(path).expect("it was written");
        assert!(file.starts_with("<svg ") && file.trim_end().ends_with("</svg>"));
        assert!(file.contains("<desc>commit 1234567</desc>"));
        assert!(!file.contains("NaN") && !file.contains("inf"), "{path:?}");
    }
    // A figure of another command stays. A figure without rows does not keep an old picture.
    let without = plot::write_all(&[], "", folder.path(), &|_| false).expect("a folder");
    assert!(without.is_empty() && written.iter().all(|path| path.exists()));
    let without = plot::write_all(&[], "", folder.path(), &|_| true).expect("a folder");
    assert!(without.is_empty() && written.iter().all(|path| !path.exists()));
    for fields in rows::table(rows::TABLES) {
        assert_eq!(made(fields[0], &[]), "_not run_");
    }
}

/// A run with few rows gives a document with "not run" in the other blocks.
#[test]
fn the_document_of_a_run_is_filled_with_its_figures() {
    let (run, docs) = (
        tempfile::tempdir().expect("a folder"),
        tempfile::tempdir().expect("a folder"),
    );
    let fill = row("limits/raw-insert/64B", 22.5);
    let text = serde_json::to_string(&[fill]).expect("it can be written");
    fs::write(run.path().join(RESULTS), text).expect("a folder to write to");
    machine::write(&machine("a processor"), run.path()).expect("a folder to write to");
    let document = docs.path().join("benchmarks.md");
    let blocks = ["machine", "inserts", "figure sizes-1p1c", "latency"];
    let blocks = blocks.map(|name| format!("<!-- generated: {name} -->\n<!-- end -->\n"));
    fs::write(&document, blocks.concat()).expect("a folder to write to");
    let written =
        report(run.path(), Command::Full, (Some(docs.path()), None)).expect("everything is there");
    let figures = [run.path(), &docs.path().join("plots")].map(|at| at.join("sizes-1p1c.svg"));
    let of_run = run.path().join("papers.md");
    let [figure, of_docs] = figures;
    assert_eq!(written, [figure, of_run, of_docs, document.clone()]);
    let text = fs::read_to_string(&document).expect("it was written");
    for part in [
        "a processor",
        "| 22.5 |",
        "](plots/sizes-1p1c.svg)",
        "_not run_",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let error = report(docs.path(), Command::Capture, (None, None)).expect_err("nothing ran");
    assert!(error.to_string().contains(RESULTS), "{error}");
}

/// The sections of docs/dev/benchmarks.md before the Intel marker, and the sections after the
/// marker.
fn published() -> (String, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dev/benchmarks.md");
    let document = fs::read_to_string(&path).expect("docs/dev/benchmarks.md is there");
    let intel = document.find("<!-- processor: Intel -->");
    let (amd, intel) = document.split_at(intel.expect("two sections"));
    (amd.to_owned(), intel.to_owned())
}

/// The sections before the Intel marker list every judged row, with or without a figure.
#[test]
fn the_document_has_every_judged_row() {
    let (amd, _) = published();
    for command in [Command::Quick, Command::Capture, Command::Shed] {
        for listed in rows::of(command).filter(|row| !row.case.is_empty()) {
            let line = format!("| {} | `{}` |", listed.case, listed.name);
            assert!(amd.contains(&line), "{line}");
        }
    }
}

/// A figure with `<desc>` names the same commit and date as the tables. Figures without `<desc>`,
/// from an older program, are accepted.
#[test]
fn the_figures_are_of_the_run_of_the_tables() {
    let (amd, _) = published();
    let (_, shed) = amd.split_once("generated: shed-machine").expect("a block");
    let facts = |text: &str| {
        let fact = |name: &str| {
            let (_, fact) = text.split_once(&format!("| {name} | "))?;
            let (fact, _) = fact.split_once(" |")?;
            Some((name.to_owned(), fact.to_owned()))
        };
        ["commit", "date"].into_iter().filter_map(fact).collect()
    };
    let plots = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/dev/plots");
    for fields in rows::table(rows::FIGURES) {
        let is_shed = command_of(fields[0]) == Command::Shed;
        let text = if is_shed { shed } else { &amd };
        let figure = plots.join(fields[0]).with_extension("svg");
        let svg = fs::read_to_string(&figure).unwrap_or_default();
        let (_, desc) = svg.split_once("<desc>").unwrap_or_default();
        let (desc, _) = desc.split_once("</desc>").unwrap_or_default();
        assert!(
            desc.is_empty() || desc == origin(&facts(text)),
            "{figure:?}: {desc}"
        );
    }
}

#[test]
fn the_document_has_every_block_once_on_amd_and_none_twice_on_intel() {
    let (amd, intel) = published();
    let document = [amd.as_str(), &intel].concat();
    filled(&document, &[], &machine("AMD"), Command::Full).expect("its markers are right");
    let blocks = |text: &str| {
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("<!-- generated: "));
        let mut names: Vec<_> = lines.map(str::to_owned).collect();
        names.sort();
        names
    };
    let tables = rows::table(rows::TABLES).map(|fields| fields[0].to_owned());
    let figures = rows::table(rows::FIGURES).map(|fields| format!("figure {}", fields[0]));
    let others = ["", "capture-", "shed-"];
    let others = others.map(|of| [format!("{of}machine"), format!("{of}judged")]);
    let mut known: Vec<_> = tables
        .chain(figures)
        .chain(others.into_iter().flatten())
        .collect();
    known.iter_mut().for_each(|name| name.push_str(" -->"));
    known.sort();
    assert_eq!(blocks(&amd), known);
    let intel = blocks(&intel);
    assert!(intel.windows(2).all(|two| two[0] != two[1]), "{intel:?}");
}
