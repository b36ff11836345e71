//! `retroscope flows`: counts the flows of packets.

use std::process::ExitCode;

use retroscope_flow::TrackerConfig;
use retroscope_recorder::Config;

use crate::{
    commands::record::{
        Assignment, FlowsFlags, Loaded, RecordTask, RefusedConfig, Settings, TOP_FLOWS_MAX,
        TopArgs, record,
    },
    eve::EveTarget,
    failure::{Failure, say},
};

/// Default ring size of a command without dumps. The ring only buffers packets that are not
/// analyzed yet.
const RING_BYTES: u64 = 256 << 20;

/// Count the flows of interfaces or capture files, and write a line of EVE JSON for each when it
/// ends.
///
/// SIGINT or SIGTERM end all flows and stop, a second one stops at once; SIGUSR2 prints statistics;
/// SIGHUP opens the file of --eve again, and stops where stdin or stderr is a terminal.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 done but flows or lines were lost."
)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: FlowsFlags,

    #[command(flatten)]
    top: TopArgs,

    /// Count only packets that match this pcap-filter(7) expression, like -f
    #[arg(value_name = "FILTER", conflicts_with_all = ["filter", "filter-file"])]
    expression: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let settings = args.settings()?;
    let has_top = args.top.rows.is_some();
    if has_top {
        refuse_with_top(&settings)?;
    }
    let mut notes = Vec::new();
    let input = settings.input(|_| RING_BYTES, &mut notes)?;
    if !settings.quiet {
        notes.iter().for_each(|note| say(note));
    }
    let config = Config {
        flows: Some(TrackerConfig {
            top: has_top.then_some(TOP_FLOWS_MAX),
            ..settings.tracker()
        }),
        ..input
    };
    let target = settings.eve.clone().map(|target| target.0);
    let target = target.or((!has_top).then_some(EveTarget::Stdout));
    let task = RecordTask {
        settings: &settings,
        config: &config,
        eve: target.map(|target| (target, settings.eve_options(config.offline))),
        top: has_top.then_some(args.top),
        loaded: None,
    };
    record(&task)
}

impl Args {
    /// The settings that result from the arguments.
    fn settings(&self) -> Result<Settings, Failure> {
        let mut flags = self.flags.0.clone();
        if !self.expression.is_empty() {
            let text = self.expression.join(" ");
            flags.push(Assignment::new("FILTER", "filter", text));
        }
        let loaded = Loaded::new(None, &flags).map_err(RefusedConfig::failure)?;
        Ok(loaded.settings)
    }
}

/// Refuses options that contradict --top.
fn refuse_with_top(settings: &Settings) -> Result<(), Failure> {
    if !settings.read.is_empty() {
        return Err(Failure::usage(
            "--top shows live traffic, of -i IFACE: for -r FILE leave it out, and sort the lines",
        ));
    }
    if settings.eve.as_deref() == Some(&EveTarget::Stdout) {
        return Err(Failure::usage(
            "--top and --eve - both write stdout: say --eve FILE",
        ));
    }
    Ok(())
}
