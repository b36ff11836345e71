//! `retroscope record`: starts a recorder from arguments and shows its state to the user.

mod alerts;
mod api_args;
mod args;
mod config;
mod engine;
mod eve_thread;
mod file_args;
mod flow_args;
mod input;
mod live;
mod screen;
mod service;
mod signals;
mod summary;
mod top;

use std::{
    collections::BTreeSet,
    io,
    process::ExitCode,
    sync::{
        Arc,
        atomic::AtomicBool,
        mpsc::{RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use retroscope_api::{BoundApi, Dissector, Notifier, Reload, Server, Services};
use retroscope_capture::{
    CpuTurns, Source, SourceError,
    file::FileSource,
    pcap_over_ip::{TcpSource, is_address},
};
use retroscope_generate::GeneratorSource;
use retroscope_pcapfile::TextAllowance;
use retroscope_recorder::{
    Config, FlowReceiver, Recorder, RecorderSummary, StartError, SystemClock,
};
use retroscope_ring::RingError;
use retroscope_script::ScriptError;

use alerts::{AlertThreads, BoundAlerts};
pub(crate) use args::Args;
pub(crate) use config::{
    Assignment, FlowsFlags, Loaded, RefusedConfig, Settings, is_of_flows, keep, key_of, schema,
};
use config::{Depth, Reloader};
#[cfg(test)]
pub(crate) use config::{Key, Setting};
use eve_thread::EveThread;
use screen::RecordScreen;
use service::Service;
use top::Top;
pub(crate) use top::{FLOWS_MAX as TOP_FLOWS_MAX, TopArgs};

use crate::{
    commands::{program, source_failure, target::is_standard_stream},
    eve::{EveTarget, EveWriter, Options},
    failure::{Failure, put, say},
    privileges::Privileges,
};
use rustix::{io::Errno, thread::CapabilitySet};

/// Maximum time for which [`watch`] waits for an event before it checks signals and the screen.
const EVENT_WAIT: Duration = Duration::from_millis(250);

/// After a second stop signal, time for threads to end.
const ABORT_WAIT: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.list {
        return summary::print_interfaces();
    }
    args.refuse_expression()?;
    let loaded =
        Loaded::new(args.config.as_deref(), &args.flags.0).map_err(RefusedConfig::failure)?;
    if args.print_config {
        return put(&loaded.printed());
    }
    if args.check_config {
        loaded.check_only().map_err(RefusedConfig::failure)?;
        return Ok(ExitCode::SUCCESS);
    }
    if loaded.has_file() {
        loaded.check(Depth::Start).map_err(RefusedConfig::failure)?;
    }
    record_as(&loaded)
}

fn record_as(loaded: &Loaded) -> Result<ExitCode, Failure> {
    let settings = &loaded.settings;
    let (mut config, notes) = loaded.resolve()?;
    if let Some(post) = &mut config.post {
        // Without `post-user` the commands run as the user of `-Z`, or as the user who started the
        // recorder.
        let (option, user) = match &settings.post_user {
            Some(user) => ("post-user", Some(user)),
            None => ("-Z", settings.relinquish_privileges.as_ref()),
        };
        let who = Privileges::new(option, user.map(String::as_str), None);
        let who = who.map_err(|error| Failure::usage(format!("{error:#}")))?;
        post.identity = Some(Arc::new(move || Ok(who.give_up_all()?)));
    }
    if !settings.quiet {
        notes.iter().for_each(|note| say(note));
    }
    let options = || settings.eve_options(config.offline);
    record(&RecordTask {
        settings,
        config: &config,
        eve: settings.eve.clone().map(|target| (target.0, options())),
        top: None,
        loaded: Some(loaded),
    })
}

/// Description of a recording.
#[derive(Debug)]
pub(crate) struct RecordTask<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) config: &'a Config,
    /// Destination of flow and event lines.
    pub(crate) eve: Option<(EveTarget, Options)>,
    /// Options of the table of the largest flows.
    pub(crate) top: Option<TopArgs>,
    /// Configuration, for a reload of its file. `None`: a reload is not possible.
    pub(crate) loaded: Option<&'a Loaded>,
}

