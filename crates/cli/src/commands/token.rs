//! `retroscope token`: creates a token for `record --api`.

use std::{
    fs::{self, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use jiff::Timestamp;
use retroscope_api::{Role, TokenLine};
use retroscope_capture::quantity;
use retroscope_recorder::{Clock, SystemClock};

use crate::{
    commands::target::is_standard_stream,
    failure::{Failure, put},
    units::duration,
};

/// Create an access token for the HTTP API (`record --api` over TCP).
///
/// Print the token, or write it to the file of --out. Append a line with its hash to the file that
/// `record --tokens` names. The recorder refuses a token after its line is removed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 a file cannot be read or written, 2 wrong arguments."
)]
pub(crate) struct Args {
    /// Append the token's hash to this token file, and create a missing file
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,

    /// Write the token to this new file (mode 0600) instead of stdout. Refuse an existing file or
    /// link
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Name the owner, for audit events and for the reports of dumps that the token triggers
    #[arg(long, value_name = "NAME")]
    name: String,

    /// Allow metrics, view (includes metrics), packets (includes view), trigger (includes view), or
    /// admin (everything). Repeatable
    #[arg(long = "role", value_name = "ROLE", required = true)]
    roles: Vec<Role>,

    /// Show the token only packets that match this pcap-filter(7) expression. Write addresses and
    /// numbers instead of names
    #[arg(long, value_name = "FILTER")]
    filter: Option<String>,

    /// Show the token only the first BYTES of each packet
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    snaplen: Option<u32>,

    /// Refuse the token after this time, like 12h or 90d, or from this date on, like
    /// 2027-01-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = end)]
    expires: Option<Timestamp>,
}

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
    let Some(path) = args.out.as_deref().filter(|it| !is_standard_stream(it)) else {
        line.append_to(&args.tokens).map_err(Failure::failed)?;
        return put(&format!("{token}\n"));
    };
    // Write the secret before its hash: a failure in between leaves the name unused.
    write_secret(path, &token)?;
    line.append_to(&args.tokens).map_err(|why| {
        let _ = fs::remove_file(path);
        Failure::failed(why)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a token to a new file. `O_EXCL` refuses existing files and follows no link: open(2).
fn write_secret(path: &Path, token: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let path = path.display();
        Failure::failed(match error.kind() {
            ErrorKind::AlreadyExists => {
                format!("{path} exists: remove it, or choose another file for the token")
            }
            _ => format!("{path}: {error}"),
        })
    };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(failed)?;
    let written = file.write_all(format!("{token}\n").as_bytes());
    written.and_then(|()| file.sync_all()).map_err(|error| {
        let _ = fs::remove_file(path);
        failed(error)
    })
}

/// Parses a point in time, or a duration from now.
fn end(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let wrong = || {
        format!(
            "{text:?} is neither a duration, as 12h or 90d, nor a time, as 2027-01-01T00:00:00Z"
        )
    };
    // A number without a unit is probably a year.
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
