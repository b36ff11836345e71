//! `retroscope query`: writes recorded packets to a capture file, or counts them, with a verdict.
//! The packets come from a recorder over HTTP, or from a ring file, even of a dead recorder.

mod blocks;
mod remote;

use std::{
    fs::{self, File},
    io::{BufWriter, ErrorKind},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::ExitCode,
};

use retroscope_recorder::{Cancel, PacketId, Query, QueryError};
use retroscope_ring::Attached;
use serde_json::{Value, json};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use super::{
    capture_file::BUFFER_BYTES,
    remote::{RemoteArgs, printable},
    stretch::StretchArgs,
    target::OutputTarget,
};
use crate::{
    failure::{Code, Failure, put, put_json, say},
    units::{counted, size},
};

/// Write recorded packets to a capture file or a pipe, from a running recorder (--api) or from a
/// --ring-file.
///
/// Without a time range, write all complete history in the ring. The verdict says whether packets
/// are missing. It is printed, and the capture file has it in comments: on the last packet and in
/// the statistics of each interface.
#[derive(Debug, Default, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 no recorder there, refused, or the file not written, 2 wrong arguments, 3 done but packets are missing.\n\n\
                  What happened in the last 30 seconds:\n  \
                  retroscope query host 192.0.2.7 --last 30s -w - | tshark -r -"
)]
pub(crate) struct Args {
    /// Read this ring file and contact no recorder: the PATH of `record --ring-file`, or the
    /// /proc/PID/fd/N that `record --set ring-memfd=true` names
    #[arg(long, value_name = "PATH", conflicts_with_all = ["socket", "url"])]
    pub(super) ring_file: Option<PathBuf>,

    #[command(flatten)]
    pub(super) stretch: StretchArgs,

    /// Write the packets to FILE and overwrite an existing FILE; - is stdout
    #[arg(short, value_name = "FILE", required_unless_present = "count")]
    pub(super) write: Option<PathBuf>,

    /// Count the packets and write no file
    #[arg(long, conflicts_with_all = ["write", "follow", "headers"])]
    pub(super) count: bool,

    /// Keep writing new packets until --to, a limit, ^C, or the end of the recording
    #[arg(long, conflicts_with = "newest")]
    pub(super) follow: bool,

    /// Resume after the packet with this ID (epb_packetid) of an earlier answer, without
    /// duplicates; missing packets are reported. Repeatable, one ID for each producer
    #[arg(long, value_name = "ID", conflicts_with = "newest")]
    pub(super) after: Vec<PacketId>,

    /// Write at most N packets
    #[arg(short = 'c', long, value_name = "N")]
    pub(super) limit_packets: Option<u64>,

    /// Write at most SIZE of captured bytes, like 100MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) limit_bytes: Option<u64>,

    /// With a limit, write the last packets instead of the first
    #[arg(long)]
    pub(super) newest: bool,

    /// Truncate each packet to N bytes (snap length)
    #[arg(long = "snaplen", value_name = "N")]
    pub(super) headers: Option<NonZeroU32>,

    /// Select the connection with this Community ID (version 1, seed 0)
    #[arg(long, value_name = "ID")]
    pub(super) community_id: Option<String>,

    /// Select packets of this interface. Repeatable
    #[arg(short, long, value_name = "NAME")]
    pub(super) interface: Vec<String>,

    /// Print one JSON object instead of a sentence
    #[arg(long)]
    pub(super) json: bool,

    /// Select packets that match this pcap-filter(7) expression [default: all packets]
    #[arg(value_name = "FILTER")]
    pub(super) expression: Vec<String>,

    #[command(flatten)]
    pub(super) remote: RemoteArgs,
}

/// Result of a query.
#[derive(Debug)]
pub(super) enum QueryOutcome {
    /// The `report`, and if known the verdict in words as `reasons`.
    Answered(Value),
    /// The output is a pipe, and its reader closed it before the end.
    ReaderLeft,
}

impl Args {
    fn target(&self) -> Option<OutputTarget> {
        self.write.clone().map(OutputTarget::new)
    }

    /// The query for a ring file.
    fn query(&self) -> Result<Query, Failure> {
        let [from_ns, to_ns, last_ns] = self.stretch.ns()?;
        Ok(Query {
            expression: self.expression.join(" "),
            community_id: self.community_id.clone(),
            interfaces: self.interface.clone(),
            from_ns,
            to_ns,
            last_ns,
            limit_packets: self.limit_packets,
            limit_bytes: self.limit_bytes,
            newest: self.newest,
            headers: self.headers,
            follow: self.follow,
            after: self.after.clone(),
            ..Query::default()
        })
    }

