//! `retroscope token`: makes a token for `record --api`.

use std::{path::PathBuf, process::ExitCode};

use jiff::Timestamp;
use retroscope_api::{Role, TokenLine};
use retroscope_capture::quantity;
use retroscope_recorder::{Clock, SystemClock};

use crate::{
    failure::{Failure, put},
    units::duration,
};

/// Make a token for who asks `record --api` over TCP.
///
/// It is printed, once; the file, which `record --tokens` names, gets a line with its hash. A token whose line is removed is refused.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 the file cannot be read or written, 2 wrong arguments."
)]
pub(crate) struct Args {
    /// The file of tokens, made if it is missing
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,

    /// Who has it: in audit events, and in the reports of dumps that it triggers
    #[arg(long, value_name = "NAME")]
    name: String,

    /// What it is for: metrics, view (and metrics), packets (and view), trigger (and view), or admin (all); repeat for several
    #[arg(long = "role", value_name = "ROLE", required = true)]
    roles: Vec<Role>,

    /// Let it see only packets that this pcap-filter(7) expression takes
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,

    /// Let it see no more than the first BYTES of each packet
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    snaplen: Option<u32>,

    /// Refuse it after this long, as 12h or 90d, or from this time on, as 2027-01-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = end)]
    expires: Option<Timestamp>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let made = TokenLine::random(&args.name, args.roles.clone());
    let (line, token) = made.map_err(Failure::failed)?;
    let line = TokenLine {
        expires: args.expires,
        filter: args.filter.clone(),
        snaplen: args.snaplen,
        ..line
    };
    line.check().map_err(Failure::usage)?;
    line.append_to(&args.tokens).map_err(Failure::failed)?;
    put(&format!("{token}\n"))
}

/// A time, or one so long from now.
fn end(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let wrong = || {
        format!(
            "{text:?} is neither a duration, as 12h or 90d, nor a time, as 2027-01-01T00:00:00Z"
        )
    };
    // A number alone is a year that was meant as a time, rather than seconds.
    let has_unit = !quantity::split(text).1.is_empty();
    let after = duration(text).ok().filter(|_| has_unit).ok_or_else(wrong)?;
    let now = Timestamp::from_nanosecond(SystemClock.now().wall_ns.into());
    now.and_then(|now| now.checked_add(after))
        .map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_times_or_durations() {
        assert_eq!(
            end("2027-01-01T00:00:00Z").unwrap().to_string(),
            "2027-01-01T00:00:00Z"
        );
        let (before, after) = (end("1h").unwrap(), end("2h").unwrap());
        assert!(before < after);
        for wrong in ["", "soon", "2027", "1y", "-1h"] {
            assert!(end(wrong).is_err(), "{wrong}");
        }
    }
}
