//! `retroscope status`: shows the state of a recorder over HTTP, or the contents of another
//! process's ring.
//!
//! A ring is readable if it is in a file or a memfd (`record --ring-file` or `ring-memfd`). A ring
//! file is readable even after its recorder was killed. The recorder does not wait for the reader
//! of a ring.

mod remote;
mod report;
mod view;

use std::{path::PathBuf, process::ExitCode};

use retroscope_ring::Attached;

use self::report::RingReport;
use super::remote::RemoteArgs;
use crate::failure::{Failure, put, put_json};

/// Show what a running recorder (--api) does. On a terminal, update once a second until `q` or ^C;
/// elsewhere print once. With --ring-file, show how much traffic of what time a ring file holds,
/// and whether its recorder runs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 no recorder there, refused, or the ring cannot be read, 2 wrong arguments."
)]
pub(crate) struct Args {
    /// Read this ring file and contact no recorder: the PATH of `record --ring-file`, or the
    /// /proc/PID/fd/N that `record --set ring-memfd=true` names
    #[arg(long, value_name = "PATH", conflicts_with_all = ["socket", "url"])]
    ring_file: Option<PathBuf>,

    /// List every bucket that holds packets, oldest first
    #[arg(long, requires = "ring_file")]
    buckets: bool,

    /// Print the status once as text, even on a terminal
    #[arg(long)]
    once: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    remote: RemoteArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Some(path) = &args.ring_file else {
        return remote::run(args);
    };
    let attached = Attached::open(path).map_err(Failure::failed)?;
    let report = RingReport::new(path, &attached, args.buckets).map_err(Failure::failed)?;
    if args.json {
        return put_json(&report);
    }
    put(&report.text())
}
