//! The program that `make bench-quick`, `make bench`, `make bench-capture`, `make bench-shed`,
//! `make papers` and `make bench-ab` run.
//!
//! `ROWS` selects rows: a comma-separated list of names, or of prefixes of names up to a slash.

use std::{env, path::PathBuf, process::ExitCode};

use clap::{Parser, ValueEnum};
use retroscope_bench::{
    capture::Programs,
    compare, flow_path, machine,
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

/// With `--quick`: counted turns of each contestant in a round, and seconds of each run.
const BRIEF: (usize, f64) = (3, 0.1);

/// Scale of `capture` and `shed`, which measure processes with their own memory, so that this
/// program needs little memory.
const SMALL: Scale = Scale {
    ring_bytes: 2 << 20,
    ..QUICK
};

/// Measure, or draw earlier results. Scripts such as scripts/bench.sh pass the arguments; ROWS
/// selects rows.
#[derive(Debug, Parser)]
struct Arguments {
    /// Task to run.
    #[arg(value_enum, default_value = "quick")]
    what: BenchTask,
    /// Folder of results.
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Folder of `benchmarks.md`, which a report fills.
    #[arg(long, value_name = "FOLDER")]
    docs: Option<PathBuf>,
    /// Folder of `papers.md`, to which a report adds the figures of `papers`.
    #[arg(long, value_name = "FOLDER")]
    papers: Option<PathBuf>,
    /// Queue of `flow-path`: heap or mrpq.
    #[arg(long, default_value = "mrpq")]
    timers: String,
    /// Turns of each contestant for a judged row.
    #[arg(long, default_value_t = QUICK.repetitions)]
    repetitions: usize,
    /// `papers` and `shed` measure briefly. The figures of `papers` are marked. No such figure is
    /// for publication.
    #[arg(long)]
    quick: bool,
    /// Packets of `flow-path`.
    #[arg(long, default_value_t = 0)]
    packets: u64,
    #[command(flatten)]
    programs: Programs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchTask {
    Quick,
    Full,
    Capture,
    Shed,
    /// All rows; rows on live traffic only if their programs are given. An interrupted run
    /// continues after its last finished group.
    Papers,
    Report,
    ReportCapture,
    ReportShed,
    /// Compares the rounds of two commits in the folder of results.
    Compare,
    /// Runs the flow path once. The rows of cache misses start this task under valgrind.
    FlowPath,
}

/// The table of `compare` is this program's result, so it goes to standard output.
#[expect(clippy::print_stdout, reason = "the result of a program")]
fn print(line: &str) {
    println!("{line}");
}

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => say("a check failed, or a row got worse: see above"),
        Err(error) => say(&format!("retroscope-bench: {error}")),
    }
    ExitCode::FAILURE
}

fn run(arguments: Arguments) -> Result<bool, Failure> {
    let Arguments {
        what,
        out,
        docs,
        papers,
        ..
    } = arguments;
    let (command, commands, mut scale) = match what {
        BenchTask::Quick => ("make bench-quick", &[Command::Quick][..], QUICK),
        BenchTask::Full => ("make bench", &[Command::Quick, Command::Full][..], QUICK),
        BenchTask::Capture => ("make bench-capture", &[Command::Capture][..], SMALL),
        BenchTask::Shed => ("make bench-shed", &[Command::Shed][..], SMALL),
        BenchTask::Papers => {
            use Command::{Capture, Full, Quick, Shed};
            let all = &[Quick, Full, Capture, Shed];
            // Live traffic needs root and the programs.
            let end = match arguments.programs.retroscope {
                Some(_) => all.len(),
                None => 2,
            };
            let command = if arguments.quick {
                "make papers QUICK=1"
            } else {
                "make papers"
            };
            (command, &all[..end], QUICK)
        }
        BenchTask::FlowPath => {
            flow_path(&arguments.timers, arguments.packets)?;
            return Ok(true);
        }
        BenchTask::Compare => return Ok(compare::compare(&out, print)?),
        BenchTask::Report | BenchTask::ReportCapture | BenchTask::ReportShed => {
            let command = match what {
                BenchTask::ReportCapture => Command::Capture,
                BenchTask::ReportShed => Command::Shed,
                _ => Command::Full,
            };
            let docs = (docs.as_deref(), papers.as_deref());
            for path in report::report(&out, command, docs)? {
                say(&path.display().to_string());
            }
            return Ok(true);
        }
    };
    scale.repetitions = arguments.repetitions.max(1);
    if arguments.quick {
        (scale.repetitions, scale.seconds) = BRIEF;
    }
    let selected = env::var("ROWS").unwrap_or_default();
    let selection = Selection::parse(&selected);
    if let (&[command], Some(item)) = (commands, selection.unknown(commands[0])) {
        return Err(format!("ROWS={item}: there is no such row of {command:?}").into());
    }
    let load = machine::MachineLoad::start();
    let mut facts = machine::look();
    let mut fact = |name: &str, fact| facts.insert(name.to_owned(), fact);
    fact("command", command.to_owned());
    if !selected.is_empty() {
        fact("rows", selected);
    }
    if arguments.quick {
        fact("quick", "yes".to_owned());
    }
    if let Ok(remark) = env::var("REMARK") {
        fact("remark", remark);
    }
    fact("repetitions", scale.repetitions.to_string());
    if !matches!(what, BenchTask::Capture | BenchTask::Shed) {
        fact("ring", format!("{} GiB", scale.ring_bytes >> 30));
    }
    // An interrupted run of `papers` continues if commit, machine, selected rows and scale are the
    // same. A tree with changes may have other code of the same commit. Outside of a git checkout
    // the commit is unknown.
    let earlier = machine::read(&out).unwrap_or_default();
    let commit = facts.get("commit");
    let is_known = commit.is_some_and(|commit| !commit.ends_with("with changes"));
    let is_same = [
        "cpu",
        "cores",
        "commit",
        "command",
        "rows",
        "repetitions",
        "ring",
    ]
    .iter()
    .all(|name| is_known && earlier.get(*name) == facts.get(*name));
    let mut session = if what == BenchTask::Papers && is_same {
        Session::resume(&out, scale, selection)?
    } else {
        Session::start(&out, scale, selection)?
    };
    session.programs = arguments.programs;
    machine::write(&facts, &out)?;
    session.run(commands)?;
    session.complete()?;
    load.tell(&mut facts);
    machine::write(&facts, &out)?;
    Ok(!session.failed.get())
}
