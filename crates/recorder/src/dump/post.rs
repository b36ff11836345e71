//! A command for each finished dump, run without a shell: its threads, which wait for it and end it when it takes too long. Nobody waits for them but
//! the end of the recording.
//!
//! The command has the identity and the privileges of these threads, which are started before the recorder gives up its own: so it may have another one.

use std::{
    error::Error,
    fmt, io,
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
    },
};
use serde::Serialize;

use super::report::DumpReport;
use crate::control::{
    events::{Events, RecorderEvent},
    lock,
};

/// Dumps that wait for their command.
const WAITING_MAX: usize = 1000;
/// How long a thread waits for a command before it looks whether all is to end at once.
const LOOK: Duration = Duration::from_millis(100);
/// How long a command that was asked to end has before it is ended.
const GRACE: Duration = Duration::from_secs(1);

/// What the threads do before all else: give up privileges, become another user.
pub type Identity = dyn Fn() -> Result<(), Box<dyn Error + Send + Sync>> + Send + Sync;

/// What is to be run, and how.
#[derive(Clone)]
pub struct PostConfig {
    /// The command.
    pub command: PostCommand,
    /// How long one may take.
    pub limit: Duration,
    /// How many run at once, at least 1.
    pub at_once: usize,
    /// Gives the threads, and so the command, the identity that they are to have. `None`: that of who starts the recorder.
    pub identity: Option<Arc<Identity>>,
}

impl fmt::Debug for PostConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostConfig")
            .field("command", &self.command)
            .field("limit", &self.limit)
            .field("at_once", &self.at_once)
            .finish_non_exhaustive()
    }
}

/// A program and its arguments. `{file}`, `{sidecar}`, `{id}`, `{rule}` and `{verdict}` in an argument stand for what a dump has; where no argument has
/// `{file}`, the paths of its captures are put behind the arguments.
///
/// A value never starts an option: if a value with a leading `-` begins an argument, the value gets
/// `./` in front. The text of `{rule}` is free text of an API admin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostCommand(Vec<String>);

impl PostCommand {
    /// Splits a text as a shell splits words, and does nothing else that a shell does: blanks divide, `'…'` and `"…"` hold together, `\` takes the next character as it is, but not within `'…'`.
    ///
    /// # Errors
    /// A sentence: there is no program, its name contains a placeholder other than `{verdict}`, or
    /// a quotation mark is not closed.
    pub fn new(text: &str) -> Result<Self, String> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quote = None;
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match (quote, c) {
                (Some(open), c) if c == open => quote = None,
                (None, '\'' | '"') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (None | Some('"'), '\\') => {
                    let next = chars.next().ok_or("the last '\\' stands before nothing")?;
                    word.get_or_insert_default().push(next);
                }
                (None, c) if c.is_whitespace() => words.extend(word.take()),
                (_, c) => word.get_or_insert_default().push(c),
            }
        }
        if let Some(open) = quote {
            return Err(format!("{open} is not closed"));
        }
        words.extend(word);
        if words.first().is_none_or(String::is_empty) {
            return Err("there is no program to run".to_owned());
        }
        // An admin of the API names rules: no such name may choose the program.
        let mut chosen = ["{file}", "{sidecar}", "{id}", "{rule}"].iter();
        if let Some(name) = chosen.find(|name| words[0].contains(**name)) {
            return Err(format!("the program's name cannot contain {name}"));
        }
        Ok(Self(words))
    }

    /// The words for a dump.
    fn words(&self, dump: &Finished) -> Vec<String> {
        let lossy = |path: &Path| path.to_string_lossy().into_owned();
        let first = dump
            .files
            .first()
            .map_or_else(String::new, |path| lossy(path));
        let values = [
            ("{file}", first),
            ("{sidecar}", lossy(&dump.sidecar)),
            ("{id}", dump.id.clone()),
            ("{rule}", dump.rule.clone()),
            ("{verdict}", dump.verdict.to_owned()),
        ];
        let fill = |word: &String| {
            let mut filled = String::new();
            let mut rest = word.as_str();
            while let Some(at) = rest.find('{') {
                filled.push_str(&rest[..at]);
                rest = &rest[at..];
                let value = values.iter().find(|(name, _)| rest.starts_with(name));
                let (name, value) = value.map_or(("{", "{"), |(name, value)| (name, value));
                if filled.is_empty() && value.starts_with('-') {
                    filled.push_str("./");
                }
                filled.push_str(value);
                rest = &rest[name.len()..];
            }
            filled + rest
        };
        let mut words: Vec<String> = self.0.iter().map(fill).collect();
        if !self.0.iter().any(|word| word.contains("{file}")) {
            words.extend(dump.files.iter().map(|path| lossy(path)));
        }
        words
    }
}

/// A dump that waits for its command.
#[derive(Debug)]
struct Finished {
    number: u64,
    id: String,
    rule: String,
    verdict: &'static str,
    trigger_time: String,
    files: Vec<PathBuf>,
    sidecar: PathBuf,
}

