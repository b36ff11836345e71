//! `retroscope ctl`: asks a running `retroscope record --control PATH`.

use std::{
    io::{BufRead, BufReader, ErrorKind, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::ExitCode,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;

use super::{
    protocol::{LimitsText, Request, StretchText, WhenFull, WindowText},
    target::Target,
};
use crate::{
    failure::{Code, Failure, put, say},
    units::counted,
};

/// Control a recording that runs with --control PATH: trigger, change rules, keep or get packets, listen to what happens.
///
/// Answers are printed as the recorder gives them, one JSON object a line; docs/control.md tells what they mean.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 refused or no recorder there, 2 wrong arguments, 3 done but packets of a query are missing."
)]
pub(crate) struct Args {
    /// The socket of `retroscope record --control PATH`
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start a dump, as SIGUSR1 does, of the packets and the window that the recorder was started with unless told otherwise
    Trigger {
        /// A name for this trigger: asked again with it, the recorder starts no second dump
        #[arg(long, value_name = "NAME")]
        key: Option<String>,

        #[command(flatten)]
        window: WindowText,
    },
    /// List or change the trigger rules
    Rules {
        #[command(subcommand)]
        change: Option<RuleCommand>,
    },
    /// Keep packets of some time in the ring: of all that is there up to now, unless told otherwise
    Pin {
        name: String,
        #[command(flatten)]
        stretch: StretchText,
    },
    /// Keep them no more
    Unpin { name: String },
    /// Print what the recorder is doing
    Status,
    /// Say what happens when the ring is full of what dumps and pins want
    WhenFull {
        #[arg(value_enum)]
        mode: WhenFull,
    },
    /// Write packets of the ring to a capture file, as `retroscope query` does with a ring in a file
    Query {
        #[command(flatten)]
        stretch: StretchText,

        /// The capture file, made anew; - is stdout
        #[arg(short, value_name = "FILE")]
        write: PathBuf,

        /// Which packets, as pcap-filter(7) says; all of them unless given
        #[arg(value_name = "EXPRESSION")]
        expression: Vec<String>,
    },
    /// Print what happens, as it happens
    Events {
        /// From the event of this number on, which is an earlier `next`, as far as they are kept
        #[arg(long, value_name = "NUMBER")]
        from: Option<u64>,
    },
    /// Read the file of --config again, as SIGHUP does: all of it is taken over, or nothing
    Reload,
    /// End the recording, as SIGINT does
    Stop,
}

#[derive(Debug, clap::Subcommand)]
enum RuleCommand {
    /// List them, which is the default
    List,
    /// Add a trigger rule under a name; its dumps are as the recorder was started for, unless told otherwise
    Add(RuleArgs),
    /// Give a rule another expression, dump expression, window and limits, all of them, between two packets; its dumps go on as they are
    Change(RuleArgs),
    /// Remove one; its dumps go on
    Remove { name: String },
    /// Let its matches start dumps again
    Enable { name: String },
    /// Let its matches start none
    Disable { name: String },
}

