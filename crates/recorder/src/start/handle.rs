//! The control plane: what any thread may ask a running recorder. The program's signals and its API are callers of it.
//!
//! What may take long (compiling a rule, reading the ring) is done by the caller's thread; the analyzer is only given what is ready, and
//! takes it between two batches. A handle keeps neither the ring nor the threads: when the recorder has ended it says so.

use std::{
    sync::{
        Arc, Weak,
        mpsc::{RecvTimeoutError, SyncSender, TrySendError},
    },
    time::Duration,
};

use retroscope_filter::FilterError;
use retroscope_ring::{Mode, Waker};

use crate::{
    Empty,
    control::{
        commands::{Command, NoDump},
        common::Common,
        events::EventLog,
        pins::Pin,
        progress::Control,
    },
    dump::{post::PostCounter, store::keeper::Keeper},
    intake::shedding::History,
    start::rules::RuleBook,
};

/// How long a caller waits for the analyzer, which takes commands within some milliseconds where no script holds it up.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Bytes of a name or key.
const NAME_BYTES_MAX: usize = 64;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The recorder has ended, or ends before it could.
    #[error("the recording has ended")]
    Ended,
    /// Too many commands wait.
    #[error("too many commands wait: try again")]
    Busy,
    /// The analyzer is held up, by a script for example. The command is still carried out when it comes to it.
    #[error("the analyzer does not answer; it will come to it: ask again")]
    Late,
    /// The disk of the dumps is too slow. The command is dropped, unless it was begun already.
    #[error("the disk of the dumps does not answer: ask again")]
    DiskLate,
    /// Usage: an expression does not compile.
    #[error("{}", .0.render())]
    Filter(#[from] FilterError),
    /// There is a rule of this name, and it was to be a new one.
    #[error(
        "rule '{name}' is there already{}",
        if *.is_as_wanted { ", as it is wanted" } else { ", with another expression, window or limit: change it, or remove it first" }
    )]
    RuleExists {
        /// Its name.
        name: String,
        /// Whether it has this expression, window and limits.
        is_as_wanted: bool,
    },
    /// The rule of this name is not the rule that the client has read, or does not exist.
    #[error(
        "rule '{0}' was changed or removed since you read it: read it again, and repeat your change"
    )]
    RuleChangedBefore(String),
    /// A limit of a rule, or of the recorder, let a trigger start no dump, or its rule is disabled: which. Later it may start one.
    #[error("{0}")]
    Suppressed(String),
    /// Nothing of what a hit of a rule would dump is there.
    #[error("{0}")]
    Gone(Empty),
    /// A rule whose hit was to be told is another one now, or gone.
    #[error("the rule was changed or removed meanwhile: ask again")]
    RuleChanged,
    /// What it says.
    #[error("{0}")]
    Refused(String),
}

impl From<NoDump> for CommandError {
    fn from(why: NoDump) -> Self {
        match why {
            NoDump::Limit(why) => Self::Suppressed(why),
            NoDump::Gone(gone) => Self::Gone(gone),
            NoDump::RuleChanged => Self::RuleChanged,
            NoDump::Other(why) => Self::Refused(why),
        }
    }
}

/// Controls a recorder from any thread.
#[derive(Debug, Clone)]
pub struct Handle {
    pub(crate) control: Arc<Control>,
    pub(crate) waker: Waker,
    pub(crate) commands: SyncSender<Command>,
    pub(crate) log: Arc<EventLog>,
    pub(crate) rules: Arc<RuleBook>,
    pub(crate) common: Weak<Common>,
    /// How long a caller waits for the analyzer.
    pub(crate) answer_wait: Duration,
    /// Live: what the monotonic clock showed before the first packet, ns.
    pub(crate) start_mono_ns: Option<i64>,
    /// How far the ring is to reach back.
    pub(crate) history: Option<Arc<History>>,
    /// Who looks after the dumps' directory; `None`: there is none.
    pub(crate) keeper: Option<Keeper>,
    /// Counts what became of the commands of dumps, if there are any.
    pub(crate) post: Option<PostCounter>,
}

/// A stretch of time, as somebody asks for it. Stamps, ns since the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stretch {
    /// From here; `None`: see `last_ns`.
    pub from_ns: Option<i64>,
    /// To here, included; `None`: to now.
    pub to_ns: Option<i64>,
    /// Where `from_ns` is not given: so long before now, ns; `None`: from the oldest that is there.
    pub last_ns: Option<i64>,
}

