//! `filter` on all captures of the corpus, and on random rows of the table of expected counts.

use std::fs;

use retroscope_pcapfile::CaptureReader;

use super::support::{Record, corpus, records, run_on};
use crate::support::shared;

#[test]
fn copies_of_the_corpus_are_exact() {
    let Some(captures) = corpus() else { return };
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let mut copied = 0;
    for capture in captures {
        let name = capture.display();
        let (code, _, err) = run_on(&capture, &["-w", out.to_str().unwrap()]);
        if !out.exists() {
            assert_eq!(code, Some(1), "{name}: {err}");
            assert!(CaptureReader::open(&capture).is_err(), "{name}");
            continue;
        }
        let expected = records(&capture);
        // A time that does not fit 64 bits of ns is changed and reported. All other times must be
        // exact.
        let beyond = |record: &&Record| record.1 == i64::MAX;
        let times_changed = expected.iter().filter(beyond).count();
        let mut written = records(&out);
        for (ours, theirs) in written.iter_mut().zip(&expected) {
            if theirs.1 == i64::MAX {
                ours.1 = i64::MAX;
            }
        }
        assert!(written == expected, "{name} differs");
        let told = err.contains(&format!("{times_changed} time stamps outside"));
        assert_eq!(told, times_changed > 0, "{name}: {err}");
        let damaged = err.contains("damaged at byte") || err.contains("unsupported");
        assert_eq!(code, Some(i32::from(damaged)), "{name}: {err}");
        fs::remove_file(&out).unwrap();
        copied += 1;
    }
    assert!(copied > 200, "{copied}");
}

#[test]
fn every_capture_of_the_corpus_can_be_searched() {
    let Some(captures) = corpus() else { return };
    for capture in captures {
        let (code, out, err) = run_on(&capture, &["tcp or udp"]);
        assert!(
            matches!(code, Some(0..=2)),
            "{}: {code:?} {err}",
            capture.display()
        );
        let is_quiet = err.is_empty() || err.contains("do not match");
        assert_eq!(code == Some(0), is_quiet, "{}: {err}", capture.display());
        assert!(code != Some(2) || out.is_empty(), "{}", capture.display());
        let (count_code, number, _) = run_on(&capture, &["--count", "tcp or udp"]);
        assert_eq!(count_code, code, "{}", capture.display());
        if code != Some(2) {
            assert_eq!(
                number,
                format!("{}\n", out.lines().count()),
                "{}",
                capture.display()
            );
        }
    }
}

#[test]
fn random_rows_of_filters_expected_agree() {
    let (Some(table), Some(root)) = (shared("filters-expected.tsv"), shared("")) else {
        return;
    };
    let table = fs::read_to_string(table).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect())
        .collect();
    let seed = std::env::var("RETROSCOPE_TEST_SEED").map_or_else(
        |_| fastrand::u64(..),
        |seed| seed.parse().expect("the seed is a number"),
    );
    eprintln!("RETROSCOPE_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    for _ in 0..50 {
        let row = &rows[random.usize(..rows.len())];
        let [trace, expression, expected] = row[..] else {
            panic!("three columns: {row:?}")
        };
        let path = root.join(trace);
        let words: Vec<_> = if random.bool() {
            expression.split(' ').collect()
        } else {
            vec![expression]
        };
        let mut arguments = vec!["--count", "--"];
        arguments.extend(&words);
        let (code, text, err) = run_on(&path, &arguments);
        let agrees = match expected {
            "error" => code == Some(2) && text.is_empty() && !err.is_empty(),
            "rejects-all" => text == "0\n" || code == Some(2),
            number => text == format!("{number}\n") && matches!(code, Some(0 | 1)),
        };
        assert!(
            agrees,
            "{trace}\t{expression}\texpected {expected}, got {code:?} {text:?} {err}"
        );
        let Ok(number) = expected.parse::<usize>() else {
            continue;
        };
        arguments.splice(0..1, ["-w", out.to_str().unwrap()]);
        run_on(&path, &arguments);
        let written = records(&out);
        assert_eq!(written.len(), number, "{trace}\t{expression}");
        let mut all = records(&path).into_iter();
        let in_order = written
            .iter()
            .all(|record| all.any(|other| other == *record));
        assert!(
            in_order,
            "{trace}\t{expression}: other packets than those of the file"
        );
    }
}
