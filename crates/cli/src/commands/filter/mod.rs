//! `retroscope filter`: counts, shows or copies the packets of a capture file that match an
//! expression.
//!
//! - `input`: the file or stdin,
//! - `search`: connects reader, filter and output, and decides when an expression is refused,
//! - `output`: a count, `lines`, or a capture file,
//! - `program`: `-d`, the compiled expression as text,
//! - `explain`: `dev filter-explain`, the compilation in detail,
//! - `speed`: `dev filter-bench`, the speed on `packets` of a file,
//! - `link_type`: the link type names of `-y`.

mod explain;
mod input;
mod lines;
mod link_type;
mod output;
mod packets;
mod program;
mod search;
mod speed;

use std::{
    fs::File,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use retroscope_filter::{Filter, FilterError, FilterProblem, LinkContext};
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;

use self::{
    input::InputFile,
    output::{MatchOutput, Sink},
    search::{SearchError, SearchSummary},
};
use crate::{
    commands::target::{OutputTarget, is_broken_pipe},
    failure::{Code, Failure, say},
    units::counted,
};

/// Show, count or copy the packets of a capture file that match an expression.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "FILTER is a pcap-filter(7) expression; several words are joined by spaces. Without FILTER every packet matches. \
                  Put -- before it if it starts with a hyphen.\n\n\
                  Exit codes: 0 done, 1 the file is damaged or something failed, 2 wrong arguments or expression."
)]
pub(crate) struct Args {
    /// Read this capture file, pcap or pcapng, also compressed with gzip or zstd; - is stdin
    #[arg(short, value_name = "FILE")]
    read: Option<PathBuf>,

    /// Print only the number of matching packets
    #[arg(long, conflicts_with_all = ["write", "program"])]
    count: bool,

    /// Write the matching packets to OUT, uncompressed, in the format and time resolution of FILE;
    /// - is stdout
    #[arg(short, value_name = "OUT", conflicts_with = "program")]
    write: Option<PathBuf>,

    /// Print the compiled program like `tcpdump -d`, for the link types of FILE, or for Ethernet
    #[arg(short = 'd')]
    program: bool,

    /// Compile for this link type (with -d): libpcap's name, or the number in capture files
    #[arg(short = 'y', value_name = "LINKTYPE", conflicts_with_all = ["read", "count", "write"],
          value_parser = link_type::parse)]
    link_type: Option<LinkType>,

    /// pcap-filter(7) expression
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    expression: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let expression = args.expression.join(" ");
    let filter = Filter::plain(&expression).map_err(|error| refused(&error))?;
    if args.program {
        return program::print(&expression, &filter, args.read.as_deref(), args.link_type);
    }
    let path = args
        .read
        .ok_or_else(|| Failure::usage("name a capture file: -r FILE"))?;
    let input = InputFile::open(&path)?;
    let output = if args.count {
        MatchOutput::new(OutputTarget::Stdout, Sink::Count)
    } else if let Some(out) = args.write {
        let target = OutputTarget::new(out);
        if input.is_same_file(&target) {
            return Err(Failure::usage(format_args!(
                "-w {target} is the file that is read: write to another one"
            )));
        }
        MatchOutput::new(target, Sink::Capture(None))
    } else {
        MatchOutput::new(OutputTarget::Stdout, Sink::Lines(None))
    };
    match search_input(input.file, filter, output) {
        Ok(found) => report(&input.name, found),
        Err(SearchError::Refused(error)) => Err(refused(&error)),
        Err(SearchError::Output(error)) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        Err(SearchError::Output(error)) => Err(Failure::failed(format_args!("{error:#}"))),
    }
}

/// Print what an expression compiles to: lookups, programs, machine code, and the compile times
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// Take the link types from this capture file
    #[arg(short, value_name = "FILE")]
    read: Option<PathBuf>,

    /// Link type, by libpcap's name or the number in capture files
    #[arg(short = 'y', value_name = "LINKTYPE", conflicts_with = "read", value_parser = link_type::parse)]
    link_type: Option<LinkType>,

    /// pcap-filter(7) expression
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    expression: Vec<String>,
}

/// Measure the speed of an expression on the packets of a file: as machine code, in the
/// interpreter, in libpcap, and in a rule set
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Capture file
    #[arg(short, value_name = "FILE")]
    read: PathBuf,

    /// pcap-filter(7) expression
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    expression: Vec<String>,
}

