//! `retroscope extcap`: offers a recorder as an interface of Wireshark, tshark and dumpcap. See
//! extcap(4), and "Extcap: Developer Guide" in the Wireshark Developer's Guide.
//!
//! Wireshark runs the programs in its extcap folder without a subcommand; [`arguments`] adds
//! `extcap`. A capture then is a `retroscope query` whose output goes into a pipe that Wireshark
//! made.
//!
//! - `capture`: copies packets into the pipe until Wireshark stops the capture or the query ends,
//! - `install`: manages the link in Wireshark's folder.

mod capture;
mod install;

use std::{ffi::OsString, num::NonZeroU32, path::PathBuf, process::ExitCode};

use super::{
    filter,
    query::Args as Query,
    remote::RemoteArgs,
    stretch::{StretchArgs, WithText, length, time},
};
use crate::failure::{Failure, put};

/// The name of the interface, of the link in Wireshark's folder, and of the group of preferences.
const NAME: &str = "retroscope";
/// Wireshark's option for the capture filter. Its empty value means no filter; an empty value of
/// another option means that the user left this option out.
const CAPTURE_FILTER: &str = "--extcap-capture-filter";
/// Default of `--past`.
const PAST: &str = "30s";
/// Value of `--past` that selects everything that is still recorded.
const ALL: &str = "all";

/// Offer a recorder as an interface in Wireshark and tshark: `tshark -i retroscope -f 'udp port
/// 53'`
///
/// A capture starts with recorded packets, and new packets follow. The recorder applies the capture
/// filter. Wireshark stores the options below as preferences extcap.retroscope.NAME, where NAME is
/// the option without hyphens, for example `-o extcap.retroscope.past:5m`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 no recorder there, refused, or not installed, 2 wrong arguments or expression, 3 done but packets are missing.\n\n\
                  What a DNS server was asked in the last minute, and is asked now:\n  \
                  retroscope extcap --install\n  \
                  tshark -i retroscope -o extcap.retroscope.past:1m -f 'udp port 53'"
)]
pub(crate) struct Args {
    /// Put a link to this program into Wireshark's extcap folder, and check that `tshark -D` lists
    /// it
    #[arg(long, conflicts_with = "uninstall")]
    install: bool,

    /// Remove the link of --install
    #[arg(long)]
    uninstall: bool,

    /// Use this folder instead of the personal extcap folder that `tshark -G folders` names
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Start with the packets of this past time, like 5m; 0s: no past packets; all: everything that
    /// is still recorded. --from and --to override --past
    #[arg(long, value_name = "DURATION", default_value = PAST, value_parser = past, help_heading = OPTIONS)]
    past: Past,

    /// Keep capturing new packets
    #[arg(long, value_name = "BOOL", default_value = "true", action = clap::ArgAction::Set, help_heading = OPTIONS)]
    follow: bool,

    /// Select packets from this time on, like 2026-11-20T19:15:03.5Z (any offset), or a number
    /// since 1970 (s, ms, µs or ns, by its size)
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = OPTIONS)]
    from: Option<WithText<i64>>,

    /// End the capture at this time, inclusive
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = OPTIONS)]
    to: Option<WithText<i64>>,

    /// Select packets of these interfaces of the recorder, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = OPTIONS)]
    interface: Vec<String>,

    /// Truncate each packet to N bytes (snap length)
    #[arg(long, value_name = "N", help_heading = OPTIONS)]
    headers: Option<NonZeroU32>,

    #[command(flatten)]
    remote: RemoteArgs,

    #[command(flatten)]
    asked: WiresharkArgs,
}

/// Heading of the packet options in the help.
const OPTIONS: &str = "Packets of the interface";

/// Options that Wireshark passes by the extcap protocol.
#[derive(Debug, clap::Args)]
struct WiresharkArgs {
    #[arg(long, hide = true)]
    extcap_interfaces: bool,
    #[arg(long, hide = true)]
    extcap_dlts: bool,
    #[arg(long, hide = true)]
    extcap_config: bool,
    #[arg(long, hide = true, requires = "fifo")]
    capture: bool,
    #[arg(long, hide = true)]
    extcap_interface: Option<String>,
    #[arg(long, hide = true, allow_hyphen_values = true)]
    extcap_capture_filter: Option<String>,
    #[arg(long, hide = true)]
    fifo: Option<PathBuf>,
    /// Wireshark's version, which Wireshark passes and we ignore.
    #[arg(long, hide = true)]
    extcap_version: Option<String>,
    /// Request to reload the values of an option. Ignored, because no option has reloadable values.
    #[arg(long, hide = true)]
    extcap_reload_option: Option<String>,
}

/// How much recorded traffic a capture starts with.
#[derive(Debug, Clone)]
enum Past {
    All,
    Last(WithText<std::time::Duration>),
}

