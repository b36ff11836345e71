//! `retroscope record`.

use std::process::ExitCode;

use crate::failure::Failure;

/// Record, see triggers, write what happened before and after.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_args: Args) -> Result<ExitCode, Failure> {
    Err(Failure::failed("not built yet"))
}