    /// The query parameters for the API.
    fn parameters(&self) -> Result<Vec<(&'static str, String)>, Failure> {
        let mut all = self.stretch.parameters()?;
        let list = |items: Vec<String>| (!items.is_empty()).then(|| items.join(","));
        let yes = |is: bool| is.then(|| "true".to_owned());
        let more = [
            (
                "filter",
                Some(self.expression.join(" ")).filter(|text| !text.is_empty()),
            ),
            ("community_id", self.community_id.clone()),
            ("interfaces", list(self.interface.clone())),
            ("limit_packets", self.limit_packets.map(|n| n.to_string())),
            ("limit_bytes", self.limit_bytes.map(|n| n.to_string())),
            ("newest", yes(self.newest)),
            ("snaplen", self.headers.map(|n| n.to_string())),
            ("follow", yes(self.follow)),
            (
                "after",
                list(self.after.iter().map(PacketId::to_string).collect()),
            ),
            ("count", yes(self.count)),
        ];
        let given = more.into_iter();
        all.extend(given.filter_map(|(name, value)| Some((name, value?))));
        Ok(all)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let target = args.target();
    if let Some(target) = &target {
        target.refuse_stdout(args.json)?;
    }
    let cancel = Cancel::default();
    if args.follow {
        cancel_at_signals(&cancel)?;
    }
    let outcome = match &args.ring_file {
        Some(path) => read(args, path, &cancel)?,
        None => remote::run(args, &cancel, open)?,
    };
    match outcome {
        QueryOutcome::ReaderLeft => Ok(ExitCode::SUCCESS),
        QueryOutcome::Answered(told) => tell(args, target.as_ref(), &told),
    }
}

/// Sends the query to a recorder like [`run`]. The caller opens the file and prints the verdict.
pub(super) fn ask(
    args: &Args,
    cancel: &Cancel,
    open: impl FnOnce(&OutputTarget) -> Result<File, Failure>,
) -> Result<QueryOutcome, Failure> {
    remote::run(args, cancel, open)
}

fn open(target: &OutputTarget) -> Result<File, Failure> {
    let opened = target.open();
    opened.map_err(|error| Failure::failed(format_args!("{error:#}")))
}

/// Makes SIGINT (^C) and SIGTERM cancel a follow, which then ends with a verdict.
fn cancel_at_signals(cancel: &Cancel) -> Result<(), Failure> {
    let signals = Signals::new([SIGINT, SIGTERM]);
    let mut signals =
        signals.map_err(|error| Failure::failed(format_args!("cannot handle signals: {error}")))?;
    let cancel = cancel.clone();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if cancel.is_cancelled() {
                // A second signal has its default effect.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
            cancel.cancel();
        }
    });
    Ok(())
}

/// Reads a ring file.
fn read(args: &Args, path: &Path, cancel: &Cancel) -> Result<QueryOutcome, Failure> {
    let query = args.query()?;
    let attached = Attached::open(path).map_err(Failure::failed)?;
    let target = args.target();
    // Opening the ring file for writing would truncate it and destroy the evidence.
    let is_ring =
        |target: &&OutputTarget| fs::metadata(path).is_ok_and(|ring| target.is_file(&ring));
    if let Some(target) = target.as_ref().filter(is_ring) {
        return Err(Failure::usage(format_args!("{target} is the ring itself")));
    }
    let shown = target
        .as_ref()
        .map(OutputTarget::to_string)
        .unwrap_or_default();
    let failed = |error| match error {
        QueryError::Filter(error) => Failure::usage(error.render()),
        QueryError::Usage(error) => Failure::usage(error),
        QueryError::Output(error) => Failure::failed(format_args!("cannot write {shown}: {error}")),
        error => Failure::failed(error),
    };
    let answer = query.of(attached).map_err(failed)?.until(cancel);
    let report = match target {
        None => answer.count(),
        Some(target) => answer.write_to(BufWriter::with_capacity(BUFFER_BYTES, open(&target)?)),
    };
    let report = match report {
        // The reader of the output has closed the pipe.
        Err(QueryError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
            return Ok(QueryOutcome::ReaderLeft);
        }
        report => report.map_err(failed)?,
    };
    let reasons = report.reasons();
    Ok(QueryOutcome::Answered(
        json!({ "report": report, "reasons": reasons }),
    ))
}

/// Prints the verdict and returns the exit code.
fn tell(args: &Args, target: Option<&OutputTarget>, told: &Value) -> Result<ExitCode, Failure> {
    let report = &told["report"];
    for note in report["notes"].as_array().into_iter().flatten() {
        say(&printable(note.as_str().unwrap_or_default()));
    }
    let text = |value: &Value| value.as_str().map(printable);
    for dump in report["dumps"]["dumps"].as_array().into_iter().flatten() {
        let [id, from, to] = ["id", "from", "to"].map(|name| text(&dump[name]).unwrap_or_default());
        let packets = counted(dump["packets"].as_u64().unwrap_or(0), "packet");
        let why = text(&dump["error"]).map_or(String::new(), |why| format!(": {why}"));
        say(&format!("dump {id} from {from} to {to}: {packets}{why}"));
    }
    let verdict = text(&report["verdict"]).unwrap_or_else(|| "unknown".to_owned());
    if args.json {
        put_json(report)?;
    } else {
        let packets = report["packets"].as_u64();
        let packets = packets.map_or_else(|| "packets".to_owned(), |n| counted(n, "packet"));
        let window = match (text(&report["from"]), text(&report["to"])) {
            (Some(from), Some(to)) => format!(" from {from} to {to}"),
            _ => String::new(),
        };
        let reasons = text(&told["reasons"]).unwrap_or_else(|| verdict.clone());
        match target {
            Some(target) => say(&format!("{target}: {packets}{window}: {reasons}")),
            None => {
                put(&format!("{packets}{window}: {reasons}\n"))?;
            }
        }
    }
    Ok(if verdict == "complete" {
        ExitCode::SUCCESS
    } else {
        Code::Incomplete.into()
    })
}