fn past(text: &str) -> Result<Past, String> {
    if text == ALL {
        return Ok(Past::All);
    }
    let last = length(text).map_err(|why| format!("{why}; or `{ALL}`"))?;
    Ok(Past::Last(last))
}

/// Adds the subcommand to the arguments of a call by Wireshark. Removes the options that the user
/// left empty in Wireshark's dialog, because most options have no valid empty value. Other
/// arguments stay as they are.
pub(crate) fn arguments(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let all: Vec<OsString> = all.collect();
    let text = |at: usize| all.get(at).and_then(|word| word.to_str()).unwrap_or("-");
    if !(text(1) == "--capture" || text(1).starts_with("--extcap-")) {
        return all;
    }
    let mut told = vec![all[0].clone(), "extcap".into()];
    let mut at = 1;
    while at < all.len() {
        let is_left_empty =
            text(at).starts_with("--") && text(at) != CAPTURE_FILTER && text(at + 1).is_empty();
        if is_left_empty {
            at += 2;
            continue;
        }
        told.push(all[at].clone());
        at += 1;
    }
    told
}

/// After clap refused the arguments of a capture: releases the pipe, so that Wireshark does not
/// wait for packets.
pub(crate) fn refused(arguments: &[OsString]) {
    let is = |word: &OsString, what: &str| word == what;
    let is_capture = arguments.iter().any(|word| is(word, "--capture"));
    let fifo = arguments.iter().position(|word| is(word, "--fifo"));
    let fifo = fifo.and_then(|at| arguments.get(at + 1));
    if let (Some("extcap"), true, Some(fifo)) = (
        arguments.get(1).and_then(|it| it.to_str()),
        is_capture,
        fifo,
    ) {
        capture::release_unused(fifo.as_ref());
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let asked = &args.asked;
    if args.install {
        return install::install(args.dir.as_deref());
    }
    if args.uninstall {
        return install::uninstall(args.dir.as_deref());
    }
    if asked.extcap_interfaces {
        return put(&interfaces());
    }
    match asked.extcap_interface.as_deref() {
        Some(NAME) => {}
        Some(other) => {
            return Err(Failure::usage(format_args!(
                "there is no interface {other:?}: {NAME:?} is the only one"
            )));
        }
        None => {
            return Err(Failure::usage(
                "say --install, which makes it an interface of Wireshark, or --uninstall (see --help)",
            ));
        }
    }
    if asked.extcap_dlts {
        return put(DLTS);
    }
    if asked.extcap_config {
        return put(&configuration());
    }
    if let (true, Some(fifo)) = (asked.capture, asked.fifo.clone()) {
        return match args.query(fifo.clone()) {
            Ok(query) => capture::run(query, &fifo),
            Err(failure) => {
                let code = failure.report();
                capture::release_unused(&fifo);
                Ok(code)
            }
        };
    }
    match &asked.extcap_capture_filter {
        Some(expression) => put(&verified(expression)),
        None => Ok(ExitCode::SUCCESS),
    }
}

impl Args {
    /// The query that fills Wireshark's pipe.
    fn query(self, fifo: PathBuf) -> Result<Query, Failure> {
        let last = match self.past {
            Past::Last(last) if self.from.is_none() && self.to.is_none() => Some(last),
            _ => None,
        };
        let stretch = StretchArgs {
            from: self.from,
            to: self.to,
            last,
        };
        stretch.ns()?;
        Ok(Query {
            stretch,
            write: Some(fifo),
            follow: self.follow,
            headers: self.headers,
            interface: self.interface,
            expression: self.asked.extcap_capture_filter.into_iter().collect(),
            remote: self.remote,
            ..Query::default()
        })
    }
}

/// The list of interfaces. Contacts no recorder, because Wireshark asks for the list at every
/// start.
fn interfaces() -> String {
    format!(
        "extcap {{version={}}}{{display=Retroscope}}{{help={}}}\n\
         interface {{value={NAME}}}{{display=Retroscope recorder}}\n",
        env!("CARGO_PKG_VERSION"),
        env!("CARGO_PKG_REPOSITORY"),
    )
}

/// Link types of the interface. Wireshark demands one in advance; the capture file then declares
/// the real link type of each of its interfaces.
const DLTS: &str = "dlt {number=1}{name=EN10MB}{display=Ethernet, or what the capture says}\n";

/// The configurable options, from which Wireshark builds a dialog and preferences.
fn configuration() -> String {
    // Option, display name, tooltip, type and perhaps default, tab of the dialog.
    let all = [
        (
            "past",
            "Past",
            "So much of the past: 30s, 5m; 0s: none; all: all that is there",
            "{type=string}{default=30s}",
            "Packets",
        ),
        (
            "follow",
            "Go on with the packets that come",
            "Otherwise the capture ends where the past does",
            "{type=boolean}{default=true}",
            "Packets",
        ),
        (
            "from",
            "From",
            "Instead of Past: 2026-11-20T19:15:03.5Z with any offset, or a number since 1970",
            "{type=string}",
            "Packets",
        ),
        (
            "to",
            "To",
            "Up to this time, which ends the capture",
            "{type=string}",
            "Packets",
        ),
        (
            "interface",
            "Interfaces",
            "Those of the recorder, with commas between; left empty: all",
            "{type=string}",
            "Packets",
        ),
        (
            "headers",
            "Bytes of each packet",
            "Left empty: all",
            "{type=string}",
            "Packets",
        ),
        (
            "socket",
            "Socket",
            "That of record --api unix:PATH; left empty: /run/retroscope/retroscope.sock, or $XDG_RUNTIME_DIR/retroscope.sock",
            "{type=fileselect}",
            "Recorder",
        ),
        (
            "url",
            "URL",
            "The address of record --api ADDR, as https://tap.example:8443",
            "{type=string}",
            "Recorder",
        ),
        (
            "token-file",
            "File of the token",
            "The file with the token that retroscope token printed",
            "{type=fileselect}",
            "Recorder",
        ),
        (
            "ca",
            "Authorities",
            "Certificate authorities to trust for the URL (PEM) instead of the system's",
            "{type=fileselect}",
            "Recorder",
        ),
        (
            "client-cert",
            "Own certificate",
            "For a recorder that asks for one (PEM)",
            "{type=fileselect}",
            "Recorder",
        ),
        (
            "client-key",
            "Own key",
            "That of the own certificate (PEM)",
            "{type=fileselect}",
            "Recorder",
        ),
    ];
    let line = |(number, (option, display, tooltip, kind, group))| {
        format!(
            "arg {{number={number}}}{{call=--{option}}}{{display={display}}}{{tooltip={tooltip}}}{kind}{{group={group}}}\n"
        )
    };
    all.into_iter().enumerate().map(line).collect()
}

/// Error of a capture filter in one line, or an empty text for a valid filter.
fn verified(expression: &str) -> String {
    let wrong = filter::check(expression).err();
    wrong.map_or_else(String::new, |error| {
        error.to_string().replace(char::is_control, " ") + "\n"
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Command};

    fn told(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(OsString::from);
        let told = arguments(words);
        told.iter()
            .map(|word| word.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn what_wireshark_says_gets_its_subcommand() {
        assert_eq!(
            told(&["x", "--extcap-interfaces", "--extcap-version=4.0"]),
            ["x", "extcap", "--extcap-interfaces", "--extcap-version=4.0"]
        );
        let empty = [
            "x",
            "--capture",
            "--url",
            "",
            CAPTURE_FILTER,
            "",
            "--past",
            "",
        ];
        assert_eq!(
            told(&empty),
            ["x", "extcap", "--capture", CAPTURE_FILTER, ""]
        );
        for other in [&["x"][..], &["x", "query", "--capture"], &["x", "--help"]] {
            assert_eq!(told(other), other);
        }
    }

    #[test]
    fn every_option_that_is_configured_is_one() {
        let defaults = [("--follow", "true"), ("--past", PAST)];
        let mut count = 0;
        for line in configuration().lines() {
            let (_, option) = line.split_once("{call=").unwrap();
            let (option, _) = option.split_once('}').unwrap();
            let default = defaults.iter().find(|(name, _)| *name == option);
            let is_told =
                default.is_none_or(|(_, value)| line.contains(&format!("{{default={value}}}")));
            assert!(is_told, "{line}");
            // The extcap grammar cannot quote braces. The counts differ for an unpaired brace.
            assert_eq!(line.matches('{').count(), line.matches('}').count());
            let value = match option {
                "--follow" => "false",
                "--past" => "all",
                "--url" => "https://tap.example:8443",
                _ => "1",
            };
            let mut words = vec!["x", "--capture", "--extcap-interface", NAME, "--fifo", "f"];
            words.extend([option, value]);
            match option {
                "--client-cert" => words.extend(["--client-key", "1"]),
                "--client-key" => words.extend(["--client-cert", "1"]),
                _ => {}
            }
            let cli = Cli::try_parse_from(told(&words)).unwrap();
            assert!(matches!(cli.command, Command::Extcap(_)), "{line}");
            count += 1;
        }
        assert_eq!(count, 12);
    }

    #[test]
    fn an_expression_is_verified() {
        for right in [
            "",
            "udp port 53",
            "udp and payload contains \"x\"",
            "inbound",
        ] {
            assert_eq!(verified(right), "", "{right}");
        }
        for wrong in ["port prot", "host", "host $srcIP"] {
            let why = verified(wrong);
            assert!(why.len() > 1 && why.lines().count() == 1, "{why}");
        }
    }
}
