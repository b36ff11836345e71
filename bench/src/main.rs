//! The program behind `make bench-quick` and `make bench`.
//!
//! `retroscope-bench [quick | full | report | report-capture] [--out FOLDER] [--docs FOLDER]`, and
//! `retroscope-bench capture --retroscope PROGRAM --minimal PROGRAM --out FOLDER` behind `make bench-capture`. `ROWS` selects
//! rows: a comma list of names or of beginnings of names up to a slash.

use std::{env, path::PathBuf, process::ExitCode};

use retroscope_bench::{
    capture, full, judged,
    machine::Machine,
    pace::Scale,
    peers,
    rows::Selection,
    session::{Session, say},
    tables,
};

/// A ring of 1 GiB; a quarter of a second for each run.
const QUICK: Scale = Scale {
    ring_bytes: 1 << 30,
    seconds: 0.25,
    repetitions: 5,
};

/// Contestants of `capture` are processes with memory of their own.
const SMALL: Scale = Scale {
    ring_bytes: 2 << 20,
    ..QUICK
};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            say("a check failed: see the rows without figures");
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&format!("retroscope-bench: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Failure> {
    let mut command = "quick".to_owned();
    let (mut out, mut docs, mut retroscope, mut minimal) = (None, None, None, None);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut path = || {
            arguments
                .next()
                .map(PathBuf::from)
                .ok_or(format!("{argument} needs a path"))
        };
        match argument.as_str() {
            "quick" | "full" | "report" | "report-capture" | "capture" => command = argument,
            "--out" => out = Some(path()?),
            "--docs" => docs = Some(path()?),
            "--retroscope" => retroscope = Some(path()?),
            "--minimal" => minimal = Some(path()?),
            _ => {
                return Err(format!(
                    "what is '{argument}'? Known: quick, full, report, report-capture, capture, --out FOLDER, --docs FOLDER, --retroscope PROGRAM, --minimal PROGRAM"
                )
                .into());
            }
        }
    }
    let out = out.ok_or("--out FOLDER is missing: scripts/bench.sh knows which")?;
    let part = match command.as_str() {
        "report" => Some(tables::Part::InProcess),
        "report-capture" => Some(tables::Part::Capture),
        _ => None,
    };
    if let Some(part) = part {
        for path in tables::report(&out, part, docs.as_deref())? {
            say(&path.display().to_string());
        }
        return Ok(true);
    }
    let rows = env::var("ROWS").unwrap_or_default();
    let selection = Selection::parse(&rows);
    if command == "capture" {
        let missing = "capture needs --retroscope PROGRAM and --minimal PROGRAM: scripts/bench.sh knows which";
        let (retroscope, minimal) = retroscope.zip(minimal).ok_or(missing)?;
        let programs = capture::Programs {
            retroscope,
            minimal,
        };
        capture::check(&selection)?;
        let mut session = Session::start(&out, SMALL, selection)?;
        let mut machine = Machine::look();
        machine.fact("command", Some("make bench-capture".to_owned()));
        machine.fact("programs", Some(capture::versions()));
        machine.write(&out)?;
        capture::run(&mut session, &programs, &out)?;
        return Ok(!session.results().failed());
    }
    let made_by = if command == "full" {
        "make bench"
    } else {
        "make bench-quick"
    };
    if command == "quick" {
        judged::check(&selection)?;
    }
    let mut session = Session::start(&out, QUICK, selection)?;
    let mut machine = Machine::look();
    let versions: Vec<String> = peers::versions()
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    machine.fact("peers", Some(versions.join(", ")));
    machine.fact("ring", Some(format!("{} GiB", QUICK.ring_bytes >> 30)));
    machine.fact("repetitions", Some(QUICK.repetitions.to_string()));
    machine.fact("command", Some(made_by.to_owned()));
    machine.write(&out)?;
    judged::run(&mut session)?;
    if command == "full" {
        full::run(&mut session)?;
    }
    Ok(!session.results().failed())
}
