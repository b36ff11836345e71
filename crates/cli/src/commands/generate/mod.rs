//! `retroscope generate`: writes FlowScope's experiment traffic to a file, sends it on a live
//! interface, or both.
//!
//! Without `-i`, the file depends only on the arguments, unless a signal ends the file: its first
//! packet has the time [`FILE_START_NS`]. When sending, the generator's queue sets the pace. With
//! `-w` and `-i`, the file contains the sent packets. Their timestamps are the real-time clock,
//! read before each group of at most [`SEND_FRAMES`] packets is sent.

mod generated;
mod output;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retroscope_capture::{
    Burst, Queue, QueueStatus, Source,
    send::{LiveSender, in_network_namespace_or_loopback},
};
use retroscope_generate::{Generator, GeneratorConfig, GeneratorSource, Rate};
use retroscope_recorder::{Clock, SystemClock};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use generated::Generated;
use output::{GenerateEnd, GenerateOutput};

use crate::{
    commands::program,
    failure::{Code, Failure, say},
    units::{self, counted},
};

/// Timestamp of the first packet of a file: 2026-01-01T00:00:00Z in ns since the UNIX epoch.
const FILE_START_NS: i64 = 1_767_225_600 * 1_000_000_000;
/// Default rate of a file.
const FILE_RATE: Rate = Rate::FramesPerSecond(1_000_000);
/// Maximum number of packets that are sent together and share a timestamp in the file.
const SEND_FRAMES: usize = 64;
/// Maximum time for which [`drain`] waits for frames before it checks the stop flag.
const FRAME_WAIT: Duration = Duration::from_millis(100);

/// Generate test traffic: UDP flows within 10.0.0.0/16, and with --trigger-after one trigger packet
/// to UDP port 60000.
///
/// Each payload contains a sequence number, so a check finds every gap. The trigger packet has the
/// addresses and the source port of the first flow. `record -i generate:flows=100,rate=500kpps`
/// generates such traffic without an interface.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Generate N flows, from 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 1000)]
    flows: u32,
    /// Make each frame BYTES long, from 60 to 9014, without the frame check sequence
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    size: u16,
    /// Generate at this rate, like 500kpps, 1Mpps or 1Gbit [default: 1Mpps in a file, full speed on
    /// an interface]
    #[arg(long)]
    rate: Option<Rate>,
    /// Derive the packets from this seed: the same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Send the trigger packet DURATION after the start, like 5s
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    trigger_after: Option<Duration>,
    /// Stop after N packets
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
    /// Stop after this time, like 10s
    #[arg(long, value_parser = units::duration)]
    duration: Option<Duration>,
    /// Write the packets to FILE: pcap with nanosecond timestamps, or pcapng if the name ends with
    /// .pcapng; - is stdout
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Send the packets on this interface. With -w, FILE gets the sent packets with the times at
    /// which they were sent
    #[arg(short, long)]
    interface: Option<String>,
    /// Allow sending on an interface of the real network of this machine
    #[arg(long)]
    yes: bool,
    /// Print a summary as one line of JSON on stdout
    #[arg(long)]
    json: bool,
    /// Print no summary on stderr
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let config = config(&args)?;
    let stop = stop_flag()?;
    let mut generated = Generated::default();
    let result = match &args.interface {
        Some(interface) => send(&args, &config, interface, &stop, &mut generated),
        None => write(&args, &config, &stop, &mut generated),
    };
    if let Err(GenerateEnd::Failure(failure)) = result {
        return Err(failure);
    }
    if !args.quiet {
        say(&generated.line(args.interface.as_deref(), args.trigger_after));
    }
    if args.json {
        // Ignore errors: the reader of stdout may have closed the pipe.
        let _ = writeln!(
            io::stdout(),
            "{}",
            generated.json(args.interface.as_deref(), args.write.as_deref())
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks the arguments against each other.
fn config(args: &Args) -> Result<GeneratorConfig, Failure> {
    let to_file_only = args.interface.is_none();
    if args.write.is_none() && to_file_only {
        return Err(Failure::usage("say where to: -w FILE or -i INTERFACE"));
    }
    if args.write.is_some() && args.count.is_none() && args.duration.is_none() {
        return Err(Failure::usage(
            "a file needs an end: add -c 1000000 or --duration 10s",
        ));
    }
    if args.json && args.write.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage(
            "--json and -w - both write to stdout: name a file",
        ));
    }
    let config = GeneratorConfig {
        flows: args.flows,
        size: args.size,
        rate: args.rate.or(to_file_only.then_some(FILE_RATE)),
        seed: args.seed,
        trigger_after: args.trigger_after,
        count: args.count,
        duration: args.duration,
    };
    config.check().map_err(Failure::usage)?;
    if let Some(interface) = &args.interface
        && !args.yes
        && !in_network_namespace_or_loopback(interface)
    {
        return Err(Failure::usage(format!(
            "{interface} may belong to a real network: add --yes to send there, or use a network namespace or lo"
        )));
    }
    Ok(config)
}

