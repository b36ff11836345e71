//! Runs a command for finished dumps, without a shell, on separate threads.
//!
//! The threads start before the recorder gives up its privileges, so a command may have another
//! identity than the recorder.

use std::{
    error::Error,
    fmt, io,
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
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

/// Number of dumps that may wait for their command.
const WAITING_MAX: usize = 1000;
/// Interval at which a thread that waits for a command checks whether the recording is aborted.
const LOOK: Duration = Duration::from_millis(100);
/// Time between SIGTERM and SIGKILL for a command that does not end.
const GRACE: Duration = Duration::from_secs(1);

/// A function that the threads run first: to give up privileges, and to become another user.
pub type Identity = dyn Fn() -> Result<(), Box<dyn Error + Send + Sync>> + Send + Sync;

/// The command for finished dumps, and its limits.
#[derive(Clone)]
pub struct PostConfig {
    /// The program and its arguments.
    pub command: PostCommand,
    /// Time limit of a command.
    pub limit: Duration,
    /// Number of commands that may run at once, at least 1.
    pub at_once: usize,
    /// Gives the threads, and so the commands, their identity. `None`: the identity of the user who
    /// starts the recorder.
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

/// A program and its arguments. In an argument, `{file}`, `{sidecar}`, `{id}`, `{rule}` and
/// `{verdict}` are placeholders for values of the dump. If no argument has `{file}`, the paths of
/// the dump's captures are appended to the arguments.
///
/// A value never starts an option: if a value with a leading `-` begins an argument, the value gets
/// `./` in front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostCommand(Vec<String>);

impl PostCommand {
    /// Splits a text into words much as a shell does, and does nothing else that a shell does.
    /// Blanks separate words, `'…'` and `"…"` group characters. A `\` makes the next character
    /// literal, except within `'…'`.
    ///
    /// # Errors
    /// A sentence: there is no program, its name contains a placeholder other than `{verdict}`, a
    /// quotation mark is not closed, or the text ends after a `\`.
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
                    let next = chars.next().ok_or("no character follows the last '\\'")?;
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

    fn words(&self, dump: &PostJob) -> Vec<String> {
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
struct PostJob {
    number: u64,
    id: String,
    rule: String,
    verdict: &'static str,
    trigger_time: String,
    files: Vec<PathBuf>,
    sidecar: PathBuf,
}

/// The result of a dump's command.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PostResult {
    /// The dump's number, as in [`DumpReport::number`].
    #[serde(rename = "dump")]
    pub number: u64,
    /// The dump's ID, as in [`DumpReport::id`].
    pub id: String,
    /// The end of the command.
    #[serde(flatten)]
    pub outcome: PostOutcome,
    /// Run time of the command, s.
    pub seconds: f64,
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum PostOutcome {
    /// The command ended with exit code 0.
    Done,
    /// The command ended with another exit code.
    Failed {
        /// The exit code, 1 to 255; `null`: unknown, because the recorder ignores SIGCHLD.
        code: Option<i32>,
    },
    /// A signal ended the command.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// The command was ended with its whole process group: it took too long, or the recorder was
    /// aborted.
    TimedOut,
    /// The command could not be started.
    NotStarted {
        /// The reason.
        error: String,
    },
    /// The command was not run: too many dumps waited for their commands, or the recorder was
    /// aborted.
    Skipped,
}

/// Number of commands by their end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PostCounts {
    /// Commands that ended with exit code 0.
    pub done: u64,
    /// Commands that ended with another exit code, or by a signal.
    pub failed: u64,
    /// Commands that the recorder ended because they took too long or the recording was aborted.
    pub timed_out: u64,
    /// Commands that could not be started.
    pub not_started: u64,
    /// Commands that were not run, because too many dumps waited or the recording was aborted.
    pub skipped: u64,
    /// Dumps whose command waits or runs.
    pub to_be_done: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct PostCounter(Arc<PostShared>);

#[derive(Debug)]
struct PostShared {
    config: PostConfig,
    is_aborted: AtomicBool,
    counts: Mutex<PostCounts>,
}

#[derive(Debug)]
pub(crate) struct Post {
    shared: Arc<PostShared>,
    threads: Vec<JoinHandle<()>>,
}

/// Takes finished dumps for the threads, which end when all queues are dropped.
#[derive(Debug, Clone)]
pub(crate) struct PostQueue {
    shared: Arc<PostShared>,
    queue: SyncSender<PostJob>,
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
        let shared = Arc::new(PostShared {
            config: config.clone(),
            is_aborted: AtomicBool::new(false),
            counts: Mutex::default(),
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

    /// Waits for all commands. Returns false if a thread panicked.
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
    /// Queues a finished dump, or skips its command if the queue is full.
    pub(crate) fn submit(&self, report: &DumpReport) {
        let stem = report.id.rsplit('/').next().unwrap_or(&report.id);
        let named = |path: &PathBuf| {
            // A program may interpret an argument with a leading '-' as an option.
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
        let finished = PostJob {
            number: report.number,
            id: report.id.clone(),
            rule: report.rule.clone(),
            verdict: report.verdict.as_str(),
            trigger_time: report.trigger_time.clone(),
            sidecar: named(&report.file.with_file_name(format!("{stem}.json"))),
            files,
        };
        lock(&self.shared.counts).to_be_done += 1;
        match self.queue.try_send(finished) {
            Ok(()) => {}
            Err(TrySendError::Full(dump) | TrySendError::Disconnected(dump)) => {
                let outcome = PostOutcome::Skipped;
                self.shared
                    .tell(&self.events, &dump, outcome, Duration::ZERO);
            }
        }
    }

    /// Ends running commands with SIGTERM, then with SIGKILL. Skips the commands that wait.
    pub(crate) fn abort(&self) {
        self.shared.is_aborted.store(true, Ordering::SeqCst);
    }
}

impl PostShared {
    fn counts(&self) -> PostCounts {
        *lock(&self.counts)
    }

    fn run(&self, waiting: &Mutex<Receiver<PostJob>>, events: &Events) {
        loop {
            // One idle thread waits with the lock for the next dump, other idle threads wait for
            // the lock.
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

    fn tell(&self, events: &Events, dump: &PostJob, outcome: PostOutcome, took: Duration) {
        let mut counts = lock(&self.counts);
        *match outcome {
            PostOutcome::Done => &mut counts.done,
            PostOutcome::Failed { .. } | PostOutcome::Killed { .. } => &mut counts.failed,
            PostOutcome::TimedOut => &mut counts.timed_out,
            PostOutcome::NotStarted { .. } => &mut counts.not_started,
            PostOutcome::Skipped => &mut counts.skipped,
        } += 1;
        counts.to_be_done -= 1;
        drop(counts);
        events.tell(RecorderEvent::Posted(PostResult {
            number: dump.number,
            id: dump.id.clone(),
            outcome,
            seconds: took.as_secs_f64(),
        }));
    }

    fn run_for(&self, dump: &PostJob) -> PostOutcome {
        let mut child = match self.start(dump) {
            Ok(child) => child,
            Err(error) => {
                let error = error.to_string();
                return PostOutcome::NotStarted { error };
            }
        };
        let waited = self.wait(&child);
        if matches!(waited, Ok(false)) {
            // Until the group's leader is reaped, no other group can have this number.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        match (waited, child.wait()) {
            (Ok(false), _) => PostOutcome::TimedOut,
            (_, Ok(status)) => outcome(status),
            (_, Err(_)) => PostOutcome::Failed { code: None },
        }
    }

    /// Starts the command of a dump. Its output goes to stderr, because stdout may carry data of
    /// the recorder.
    fn start(&self, dump: &PostJob) -> io::Result<Child> {
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
            // The command must not speak for the service: sd_notify(3), sd_watchdog_enabled(3).
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::null())
            .stdout(stderr()?)
            .stderr(stderr()?)
            .process_group(0)
            .spawn()
    }

    /// Waits until the child has ended by itself, without reaping. Returns false if the command was
    /// asked to end, and the caller must kill the rest of its group.
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
        // An error: the recorder ignores SIGCHLD, so the kernel has reaped the child.
        while since.elapsed() < GRACE && matches!(wait_for(child, LOOK), Ok(false)) {}
        Ok(false)
    }
}

/// Waits for the end of a child for this time at most, without reaping. Returns whether it has
/// ended.
fn wait_for(child: &Child, time: Duration) -> io::Result<bool> {
    let pid = Pid::from_child(child);
    if let Ok(ended) = pidfd_open(pid, PidfdFlags::empty()) {
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timeout));
    } else {
        // For example before Linux 5.3 there is no pidfd.
        std::thread::park_timeout(time.min(Duration::from_millis(20)));
    }
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(pid), look)?.is_some())
}

fn outcome(status: ExitStatus) -> PostOutcome {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => PostOutcome::Done,
        (code @ Some(_), _) => PostOutcome::Failed { code },
        (None, signal) => PostOutcome::Killed {
            signal: signal.unwrap_or(0),
        },
    }
}

impl fmt::Display for PostOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Failed { code: Some(code) } => write!(f, "failed with exit code {code}"),
            Self::Failed { code: None } => f.write_str("ended with an unknown exit code"),
            Self::Killed { signal } => write!(f, "killed by signal {signal}"),
            Self::TimedOut => f.write_str("ended, because it took too long or all was to end"),
            Self::NotStarted { error } => write!(f, "not started: {error}"),
            Self::Skipped => f.write_str("not run: too many dumps wait, or all was to end"),
        }
    }
}

#[cfg(test)]
mod tests;