/// A rule.
#[derive(Debug, clap::Args)]
struct RuleArgs {
    name: String,
    #[command(flatten)]
    window: WindowText,
    #[command(flatten)]
    limits: LimitsText,
    #[arg(value_name = "EXPRESSION", required = true)]
    expression: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let socket = args.socket.display().to_string();
    let mut output = None;
    let request = match args.command {
        Command::Trigger { key, window } => Request::Trigger { key, window },
        Command::Rules { change } => match change.unwrap_or(RuleCommand::List) {
            RuleCommand::List => Request::Rules {},
            RuleCommand::Add(rule) => Request::AddRule {
                name: rule.name,
                expression: rule.expression.join(" "),
                window: rule.window,
                limits: rule.limits,
            },
            RuleCommand::Change(rule) => Request::ChangeRule {
                name: rule.name,
                expression: rule.expression.join(" "),
                window: rule.window,
                limits: rule.limits,
            },
            RuleCommand::Remove { name } => Request::RemoveRule { name },
            RuleCommand::Enable { name } => Request::EnableRule {
                name,
                enabled: true,
            },
            RuleCommand::Disable { name } => Request::EnableRule {
                name,
                enabled: false,
            },
        },
        Command::Pin { name, stretch } => Request::Pin { name, stretch },
        Command::Unpin { name } => Request::Unpin { name },
        Command::Status => Request::Status {},
        Command::WhenFull { mode } => Request::WhenFull { mode },
        Command::Query {
            stretch,
            write,
            expression,
        } => {
            output = Some(Target::new(write));
            let expression = expression.join(" ");
            Request::Query {
                expression,
                stretch,
            }
        }
        Command::Events { from } => Request::Events { from },
        Command::Reload => Request::Reload {},
        Command::Stop => Request::Stop {},
    };
    let failed = |error| Failure::failed(format_args!("{socket}: {error}"));
    let mut stream = UnixStream::connect(&args.socket).map_err(failed)?;
    let text = serde_json::to_string(&request).map_err(Failure::failed)?;
    stream
        .write_all(format!("{text}\n").as_bytes())
        .map_err(failed)?;
    let replies = Replies {
        lines: BufReader::new(stream),
        socket,
    };
    match (request, output) {
        (Request::Query { .. }, Some(target)) => replies.take_packets(&target),
        (Request::Events { .. }, _) => replies.print_events(),
        _ => {
            let mut replies = replies;
            put(&replies.next()?.0)
        }
    }
}

/// What the recorder answers.
struct Replies {
    lines: BufReader<UnixStream>,
    socket: String,
}

impl Replies {
    /// The next line, and what it says, unless it is a refusal.
    fn next(&mut self) -> Result<(String, Value), Failure> {
        let socket = &self.socket;
        let mut line = String::new();
        let read = self.lines.read_line(&mut line);
        let left = || Failure::failed(format_args!("{socket}: the recorder has gone"));
        match read {
            Ok(0) => return Err(left()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(left()),
            read => read.map_err(|error| Failure::failed(format_args!("{socket}: {error}")))?,
        };
        let reply: Value = serde_json::from_str(&line)
            .map_err(|error| Failure::failed(format_args!("{socket}: not an answer: {error}")))?;
        if reply["ok"] != true {
            let why = reply["error"].as_str().unwrap_or("refused");
            return Err(Failure::failed(why));
        }
        Ok((line, reply))
    }

    fn print_events(mut self) -> Result<ExitCode, Failure> {
        loop {
            let (line, reply) = self.next()?;
            put(&line)?;
            if reply["event"] == "end" {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    fn take_packets(mut self, target: &Target) -> Result<ExitCode, Failure> {
        // A refusal comes before the file is made.
        let (_, mut reply) = self.next()?;
        let mut file = target
            .open()
            .map_err(|error| Failure::failed(format_args!("{error:#}")))?;
        while let Some(data) = reply["data"].as_str() {
            let data = BASE64_STANDARD.decode(data).map_err(Failure::failed)?;
            match file.write_all(&data) {
                // Whoever read the answer has left.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    return Ok(ExitCode::SUCCESS);
                }
                written => written.map_err(|error| {
                    Failure::failed(format_args!("cannot write {target}: {error}"))
                })?,
            }
            (_, reply) = self.next()?;
        }
        let report = &reply["report"];
        for note in report["notes"].as_array().into_iter().flatten() {
            say(note.as_str().unwrap_or_default());
        }
        let packets = counted(report["packets"].as_u64().unwrap_or(0), "packet");
        let window = match (report["from"].as_str(), report["to"].as_str()) {
            (Some(from), Some(to)) => format!(" from {from} to {to}"),
            _ => String::new(),
        };
        let reasons = reply["reasons"].as_str().unwrap_or("unknown");
        say(&format!("{target}: {packets}{window}: {reasons}"));
        Ok(if report["verdict"] == "complete" {
            ExitCode::SUCCESS
        } else {
            Code::Incomplete.into()
        })
    }
}