/// Flag that INT and TERM set. A second signal ends the program at once.
fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, Code::Failed as i32, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
    }
    Ok(stop)
}

/// Writes the schedule to a file.
fn write(
    args: &Args,
    config: &GeneratorConfig,
    stop: &AtomicBool,
    generated: &mut Generated,
) -> Result<(), GenerateEnd> {
    let mut generator = Generator::new(config)?;
    let mut output = GenerateOutput::open(args.write.as_deref(), "generate", generated)?;
    while let Some((offset_ns, frame)) = generator.next_frame() {
        output.record(FILE_START_NS.saturating_add(offset_ns), frame)?;
        if output.generated.packets.is_multiple_of(1024) && stop.load(Ordering::Relaxed) {
            break;
        }
    }
    output.finish()
}

/// Sends the schedule on an interface in real time.
fn send(
    args: &Args,
    config: &GeneratorConfig,
    interface: &str,
    stop: &AtomicBool,
    generated: &mut Generated,
) -> Result<(), GenerateEnd> {
    let source = GeneratorSource::new(interface, config.clone());
    let mut sender = LiveSender::open(interface, &program())?;
    let mut output = GenerateOutput::open(args.write.as_deref(), interface, generated)?;
    let clock = SystemClock;
    let start_ns = clock.mono_ns();
    for mut queue in Box::new(source).open(1)? {
        drain(queue.as_mut(), &mut sender, &mut output, &clock, stop)?;
    }
    let engine = if sender.uses_xdp() {
        "af-xdp"
    } else {
        "af-packet"
    };
    output.generated.engine = Some(engine);
    output.generated.sending_ns = Some(clock.mono_ns() - start_ns);
    output.generated.retries = Some(sender.retries);
    output.finish()
}

fn drain(
    queue: &mut dyn Queue,
    sender: &mut LiveSender,
    output: &mut GenerateOutput<'_>,
    clock: &SystemClock,
    stop: &AtomicBool,
) -> Result<(), GenerateEnd> {
    loop {
        if stop.load(Ordering::Relaxed) {
            queue.stop();
        }
        match queue.next(FRAME_WAIT)? {
            QueueStatus::End => return Ok(()),
            QueueStatus::Idle => continue,
            QueueStatus::Frames => {}
        }
        let Burst { memory, frames } = queue.burst();
        for frames in frames.chunks(SEND_FRAMES) {
            let burst = Burst { memory, frames };
            let time_ns = clock.now().wall_ns;
            let sent = sender.send(burst).map_err(|error| match sender.sent {
                0 => Failure::failed(error),
                sent => Failure::failed(format!("{error} (after {})", counted(sent, "packet"))),
            });
            sent.map_err(GenerateEnd::Failure)?;
            for frame in burst.iter() {
                output.record(time_ns, frame.data)?;
            }
        }
    }
}
