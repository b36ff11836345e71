//! Requests that any thread may send to a running recorder.
//!
//! The caller's thread does the work that may take long, for example compiling a rule. The analyzer
//! only gets finished parts. A handle does not keep the ring alive: after the end of the recorder
//! most requests fail.

use std::{
    sync::{
        Arc, Weak,
        mpsc::{RecvTimeoutError, SyncSender, TrySendError},
    },
    time::Duration,
};

use retroscope_capture::clock::duration_ns;
use retroscope_filter::FilterError;
use retroscope_ring::{Mode, Waker};

use crate::{
    Empty,
    control::{
        commands::{AnalyzerCommand, NoDump},
        common::RecorderShared,
        events::EventLog,
        packet_id::Recording,
        pins::{Pin, PinChange, RequestedPin},
        progress::StopControl,
    },
    dump::{post::PostCounter, store::keeper::KeeperHandle},
    intake::shedding::History,
    start::rules::RuleBook,
};

/// How long a caller waits for the analyzer or the keeper of dumps.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a name or key.
const NAME_BYTES_MAX: usize = 64;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The recorder has ended, or ends before it can carry out the command.
    #[error("the recording has ended")]
    Ended,
    /// Too many commands are waiting, or the rules change too often for a reload.
    #[error("too many commands wait: try again")]
    Busy,
    /// The analyzer is blocked, for example by a script, and usually carries out the command later.
    #[error(
        "the recorder is busy and carries the command out later: repeat the command to see its result"
    )]
    Late,
    /// The disk of the dumps is too slow. The command is dropped, unless it has begun.
    #[error("the disk of the dumps does not answer: ask again")]
    DiskLate,
    /// Usage: an expression does not compile.
    #[error("{}", .0.render())]
    Filter(#[from] FilterError),
    /// A new rule was requested, but a rule of this name exists.
    #[error(
        "rule '{name}' is there already{}",
        if *.is_as_wanted { ", as it is wanted" } else { ", with another filter, window or limit: change it, or remove it first" }
    )]
    RuleExists {
        /// Name of the rule.
        name: String,
        /// Whether the existing rule equals the requested rule, and is enabled or disabled as
        /// requested.
        is_as_wanted: bool,
    },
    /// A new pin was requested, but a pin of this name exists.
    #[error("pin '{0}' is there already: choose another name, or replace it without a condition")]
    PinExists(String),
    /// The rule of this name is not the rule that the client has read, or does not exist.
    #[error(
        "rule '{0}' was changed or removed since you read it: read it again, and repeat your change"
    )]
    RuleChangedBefore(String),
    /// A limit, a hold-off, `single` or a disabled rule prevented the dump. The text says why.
    #[error("{0}")]
    Suppressed(String),
    /// The ring has no packet for the dump of this hit of a rule.
    #[error("{0}")]
    Gone(Empty),
    /// The rule of the hit was changed or removed meanwhile.
    #[error("the rule was changed or removed meanwhile: ask again")]
    RuleChanged,
    /// The rule cannot act on the past. The text says why.
    #[error("{0}")]
    NoScan(String),
    /// Any other reason, in words.
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
pub struct RecorderHandle {
    pub(crate) control: Arc<StopControl>,
    pub(crate) waker: Waker,
    pub(crate) commands: SyncSender<AnalyzerCommand>,
    pub(crate) log: Arc<EventLog>,
    pub(crate) rules: Arc<RuleBook>,
    pub(crate) common: Weak<RecorderShared>,
    pub(crate) answer_wait: Duration,
    /// Live: the monotonic clock before the first packet, ns.
    pub(crate) start_mono_ns: Option<i64>,
    pub(crate) history: Option<Arc<History>>,
    /// The keeper of the dumps' directory; `None`: there is no directory.
    pub(crate) keeper: Option<KeeperHandle>,
    /// Counts the results of `--post` commands; `None`: no such command is configured.
    pub(crate) post: Option<PostCounter>,
}