/// Records until the sources end, a limit such as `count` is reached, or somebody stops the
/// recording.
pub(crate) fn record(task: &RecordTask<'_>) -> Result<ExitCode, Failure> {
    let (settings, config) = (task.settings, task.config);
    let directory = config.directory.as_deref();
    let privileges = Privileges::new("-Z", settings.relinquish_privileges.as_deref(), directory);
    let privileges = privileges.map_err(|error| Failure::usage(format!("{error:#}")))?;
    let signals = signals::Signals::install(privileges.clone())
        .map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
    let mut service = Service::from_environment();
    let tell = Notifier(Arc::new(say));
    let api = settings.api.config(privileges.owner())?;
    let api = api.map(|config| BoundApi::new(&config, &tell)).transpose();
    let api = api.map_err(|why| Failure::failed(with_advice(why)))?;
    let alerts = (!config.offline && !settings.alerts.from.is_empty())
        .then(|| BoundAlerts::new(&settings.alerts, privileges.owner()));
    let alerts = alerts.transpose().map_err(Failure::failed)?;
    let is_file = matches!(task.eve, Some((EveTarget::File(_), _)));
    let writer = task.eve.clone().map(|(target, options)| {
        let owner = privileges.owner();
        EveWriter::open(target, Options { owner, ..options }, Box::new(say))
    });
    let writer = writer.transpose().map_err(Failure::failed)?;
    let mut screen = RecordScreen::new(settings.quiet, config.directory.is_some());
    let shown = (&mut screen, &mut service);
    let mut recorder = start(settings, config, &signals, &privileges, shown)?;
    let reloader = task.loaded.and_then(|loaded| {
        let (handle, notify) = (recorder.handle(), service.notify().clone());
        Reloader::new(loaded, config.clone(), handle, notify).map(Arc::new)
    });
    let api = api.map(|bound| {
        let urls = bound.urls();
        let give_up = || Privileges::give_up_rest().map_err(|error| error.to_string());
        let (handle, stop) = (recorder.handle(), signals.stop_flag());
        let reload = reloader
            .clone()
            .map(|it| Reload(Arc::new(move || it.reload())));
        let services = Services {
            reload,
            doctor: super::doctor::of_recorder(),
            dissector: Dissector::default(),
        };
        let server = Server::start(bound, handle, stop, services, give_up)?;
        let mut told = |url: &String| screen.line(&format!("HTTP at {url}"));
        urls.iter().for_each(&mut told);
        Ok::<_, io::Error>(server)
    });
    let api = api.transpose();
    let api = api.map_err(|error| Failure::failed(format_args!("--api: {error}")))?;
    let mut flows = recorder.take_flows();
    let slices = flows.as_mut().and_then(FlowReceiver::take_slices);
    let eve = writer.zip(flows).map(|(writer, flows)| {
        let of_input = (config.offline, is_file);
        EveThread::start(writer, flows, recorder.handle(), of_input)
    });
    let eve = eve.transpose().map_err(Failure::failed)?;
    let top = task.top.zip(slices);
    let top = top.map(|(args, slices)| Top::start(args, slices, names(settings)));
    let top = top.transpose().map_err(Failure::failed)?;
    let alerts = alerts.map(|bound| AlertThreads::start(bound, recorder.handle()));
    let alerts = alerts.transpose().map_err(Failure::failed)?;
    let reload = reloader.map(Reloader::serve);
    let reload = reload.transpose().map_err(Failure::failed)?;
    let shown = (screen, service);
    let rest = (eve, top, reload);
    let result = watch(recorder, settings, &signals, shown, rest, api.as_ref());
    alerts.into_iter().for_each(AlertThreads::end);
    api.into_iter()
        .for_each(|api| api.end(|| signals.aborted()));
    result
}

/// Adds advice to an error of `--api`: if the user may not create the unix socket, suggests another
/// directory.
fn with_advice(mut why: String) -> String {
    let is_refused = why.ends_with(&io::Error::from(Errno::ACCESS).to_string());
    if is_refused && why.contains(" unix:") {
        why.push_str(
            ": choose a directory that you may write, such as $XDG_RUNTIME_DIR/retroscope.sock",
        );
    }
    why
}

