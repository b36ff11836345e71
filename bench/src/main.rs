//! The program behind `make bench-quick`, `make bench` and `make bench-capture`.
//!
//! `retroscope-bench [quick | full | report | report-capture] [--out FOLDER] [--docs FOLDER]`, and
//! `retroscope-bench capture --retroscope PROGRAM --minimal PROGRAM --out FOLDER`. `ROWS` selects rows: a comma list of names or
//! of beginnings of names up to a slash.

use std::{env, path::PathBuf, process::ExitCode};

use retroscope_bench::{
    capture::{self, Programs},
    machine::Machine,
    measure::Scale,
    report,
    rows::Command,
    say,
    session::{Selection, Session},
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
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => say("a check failed: see the rows without figures"),
        Err(error) => say(&format!("retroscope-bench: {error}")),
    }
    ExitCode::FAILURE
}

fn run() -> Result<bool, Failure> {
    let mut command = "quick".to_owned();
    let (mut out, mut docs, mut retroscope, mut minimal) = (None, None, None, None);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let place = match argument.as_str() {
            "quick" | "full" | "report" | "report-capture" | "capture" => {
                command = argument;
                continue;
            }
            "--out" => &mut out,
            "--docs" => &mut docs,
            "--retroscope" => &mut retroscope,
            "--minimal" => &mut minimal,
            _ => {
                return Err(format!(
                    "what is '{argument}'? Known: quick, full, report, report-capture, capture, --out FOLDER, --docs FOLDER, --retroscope PROGRAM, --minimal PROGRAM"
                )
                .into());
            }
        };
        let path = arguments.next().map(PathBuf::from);
        *place = Some(path.ok_or(format!("{argument} needs a path"))?);
    }
    let out = out.ok_or("--out FOLDER is missing: scripts/bench.sh knows which")?;
    if command.starts_with("report") {
        for path in report::report(&out, command == "report-capture", docs.as_deref())? {
            say(&path.display().to_string());
        }
        return Ok(true);
    }
    let selection = Selection::parse(&env::var("ROWS").unwrap_or_default());
    let (what, commands, scale) = match command.as_str() {
        "capture" => ("make bench-capture", &[Command::Capture][..], SMALL),
        "full" => ("make bench", &[Command::Quick, Command::Full][..], QUICK),
        _ => ("make bench-quick", &[Command::Quick][..], QUICK),
    };
    if let (&[command], Some(item)) = (commands, selection.unknown(commands[0])) {
        return Err(format!("ROWS={item}: there is no such row of {command:?}").into());
    }
    let programs = retroscope.zip(minimal);
    if command == "capture" && programs.is_none() {
        return Err("capture needs --retroscope PROGRAM and --minimal PROGRAM: scripts/bench.sh knows which".into());
    }
    let mut session = Session::start(&out, scale, selection)?;
    session.programs = programs.map(|(retroscope, minimal)| Programs {
        retroscope,
        minimal,
    });
    let mut machine = Machine::look();
    machine.fact("command", Some(what.to_owned()));
    machine.fact("repetitions", Some(scale.repetitions.to_string()));
    if command == "capture" {
        machine.fact("programs", Some(capture::versions()));
    } else {
        machine.fact("ring", Some(format!("{} GiB", scale.ring_bytes >> 30)));
    }
    machine.write(&out)?;
    for command in commands {
        session.run(*command)?;
    }
    Ok(!session.failed())
}