/// A requested time range. `from_ns` and `to_ns` are ns since the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestedRange {
    /// Start; `None`: `last_ns` sets the start.
    pub from_ns: Option<i64>,
    /// End, included; `None`: now.
    pub to_ns: Option<i64>,
    /// If `from_ns` is `None`: the range starts this long before now, ns. `None`: with the oldest
    /// packet.
    pub last_ns: Option<i64>,
}

impl RecorderHandle {
    /// Ends the capture; open windows are closed and their files completed.
    pub fn stop(&self) {
        self.control.ask_to_stop();
        self.waker.wake();
    }

    /// Ends everything; unfinished dumps stay incomplete.
    pub fn abort(&self) {
        self.control.abort();
        self.stop();
    }

    /// Keeps a time range in the ring under a name. Replaces the pin of this name, unless
    /// `only_new`. With a `lease` the pin ends after this time, unless it is requested again.
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: for example, there are too many pins, or the range ends before
    /// it begins; `PinExists`: `only_new`, and there is a pin of this name.
    pub fn pin(
        &self,
        name: &str,
        stretch: RequestedRange,
        lease: Option<Duration>,
        only_new: bool,
    ) -> Result<(Pin, PinChange), CommandError> {
        self.check_live()?;
        check_name(name)?;
        let common = self.common()?;
        let now = common.clock.now();
        let now_ns = now.ring_ns.saturating_add(now.offset_ns);
        let last_ns = stretch.last_ns.filter(|_| stretch.from_ns.is_none());
        let since = |now_ns: i64| last_ns.map(|last_ns| now_ns.saturating_sub(last_ns));
        // Given times are stamps, the other times are ring time.
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
        let asked = RequestedPin {
            name,
            stamps,
            times,
            lease_ns: lease.map(duration_ns),
            is_new: only_new,
        };
        common.pins.put(&common.ring, asked, now.mono_ns)
    }

    /// Removes a pin. Returns whether the pin existed.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn unpin(&self, name: &str) -> Result<bool, CommandError> {
        let common = self.common()?;
        Ok(common.pins.remove(name, common.clock.mono_ns()))
    }

    /// Sets what happens if dumps and pins need all buckets of the ring: [`Mode::Record`] or
    /// [`Mode::Protect`].
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: the recording is from files, or `mode` is [`Mode::Wait`].
    pub fn set_when_full(&self, mode: Mode) -> Result<(), CommandError> {
        self.check_live()?;
        check_when_full(mode)?;
        self.common()?.ring.set_mode(mode);
        Ok(())
    }

    /// The UUID of the recording; `None`: the recording has ended.
    #[must_use]
    pub fn recording(&self) -> Option<String> {
        let common = self.common.upgrade()?;
        Some(Recording::of(&common.ring.attached().info()).to_string())
    }

    pub(crate) fn common(&self) -> Result<Arc<RecorderShared>, CommandError> {
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

    pub(super) fn send(&self, command: AnalyzerCommand) -> Result<(), CommandError> {
        let sent = self.commands.try_send(command);
        self.waker.wake();
        sent.map_err(|error| match error {
            TrySendError::Full(_) => CommandError::Busy,
            TrySendError::Disconnected(_) => CommandError::Ended,
        })
    }
}

/// Refuses a mode that a live recording cannot have.
pub(super) fn check_when_full(mode: Mode) -> Result<(), CommandError> {
    if mode == Mode::Wait {
        let why = "a live recording never waits for its readers";
        return Err(CommandError::Refused(why.to_owned()));
    }
    Ok(())
}

pub(super) fn late(error: RecvTimeoutError) -> CommandError {
    match error {
        RecvTimeoutError::Timeout => CommandError::Late,
        RecvTimeoutError::Disconnected => CommandError::Ended,
    }
}

/// Checks a name or a key, for example of a rule.
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