/// What became of a dump's command.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Posted {
    /// The dump's number, as in [`DumpReport::number`].
    #[serde(rename = "dump")]
    pub number: u64,
    /// Its name, as in [`DumpReport::id`].
    pub id: String,
    /// See there.
    #[serde(flatten)]
    pub outcome: PostOutcome,
    /// How long it took, s.
    pub seconds: f64,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum PostOutcome {
    /// With exit code 0.
    Done,
    /// With another one.
    Failed {
        /// 1 to 255.
        code: i32,
    },
    /// By a signal.
    Killed {
        /// Its number.
        signal: i32,
    },
    /// It took too long, or the recorder was to end at once, and it was ended with all of its process group.
    TimedOut,
    /// It could not be started.
    NotStarted {
        /// Why.
        error: String,
    },
    /// Too many dumps waited for theirs.
    Skipped,
}

/// How many commands ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PostCounts {
    /// Commands that ended with exit code 0.
    pub done: u64,
    /// Commands that ended with another exit code, or by a signal.
    pub failed: u64,
    /// Commands that were ended because they took too long or the recorder stopped at once.
    pub timed_out: u64,
    /// Commands that could not be started.
    pub not_started: u64,
    /// Commands that were not run because too many waited.
    pub skipped: u64,
    /// Dumps whose command waits or runs.
    pub to_be_done: u64,
}

/// How many commands ended how, for anyone.
#[derive(Debug, Clone)]
pub(crate) struct PostCounter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: PostConfig,
    is_aborted: AtomicBool,
    counts: Mutex<PostCounts>,
    to_be_done: AtomicU64,
}

/// The threads.
#[derive(Debug)]
pub(crate) struct Post {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Where finished dumps are given to them; they end when all of these are gone.
#[derive(Debug, Clone)]
pub(crate) struct PostQueue {
    shared: Arc<Shared>,
    queue: SyncSender<Finished>,
    events: Events,
}

impl Post {
    /// Starts the threads, and waits until they have their identity.
    pub(crate) fn start(
        config: &PostConfig,
        events: Events,
    ) -> Result<(Self, PostQueue), Box<dyn Error + Send + Sync>> {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let shared = Arc::new(Shared {
            config: config.clone(),
            is_aborted: AtomicBool::new(false),
            counts: Mutex::default(),
            to_be_done: AtomicU64::new(0),
        });
        let mut threads = Vec::new();
        for number in 0..config.at_once.max(1) {
            let (ready_tx, ready) = sync_channel(1);
            let (shared, waiting) = (Arc::clone(&shared), Arc::clone(&waiting));
            let events = events.clone();
            let thread = Builder::new().name(format!("dump-post-{number}"));
            threads.push(thread.spawn(move || {
                let identity = shared.config.identity.as_ref();
                let is_it = identity.map_or(Ok(()), |identity| identity());
                let is_good = is_it.is_ok();
                let _ = ready_tx.send(is_it);
                if is_good {
                    shared.run(&waiting, &events);
                }
            })?);
            ready.recv()??;
        }
        let sender = PostQueue {
            shared: Arc::clone(&shared),
            queue,
            events,
        };
        Ok((Self { shared, threads }, sender))
    }

    pub(crate) fn counter(&self) -> PostCounter {
        PostCounter(Arc::clone(&self.shared))
    }

    /// Waits for all commands. False: a thread panicked.
    pub(crate) fn join(self) -> bool {
        let joined: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        joined.iter().all(Result::is_ok)
    }
}

impl PostCounter {
    pub(crate) fn counts(&self) -> PostCounts {
        self.0.counts()
    }
}

impl PostQueue {
    /// A dump is finished. Never waits.
    pub(crate) fn submit(&self, report: &DumpReport) {
        let stem = report.id.rsplit('/').next().unwrap_or(&report.id);
        let named = |path: &PathBuf| {
            // A program may take what begins with '-' for an option.
            let is_odd = path.to_string_lossy().starts_with('-');
            if is_odd {
                Path::new(".").join(path)
            } else {
                path.clone()
            }
        };
        let files: Vec<_> = [&report.file]
            .into_iter()
            .chain(&report.more_files)
            .map(named)
            .collect();
        let finished = Finished {
            number: report.number,
            id: report.id.clone(),
            rule: report.rule.clone(),
            verdict: report.verdict.as_str(),
            trigger_time: report.trigger_time.clone(),
            sidecar: named(&report.file.with_file_name(format!("{stem}.json"))),
            files,
        };
        self.shared.to_be_done.fetch_add(1, Ordering::Relaxed);
        match self.queue.try_send(finished) {
            Ok(()) => {}
            Err(TrySendError::Full(dump) | TrySendError::Disconnected(dump)) => {
                let outcome = PostOutcome::Skipped;
                self.shared
                    .tell(&self.events, &dump, outcome, Duration::ZERO);
            }
        }
    }

