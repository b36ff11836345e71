//! `retroscope sandbox`: restricts its process and executes a program. The API of `record` runs
//! Wireshark's dissectors through this command.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use retroscope_api::{UNPROTECTED, run_in_sandbox};

use crate::failure::Failure;

/// Restrict this process, and execute a program (for `record --api`)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The program, an absolute path
    program: PathBuf,
    /// The program's arguments
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    arguments: Vec<OsString>,
}

#[expect(clippy::print_stderr, reason = "the recorder reads it")]
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let error = run_in_sandbox(&args.program, &args.arguments);
    eprintln!("{error}");
    Ok(ExitCode::from(UNPROTECTED))
}