fn start(
    args: &Settings,
    config: &Config,
    signals: &signals::Signals,
    privileges: &Privileges,
    (screen, service): (&mut RecordScreen, &mut Service),
) -> Result<Recorder, Failure> {
    privileges.prepare_directory().map_err(Failure::failed)?;
    let mut left = CapabilitySet::empty();
    let mut opened = || {
        signals.hold();
        left = privileges.give_up()?;
        #[cfg(feature = "dpdk")]
        give_up_on_dpdks_thread(privileges)?;
        Ok(())
    };
    let stop = signals.stop_flag();
    let cpus = args.cpu_turns();
    let sources = || open_sources(args, &cpus, &stop);
    let mut progress = |done, total| {
        screen.filling(done, total);
        service.filling(done, total);
    };
    let result = Recorder::start(
        config,
        &sources,
        &args.read,
        Arc::new(SystemClock),
        Some(&mut progress),
        &mut opened,
    );
    if args.json && matches!(result, Err(StartError::Source(_))) {
        // If a source fails to open, such as a damaged file, `--json` still prints an empty
        // summary.
        summary::print_json(&RecorderSummary::default(), None)?;
    }
    let mut recorder = result.map_err(|error| refused(&error))?;
    // Connect first: a program that reads the start message may send a signal at once.
    signals.connect(recorder.handle(), config.directory.is_some());
    screen.started(&names(args), &engine(args), recorder.ring());
    service.recording();
    if args.verbose
        && left.contains(CapabilitySet::DAC_OVERRIDE)
        && let Some(directory) = &config.directory
    {
        let directory = directory.display();
        screen.line(&format!(
            "keeping CAP_DAC_OVERRIDE: {directory} cannot be written to without it"
        ));
    }
    for notice in recorder.take_notices() {
        screen.line(&notice);
    }
    Ok(recorder)
}

/// Drops the privileges of DPDK's interrupt thread, which exists since the sources were opened.
/// That thread writes no dumps.
#[cfg(feature = "dpdk")]
fn give_up_on_dpdks_thread(
    privileges: &Privileges,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let privileges = privileges.clone();
    if let Some(outcome) = retroscope_dpdk::on_own_thread(move || privileges.give_up_all())? {
        outcome?;
    }
    Ok(())
}

/// Maps an error of the start to an exit code. Arguments that cannot be fulfilled as they are:
/// 2. If this machine lacks or forbids something, if a file is damaged, or if another file or
/// recorder occupies the ring file: 1.
fn refused(error: &StartError) -> Failure {
    match error {
        StartError::Ring(
            RingError::File { .. }
            | RingError::FileHeld { .. }
            | RingError::FileForeign { .. }
            | RingError::FilePages { .. }
            | RingError::System { .. },
        )
        | StartError::Script(ScriptError::Thread(_) | ScriptError::Setup { .. }) => {
            Failure::failed(error)
        }
        StartError::Expression(_)
        | StartError::Ring(_)
        | StartError::Script(_)
        | StartError::Names(_)
        | StartError::Analyzers(_)
        | StartError::Threads(_) => Failure::usage(error),
        StartError::Source(error) => source_failure(error),
        _ => Failure::failed(error),
    }
}

