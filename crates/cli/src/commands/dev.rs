//! `retroscope dev`: tools for developers.

use std::process::ExitCode;

use super::{filter, record};
use crate::failure::{Failure, put};

/// Tools for developers
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Debug, clap::Subcommand)]
enum Tool {
    FilterExplain(filter::ExplainArgs),
    FilterBench(filter::BenchArgs),
    /// Print the JSON schema of the configuration file
    Schema,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.tool {
        Tool::FilterExplain(args) => filter::explain(args),
        Tool::FilterBench(args) => filter::bench(args),
        Tool::Schema => put(&record::schema()),
    }
}