impl Handle {
    /// Ends the capture; open windows are closed and their files completed.
    pub fn stop(&self) {
        self.control.ask_to_stop();
        self.waker.wake();
    }

    /// Ends everything; unfinished files stay as they are.
    pub fn abort(&self) {
        self.control.abort();
        self.stop();
    }

    /// Keeps a stretch of time in the ring under a name; one that is there stays as it is. Returns the pin, and whether it was there.
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: there are too many, or it ends before it begins.
    pub fn pin(&self, name: &str, stretch: Stretch) -> Result<(Pin, bool), CommandError> {
        self.check_live()?;
        check_name(name)?;
        let common = self.common()?;
        let now = common.clock.now();
        let now_ns = now.ring_ns.saturating_add(now.offset_ns);
        let last_ns = stretch.last_ns.filter(|_| stretch.from_ns.is_none());
        let since = |now_ns: i64| last_ns.map(|last_ns| now_ns.saturating_sub(last_ns));
        // Times that are named are stamps, and others ring time: a clock that was set has shown the former never, or twice.
        let begin_ns = since(now.ring_ns).unwrap_or(i64::MIN);
        let end_ns = stretch.to_ns.map_or(now.ring_ns, |_| i64::MAX);
        let mut times = match (stretch.from_ns, stretch.to_ns) {
            (None, None) => vec![(begin_ns, end_ns)],
            (from, to) => common.ring_times((from.unwrap_or(i64::MIN), to.unwrap_or(i64::MAX))),
        };
        times.iter_mut().for_each(|(from_ns, to_ns)| {
            *from_ns = begin_ns.max(*from_ns);
            *to_ns = end_ns.min(*to_ns);
        });
        times.retain(|(from_ns, to_ns)| from_ns <= to_ns);
        if times.is_empty() {
            let why = "it ends before it begins, or the clock never shows these times";
            return Err(CommandError::Refused(why.to_owned()));
        }
        let from_ns = stretch.from_ns.or(since(now_ns)).unwrap_or(i64::MIN);
        let stamps = (from_ns, stretch.to_ns.unwrap_or(now_ns));
        let pinned = common.pins.put(&common.ring, name, stamps, &times);
        pinned.map_err(CommandError::Refused)
    }

    /// Gives a pin up. Whether it was there.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn unpin(&self, name: &str) -> Result<bool, CommandError> {
        Ok(self.common()?.pins.remove(name))
    }

    /// What happens when nothing in the ring may be overwritten but what dumps and pins want: [`Mode::Record`] or [`Mode::Protect`].
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: files wait for their readers, whatever is asked.
    pub fn set_when_full(&self, mode: Mode) -> Result<(), CommandError> {
        self.check_live()?;
        if mode == Mode::Wait {
            let why = "a live recording never waits for its readers";
            return Err(CommandError::Refused(why.to_owned()));
        }
        self.common()?.ring.set_mode(mode);
        Ok(())
    }

    pub(crate) fn common(&self) -> Result<Arc<Common>, CommandError> {
        self.common.upgrade().ok_or(CommandError::Ended)
    }

    pub(super) fn check_live(&self) -> Result<(), CommandError> {
        if self.rules.offline {
            let why =
                "a recording from files cannot be changed: its result depends on the packets alone";
            return Err(CommandError::Refused(why.to_owned()));
        }
        Ok(())
    }

    pub(super) fn send(&self, command: Command) -> Result<(), CommandError> {
        let sent = self.commands.try_send(command);
        self.waker.wake();
        sent.map_err(|error| match error {
            TrySendError::Full(_) => CommandError::Busy,
            TrySendError::Disconnected(_) => CommandError::Ended,
        })
    }
}

pub(super) fn late(error: RecvTimeoutError) -> CommandError {
    match error {
        RecvTimeoutError::Timeout => CommandError::Late,
        RecvTimeoutError::Disconnected => CommandError::Ended,
    }
}

/// Whether something may be called so, a rule for example: names and keys are short, and can be printed.
///
/// # Errors
/// [`CommandError::Refused`].
pub fn check_name(name: &str) -> Result<(), CommandError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(CommandError::Refused(format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes, and no control characters"
        )));
    }
    Ok(())
}
