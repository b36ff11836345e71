//! `retroscope status`: what the ring of another process holds, running or killed.
//!
//! Only reads, and only a ring in a file or memfd: `record --ring-file` or `--ring-memfd` makes one. The recorder is not
//! asked and not slowed down.

mod report;

use std::{path::PathBuf, process::ExitCode};

use retroscope_ring::Attached;

use self::report::Report;
use crate::failure::{Failure, put, put_json};

/// Show what a ring in a file holds: how much, of what time, and whether its recorder runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 1 the ring cannot be read, 2 wrong arguments.")]
pub(crate) struct Args {
    /// The file of `record --ring-file`, or the /proc/PID/fd/N that `record --ring-memfd` names
    #[arg(long, value_name = "PATH")]
    ring_file: PathBuf,

    /// List every bucket that holds packets, oldest first
    #[arg(long)]
    buckets: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let attached = Attached::open(&args.ring_file).map_err(Failure::failed)?;
    let report = Report::new(&args.ring_file, &attached, args.buckets).map_err(Failure::failed)?;
    if args.json {
        return put_json(&report);
    }
    put(&report.text())
}