/// Prints the recorder's events until its threads have ended, or hang after a second stop signal.
fn watch(
    recorder: Recorder,
    args: &Settings,
    signals: &signals::Signals,
    (mut screen, mut service): (RecordScreen, Service),
    (eve, mut top, reload): (Option<EveThread>, Option<Top>, Option<SyncSender<()>>),
    api: Option<&Server>,
) -> Result<ExitCode, Failure> {
    let mut aborted_at = None;
    loop {
        match recorder.event(EVENT_WAIT) {
            Ok(event) => screen.show(&event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if signals.aborted() {
            let since = *aborted_at.get_or_insert_with(Instant::now);
            if since.elapsed() > ABORT_WAIT {
                // A thread hangs in the system, for example on a dead disk, and ends with the
                // process.
                let ring = recorder.ring().clone();
                drop(top);
                return summary::finish(args, &recorder.abandon(), &ring, (None, true));
            }
        }
        if signals.take_statistics() {
            screen.statistics(&recorder.status());
        }
        if let Some(eve) = &eve
            && eve.has_left()
        {
            // The reader of stdout left, which ends the recording without an error.
            recorder.handle().stop();
        }
        if signals.take_reload() {
            if let Some(eve) = &eve {
                eve.rotate();
            }
            let refreshes = api.is_some_and(Server::refresh);
            match &reload {
                // A reload that is already queued will read the current file too.
                Some(reload) => _ = reload.try_send(()),
                None if eve.is_none() && !refreshes => {
                    screen.line("SIGHUP: there is no --config to read again, nor --tokens, api.tls-cert or --eve; the recording goes on");
                }
                None => {}
            }
            if reload.is_none() {
                // The service manager waits for both messages.
                service.notify().reloading();
                service.notify().ready();
            }
        }
        if let Some(sentence) = service.tick(&recorder) {
            screen.line(&sentence);
        }
        screen.end_period();
        match &mut top {
            Some(top) => {
                if !top.tick(&recorder) {
                    recorder.handle().stop();
                }
            }
            None => screen.tick(&recorder, service.is_on()),
        }
    }
    service.stopping();
    drop(top);
    let ring = recorder.ring().clone();
    let summary = recorder.join();
    screen.end(&summary);
    let eve = match eve.map(EveThread::join) {
        Some(None) => {
            return Err(Failure::failed(
                "the thread that writes EVE failed: please report this bug with the text above",
            ));
        }
        eve => eve.flatten(),
    };
    summary::finish(args, &summary, &ring, (eve, signals.aborted()))
}

/// Names of the recorded sources.
fn names(args: &Settings) -> String {
    let files = args.read.iter().map(|path| path.display().to_string());
    let names = args.interface.iter().cloned().chain(files);
    names.collect::<Vec<_>>().join(", ")
}

/// Names of the engines and source kinds of the recording, each once.
fn engine(args: &Settings) -> String {
    if !args.read.is_empty() {
        return "file".to_owned();
    }
    let engine_of = |name: &String| match name {
        name if is_generator(name) => "generator",
        name if is_address(name) => "pcap over IP",
        name => args.engine_of(name).as_str(),
    };
    let engines: BTreeSet<&str> = args.interface.iter().map(engine_of).collect();
    Vec::from_iter(engines).join(" and ")
}

fn is_generator(name: &str) -> bool {
    name == "generate" || name.starts_with("generate:")
}

/// Whether an engine captures this source. Generators and streams need no engine.
fn has_engine(name: &str) -> bool {
    !is_generator(name) && !is_address(name)
}

/// Creates all sources without opening a source. The capture threads of all network interfaces take
/// their CPUs from `cpus`.
fn open_sources(
    args: &Settings,
    cpus: &CpuTurns,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Box<dyn Source>>, SourceError> {
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let texts = TextAllowance::default();
    for path in args.read.iter() {
        let source = if is_standard_stream(path) {
            FileSource::stdin()
        } else {
            FileSource::new(path)
        };
        let source = source.stopped_by(Arc::clone(stop)).sharing(texts.clone());
        sources.push(Box::new(source));
    }
    let mut interfaces = args.interface.to_vec();
    interfaces.retain(|name| has_engine(name));
    for name in args.interface.iter() {
        if is_generator(name) {
            sources.push(Box::new(GeneratorSource::parse(name)?));
        } else if is_address(name) {
            sources.push(Box::new(TcpSource::parse(name)?.sharing(texts.clone())));
        } else {
            let config = args.live(name, cpus.clone(), program());
            sources.push(args.source(config, &interfaces)?);
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_a_user_has_another_directory() {
        let advice = |why: &str| with_advice(why.to_owned()).contains("$XDG_RUNTIME_DIR");
        let refused = io::Error::from(Errno::ACCESS);
        assert!(advice(&format!("--api unix:/run/r.sock: {refused}")));
        assert!(!advice(&format!("--api 127.0.0.1:80: {refused}")));
        let missing = io::Error::from(Errno::NOENT);
        assert!(!advice(&format!("--api unix:/run/r/s: {missing}")));
    }
}