    /// Those that run are ended at once, and no more is run.
    pub(crate) fn abort(&self) {
        self.shared.is_aborted.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn counts(&self) -> PostCounts {
        PostCounts {
            to_be_done: self.to_be_done.load(Ordering::Relaxed),
            ..*lock(&self.counts)
        }
    }

    fn run(&self, waiting: &Mutex<Receiver<Finished>>, events: &Events) {
        loop {
            // Whoever waits for the next one waits with the lock; the others wait for it.
            let next = lock(waiting).recv();
            let Ok(dump) = next else {
                return;
            };
            let since = Instant::now();
            let outcome = if self.is_aborted.load(Ordering::SeqCst) {
                PostOutcome::Skipped
            } else {
                self.run_for(&dump)
            };
            self.tell(events, &dump, outcome, since.elapsed());
        }
    }

    fn tell(&self, events: &Events, dump: &Finished, outcome: PostOutcome, took: Duration) {
        let mut counts = lock(&self.counts);
        *match outcome {
            PostOutcome::Done => &mut counts.done,
            PostOutcome::Failed { .. } | PostOutcome::Killed { .. } => &mut counts.failed,
            PostOutcome::TimedOut => &mut counts.timed_out,
            PostOutcome::NotStarted { .. } => &mut counts.not_started,
            PostOutcome::Skipped => &mut counts.skipped,
        } += 1;
        drop(counts);
        self.to_be_done.fetch_sub(1, Ordering::Relaxed);
        events.tell(RecorderEvent::Posted(Posted {
            number: dump.number,
            id: dump.id.clone(),
            outcome,
            seconds: took.as_secs_f64(),
        }));
    }

    fn run_for(&self, dump: &Finished) -> PostOutcome {
        let ended = self.start(dump).and_then(|mut child| {
            let waited = self.wait(&child);
            if !matches!(waited, Ok(true)) {
                // Until its leader is reaped, nobody else can have the group's number.
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            }
            let status = child.wait()?;
            waited.map(|is_ended| is_ended.then_some(status))
        });
        match ended {
            Ok(Some(status)) => outcome(status),
            Ok(None) => PostOutcome::TimedOut,
            Err(error) => PostOutcome::NotStarted {
                error: error.to_string(),
            },
        }
    }

    /// What the command prints goes to stderr: stdout may carry data of ours.
    fn start(&self, dump: &Finished) -> io::Result<Child> {
        let words = self.config.command.words(dump);
        let stderr = || io::stderr().as_fd().try_clone_to_owned().map(Stdio::from);
        Command::new(&words[0])
            .args(&words[1..])
            .env("RETROSCOPE_ID", &dump.id)
            .env(
                "RETROSCOPE_FILE",
                dump.files.first().map_or(Path::new(""), PathBuf::as_path),
            )
            .env("RETROSCOPE_SIDECAR", &dump.sidecar)
            .env("RETROSCOPE_RULE", &dump.rule)
            .env("RETROSCOPE_VERDICT", dump.verdict)
            .env("RETROSCOPE_NUMBER", dump.number.to_string())
            .env("RETROSCOPE_TRIGGER_TIME", &dump.trigger_time)
            // It does not speak for the service: sd_notify(3), sd_watchdog_enabled(3).
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .stdout(stderr()?)
            .stderr(stderr()?)
            .process_group(0)
            .spawn()
    }

    /// Waits until it has ended by itself, and reaps nothing. False: it was asked to end, and what is left of its group is to be ended.
    fn wait(&self, child: &Child) -> io::Result<bool> {
        let since = Instant::now();
        while since.elapsed() < self.config.limit && !self.is_aborted.load(Ordering::SeqCst) {
            let left = self.config.limit.saturating_sub(since.elapsed());
            if wait_for(child, left.min(LOOK))? {
                return Ok(true);
            }
        }
        let _ = kill_process_group(Pid::from_child(child), Signal::TERM);
        let since = Instant::now();
        while since.elapsed() < GRACE && !wait_for(child, LOOK)? {}
        Ok(false)
    }
}

/// Waits for the end of a child for some time at most, and does not reap it. Whether it has ended.
fn wait_for(child: &Child, time: Duration) -> io::Result<bool> {
    let pid = Pid::from_child(child);
    if let Ok(ended) = pidfd_open(pid, PidfdFlags::empty()) {
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout));
    } else {
        // Before Linux 5.3.
        std::thread::park_timeout(time.min(Duration::from_millis(20)));
    }
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(pid), look)?.is_some())
}

fn outcome(status: ExitStatus) -> PostOutcome {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => PostOutcome::Done,
        (Some(code), _) => PostOutcome::Failed { code },
        (None, signal) => PostOutcome::Killed {
            signal: signal.unwrap_or(0),
        },
    }
}

impl fmt::Display for PostOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Failed { code } => write!(f, "failed with exit code {code}"),
            Self::Killed { signal } => write!(f, "killed by signal {signal}"),
            Self::TimedOut => f.write_str("ended, because it took too long or all was to end"),
            Self::NotStarted { error } => write!(f, "not started: {error}"),
            Self::Skipped => f.write_str("not run: too many dumps wait, or all was to end"),
        }
    }
}

#[cfg(test)]
mod tests;
