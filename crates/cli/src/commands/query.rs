//! `retroscope query`: packets of a ring in a file, running or left behind, as a capture file with a verdict.
//!
//! Only reads: the recorder is not asked and not slowed down.

use std::{
    fs,
    io::{BufWriter, ErrorKind},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use retroscope_recorder::{Query, QueryError, Verdict, parse_time};
use retroscope_ring::Attached;

use super::{capture_file::BUFFER_BYTES, target::Target};
use crate::{
    failure::{Code, Failure, put_json, say},
    units::{counted, duration},
};

/// Write the packets that a ring in a file holds, of a recorder that runs or was killed, to a capture file.
///
/// Without a window: from where the ring is whole, to its end. The verdict is printed, and stands in the file in a comment of the last
/// packet and of each interface's statistics.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 the ring cannot be read or the file not written, 2 wrong arguments, 3 done but packets are missing."
)]
pub(crate) struct Args {
    /// The file of `record --ring-file`, or the /proc/PID/fd/N that `record --ring-memfd` names
    #[arg(long, value_name = "PATH")]
    ring_file: PathBuf,

    /// Packets from this time on: 2026-11-20T19:15:03.5Z, or a number since 1970
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "last")]
    from: Option<i64>,

    /// Packets up to this time, included
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "last")]
    to: Option<i64>,

    /// Packets of this long, up to the last that the recorder knew of: while it runs, up to now but for some tens of milliseconds
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    last: Option<Duration>,

    /// The capture file, made anew; - is stdout
    #[arg(short, value_name = "FILE")]
    write: PathBuf,

    /// Print one JSON object instead of the sentence
    #[arg(long)]
    json: bool,

    /// Which packets, as pcap-filter(7) says; all of them unless given
    #[arg(value_name = "EXPRESSION")]
    expression: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let target = Target::new(args.write.clone());
    if args.json && target == Target::Stdout {
        return Err(Failure::usage(
            "--json and -w - both write to stdout: name a file",
        ));
    }
    if args.from.zip(args.to).is_some_and(|(from, to)| from > to) {
        return Err(Failure::usage("--to is before --from"));
    }
    let query = Query {
        expression: args.expression.join(" "),
        from_ns: args.from,
        to_ns: args.to,
        last_ns: args
            .last
            .map(|last| i64::try_from(last.as_nanos()).unwrap_or(i64::MAX)),
        ..Query::default()
    };
    let attached = Attached::open(&args.ring_file).map_err(Failure::failed)?;
    // The ring is evidence, and opening a file for writing empties it.
    if fs::metadata(&args.ring_file).is_ok_and(|ring| target.is_file(&ring)) {
        return Err(Failure::usage(format_args!("{target} is the ring itself")));
    }
    let failed = |error| match error {
        QueryError::Filter(error) => Failure::usage(error.render()),
        QueryError::Usage(error) => Failure::usage(error),
        QueryError::Output(error) => {
            Failure::failed(format_args!("cannot write {target}: {error}"))
        }
        error => Failure::failed(error),
    };
    let answer = query.of(attached).map_err(failed)?;
    let file = target
        .open()
        .map_err(|error| Failure::failed(format_args!("{error:#}")))?;
    let report = match answer.write_to(BufWriter::with_capacity(BUFFER_BYTES, file)) {
        // Whoever read the answer has left.
        Err(QueryError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            return Ok(ExitCode::SUCCESS);
        }
        written => written.map_err(failed)?,
    };
    for note in &report.notes {
        say(note);
    }
    if args.json {
        put_json(&report)?;
    } else {
        let packets = counted(report.packets, "packet");
        let window = match (&report.from, &report.to) {
            (Some(from), Some(to)) => format!(" from {from} to {to}"),
            _ => String::new(),
        };
        say(&format!(
            "{target}: {packets}{window}: {}",
            report.reasons()
        ));
    }
    Ok(match report.verdict {
        Verdict::Complete => ExitCode::SUCCESS,
        Verdict::Incomplete | Verdict::Failed => Code::Incomplete.into(),
    })
}