/// Runs `dev filter-explain`.
pub(crate) fn explain(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let filter = Filter::plain(&args.expression.join(" ")).map_err(|error| refused(&error))?;
    explain::print(filter, args.read.as_deref(), args.link_type)
}

/// Runs `dev filter-bench`.
pub(crate) fn bench(args: &BenchArgs) -> Result<ExitCode, Failure> {
    let filter = Filter::plain(&args.expression.join(" ")).map_err(|error| refused(&error))?;
    speed::print(filter, &args.read)
}

/// Opens the input as a capture file and searches its packets. If the start of the input cannot be
/// read, an expression with a syntax error is refused; otherwise the summary contains the read
/// error. If the start is damaged, a count of 0 is then also written.
fn search_input(
    input: File,
    mut filter: Filter,
    output: MatchOutput,
) -> Result<SearchSummary, SearchError> {
    match CaptureReader::new(input) {
        Ok(mut reader) => search::search(&mut reader, filter, output),
        Err(error) => {
            // The link type is unknown, so only a syntax error counts, which is an error for every
            // link type.
            let context = program::context_alone(&filter, None);
            if let Err(error) = filter.prepare(context)
                && matches!(error.problem(), FilterProblem::Syntax)
            {
                return Err(SearchError::Refused(error));
            }
            if error.is_damage() {
                output.finish()?;
            }
            Ok(SearchSummary {
                damage: Some(error),
                unsupported: Vec::new(),
                times_changed: 0,
            })
        }
    }
}

/// Reports the problems of a search after its end. Returns the exit code.
fn report(name: &str, found: SearchSummary) -> Result<ExitCode, Failure> {
    if let Some((_, error)) = found.unsupported.first() {
        let link_types = found.unsupported.iter().map(|one| link_type::name(one.0));
        say(&format!(
            "{name}: packets of link type {} do not match, since the expression cannot be compiled for them\n{}",
            link_types.collect::<Vec<_>>().join(", "),
            error.render()
        ));
    }
    if found.times_changed > 0 {
        say(&format!(
            "{name}: {} outside the range of the format (pcap: 1970 to 2106, pcapng: 1970 to 2262) became the nearest in it",
            counted(found.times_changed, "time stamp")
        ));
    }
    let Some(error) = found.damage else {
        return Ok(ExitCode::SUCCESS);
    };
    say(&format!("{name}: {error}"));
    Ok(Code::Failed.into())
}

/// Checks that an expression compiles for Ethernet.
///
/// # Errors
/// The error of the expression.
pub(crate) fn check(expression: &str) -> Result<(), FilterError> {
    let mut filter = Filter::plain(expression)?;
    let context = program::context_alone(&filter, None);
    filter.prepare(context)
}

/// The failure for an expression that does not compile.
fn refused(error: &FilterError) -> Failure {
    Failure::usage(error.render())
}

/// A filter, compiled for the link types of a file or for one given link type.
struct Prepared {
    filter: Filter,
    /// Contexts for which the filter compiled, at least one, and the compile times.
    links: Vec<(LinkContext, Duration)>,
    /// Link types for which the filter does not compile.
    refused: Vec<(LinkType, FilterError)>,
}

impl Prepared {
    /// # Errors
    /// [`Failure`], exit 2: the filter compiles for none of `contexts`.
    fn new(mut filter: Filter, contexts: &[LinkContext]) -> Result<Self, Failure> {
        let (mut links, mut errors) = (Vec::new(), Vec::new());
        for context in contexts {
            let start = Instant::now();
            match filter.prepare(*context) {
                Ok(()) => links.push((*context, start.elapsed())),
                Err(error) => errors.push((context.link_type, error)),
            }
        }
        match errors.first() {
            Some((_, error)) if links.is_empty() => Err(refused(error)),
            _ => Ok(Self {
                filter,
                links,
                refused: errors,
            }),
        }
    }
}

/// Reports the link types for which the expression does not compile. Callers report an expression
/// that compiles for no link type as a [`Failure`] instead.
fn say_refused(errors: &[(LinkType, FilterError)]) {
    for (link_type, error) in errors {
        let name = link_type::name(*link_type);
        say(&format!("link type {name}: {}", error.render()));
    }
}
