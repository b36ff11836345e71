//! The control plane: what any thread may ask a running recorder. The program's signals and its control socket are callers of it.
//!
//! What may take long (compiling a rule, reading the ring) is done by the caller's thread; the analyzer is only given what is ready, and
//! takes it between two batches. A handle keeps neither the ring nor the threads: when the recorder has ended it says so.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use retroscope_filter::{Filter, FilterError, Template};
use retroscope_ring::{Mode, Waker};

use crate::{
    analysis::{
        fragments::asks_for_flows,
        native::NativeCode,
        predicate::Expression,
        prepared::{LinkTypes, Prepared, mode, template},
        terms::TriggerRequest,
        triggers::{Rule, RuleChange, SharedRules, Triggers},
    },
    control::{
        commands::{Command, Triggered},
        common::Common,
        events::{EventLog, Subscription},
        lock,
        outcomes::Outcomes,
        pins::Pin,
        progress::Control,
    },
    intake::shedding::History,
    start::recorder::Status,
};

/// How long a caller waits for the analyzer, which takes commands within some milliseconds where no script holds it up.
pub(crate) const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Rules at once.
const RULES_MAX: usize = 16_384;
/// Numbers of rules, which are never used again: what is kept of each is bounded by that.
const NUMBERS_MAX: usize = 65_536;
/// Bytes of the expressions of rules that are added, in all. A rule costs 30 to 240 times its text: most if it is short, or is no list.
const TEXT_BYTES_MAX: usize = 4 << 20;
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
    /// Usage: an expression does not compile.
    #[error("{}", .0.render())]
    Filter(#[from] FilterError),
    /// What it says.
    #[error("{0}")]
    Refused(String),
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
}

/// The rules by name, as the analyzer was told them: it answers when it has them so.
#[derive(Debug)]
pub(crate) struct RuleBook {
    shared: SharedRules,
    native: Arc<NativeCode>,
    /// From files the result is a function of the packets: nothing changes while they are read.
    offline: bool,
    /// Several threads look at packets, and those of one flow may come to any of them.
    are_flows_apart: bool,
    /// Numbers of rules that were added are no smaller.
    at_start: usize,
    /// Nobody has it while they wait for the analyzer.
    rules: Mutex<Numbered>,
}

#[derive(Debug)]
struct Numbered {
    /// Scripts among them.
    by_name: BTreeMap<String, Entry>,
    /// The number of the next rule.
    next: usize,
    /// Numbers of removed rules that leave the rule set when the analyzer has answered whatever it is told next.
    leaving: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    number: usize,
    expression: String,
    request: TriggerRequest,
    is_enabled: bool,
    /// `None`: a script, whose hits are not told apart.
    hits: Option<Arc<AtomicU64>>,
}

/// What somebody wants under a name.
#[derive(Debug, Clone, Copy)]
struct Wanted<'a> {
    name: &'a str,
    expression: &'a str,
    request: &'a TriggerRequest,
    /// In the place of what is there under it, rather than beside.
    is_change: bool,
}

/// A rule at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleStatus {
    /// Its name: as given, or its place among the `--trigger` options, from 1.
    pub name: String,
    /// The trigger expression, or the script's file.
    pub expression: String,
    /// What it asks for of its own.
    pub request: TriggerRequest,
    /// Whether its matches are hits.
    pub is_enabled: bool,
    /// Packets that matched this expression; `None`: not counted, of a script.
    pub hits: Option<u64>,
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

impl RuleBook {
    pub(crate) fn new<'a>(
        triggers: &Triggers,
        scripts: impl Iterator<Item = &'a str>,
        requests: &[TriggerRequest],
        native: Arc<NativeCode>,
        offline: bool,
        are_flows_apart: bool,
    ) -> Self {
        let rules = triggers.iter();
        let rules = rules.map(|rule| (rule.text.as_str(), Some(Arc::clone(&rule.hits))));
        let all = rules.chain(scripts.map(|script| (script, None)));
        let mut requests = requests.iter().cloned();
        let entry = |(number, (text, hits)): (usize, (&str, _))| {
            let entry = Entry {
                number,
                expression: text.to_owned(),
                request: requests.next().unwrap_or_default(),
                is_enabled: true,
                hits,
            };
            ((number + 1).to_string(), entry)
        };
        let by_name: BTreeMap<_, _> = all.enumerate().map(entry).collect();
        let next = by_name.len();
        Self {
            shared: triggers.shared.clone(),
            native,
            offline,
            are_flows_apart,
            at_start: next,
            rules: Mutex::new(Numbered {
                by_name,
                next,
                leaving: Vec::new(),
            }),
        }
    }

    /// Has the hits of the rules of the start counted.
    pub(crate) fn count_in(&self, outcomes: &Outcomes) {
        for (name, entry) in &lock(&self.rules).by_name {
            outcomes.add_rule(entry.number, name);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        lock(&self.rules).by_name.len()
    }

    /// Compiles an expression for the sources.
    fn prepare(&self, expression: &str) -> Result<Prepared, FilterError> {
        let mut prepared = Prepared::new(Filter::resolved(expression)?, mode(self.offline));
        let known = self.shared.link_types();
        let link_types = LinkTypes::new(&known, &Vec::new);
        prepared.check(&link_types)?;
        prepared.seal(&link_types);
        Ok(prepared)
    }

    /// Compiles the dump expression of a rule, where it has one of its own.
    fn template(&self, request: &TriggerRequest) -> Result<Option<Arc<Template>>, CommandError> {
        let Some(text) = &request.dump else {
            return Ok(None);
        };
        let known = self.shared.link_types();
        let template = template(text, &LinkTypes::new(&known, &Vec::new), mode(self.offline))?;
        if self.are_flows_apart && asks_for_flows(&template) {
            let why = "the dump expression asks for flows, whose fragments come by several queues that several threads look at: start the recorder with --analyzers 1, or with a rule that asks for flows";
            return Err(CommandError::Refused(why.to_owned()));
        }
        Ok(Some(template))
    }
}

impl Numbered {
    /// Whether it is so already; refused where there is another rule, or none to be changed.
    fn has(&self, wanted: Wanted<'_>) -> Result<bool, CommandError> {
        let name = wanted.name;
        match self.by_name.get(name) {
            None if wanted.is_change => Err(no_rule(name)),
            None => Ok(false),
            Some(entry) if entry.rule() == wanted.rule() => Ok(true),
            Some(entry) if wanted.is_change => entry.check_no_script(name).map(|()| false),
            Some(_) => Err(CommandError::Refused(format!(
                "rule '{name}' has another expression, window or limit: change it, or remove it first"
            ))),
        }
    }
}

impl RuleBook {
    /// Refuses what is too much beside the other rules that were added.
    fn check_bytes(&self, rules: &Numbered, wanted: Wanted<'_>) -> Result<(), CommandError> {
        let text_bytes = |is_added, (expression, request): (&str, &TriggerRequest)| {
            let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
            let expressions = expression.len() + len(&request.dump);
            len(&request.asked_by) + if is_added { expressions } else { 0 }
        };
        let others = rules.by_name.iter();
        let others = others.filter(|(name, _)| name.as_str() != wanted.name);
        let others =
            others.map(|(_, entry)| text_bytes(entry.number >= self.at_start, entry.rule()));
        let bytes = text_bytes(true, wanted.rule());
        if others.sum::<usize>() + bytes > TEXT_BYTES_MAX {
            return Err(CommandError::Refused(format!(
                "the rules that were added would have more than {TEXT_BYTES_MAX} bytes of text together, which is the limit: remove some"
            )));
        }
        Ok(())
    }
}

impl<'a> Wanted<'a> {
    fn rule(&self) -> (&'a str, &'a TriggerRequest) {
        (self.expression, self.request)
    }
}

impl Entry {
    fn rule(&self) -> (&str, &TriggerRequest) {
        (&self.expression, &self.request)
    }

    fn status(&self, name: &str) -> RuleStatus {
        RuleStatus {
            name: name.to_owned(),
            expression: self.expression.clone(),
            request: self.request.clone(),
            is_enabled: self.is_enabled,
            hits: self.hits.as_ref().map(|hits| hits.load(Ordering::Relaxed)),
        }
    }
}

impl Handle {
    /// Ends the capture; open windows are closed and their files completed.
    pub fn stop(&self) {
        self.control.stop();
        self.waker.wake();
    }

    /// Ends everything; unfinished files stay as they are.
    pub fn abort(&self) {
        self.control.abort();
        self.stop();
    }

    /// Triggers by hand, and waits until the dump is open: of what the request says or else `manual_dump` of the configuration, with a window of its
    /// own. A `key` that started a dump before (of the last 256) stands for that dump.
    ///
    /// # Errors
    /// [`CommandError`]; `Filter`: the dump expression does not compile for any source, or asks for a trigger packet; `Refused`: why there is no
    /// dump.
    pub fn trigger(
        &self,
        key: Option<&str>,
        request: TriggerRequest,
    ) -> Result<Triggered, CommandError> {
        if let Some(key) = key {
            check_name(key)?;
        }
        let key = key.map(str::to_owned);
        let expression = request.dump.as_deref().map(|text| {
            let prepared = self.rules.prepare(text)?;
            Ok::<_, FilterError>(Expression::plain(prepared.filter.filled().clone()))
        });
        let expression = expression.transpose()?;
        let (reply, answer) = sync_channel(1);
        let reply = Some(reply);
        self.send(Command::Trigger {
            key,
            request,
            expression,
            reply,
        })?;
        let triggered = answer.recv_timeout(self.answer_wait).map_err(late)?;
        triggered.map_err(CommandError::Refused)
    }

    /// Triggers by hand, and does not wait: what became of it, the events tell.
    ///
    /// # Errors
    /// [`CommandError::Busy`], [`CommandError::Ended`].
    pub fn trigger_unanswered(&self) -> Result<(), CommandError> {
        self.send(Command::Trigger {
            key: None,
            request: TriggerRequest::default(),
            expression: None,
            reply: None,
        })
    }

    /// The rules, by name.
    #[must_use]
    pub fn rules(&self) -> Vec<RuleStatus> {
        let rules = lock(&self.rules.rules);
        let by_name = rules.by_name.iter();
        by_name.map(|(name, entry)| entry.status(name)).collect()
    }

    /// Adds a trigger rule, which takes the packets that the analyzer looks at from when this returns on. Whether it was there already: a
    /// name stands for one expression and request.
    ///
    /// # Errors
    /// [`CommandError`]; `Filter`: the expression, or the dump expression, does not compile for any source.
    pub fn add_rule(
        &self,
        name: &str,
        expression: &str,
        request: &TriggerRequest,
    ) -> Result<bool, CommandError> {
        self.put_rule(Wanted {
            name,
            expression,
            request,
            is_change: false,
        })
    }

    /// Gives a rule another expression and request between two packets: each is looked at by the one or by the other. Whether that is new. Dumps
    /// that are open go on as they were asked for, and hits count for them no more; hits of another expression are counted from 0, and not held
    /// off because of its dumps.
    ///
    /// # Errors
    /// [`CommandError`], and then the rule is as it was; `Refused`: there is no such rule.
    pub fn change_rule(
        &self,
        name: &str,
        expression: &str,
        request: &TriggerRequest,
    ) -> Result<bool, CommandError> {
        let was_so = self.put_rule(Wanted {
            name,
            expression,
            request,
            is_change: true,
        })?;
        Ok(!was_so)
    }

    /// Sees to it that a rule is as it is wanted. Whether it was.
    fn put_rule(&self, wanted: Wanted<'_>) -> Result<bool, CommandError> {
        self.check_live()?;
        check_name(wanted.name)?;
        let is_so = lock(&self.rules.rules).has(wanted)?;
        if !is_so {
            // Outside of the lock, because it may take long. Who wants the same meanwhile is found below.
            let prepared = self.rules.prepare(wanted.expression)?;
            prepared.compile(&self.rules.native);
            let template = self.rules.template(wanted.request)?;
            let rules = lock(&self.rules.rules);
            if !rules.has(wanted)? {
                return self
                    .put(rules, wanted, (prepared, template))
                    .map(|()| false);
            }
        }
        self.settled().map(|()| true)
    }

    fn put(
        &self,
        mut rules: MutexGuard<'_, Numbered>,
        wanted: Wanted<'_>,
        (mut prepared, template): (Prepared, Option<Arc<Template>>),
    ) -> Result<(), CommandError> {
        self.rules.check_bytes(&rules, wanted)?;
        let (expression, request) = wanted.rule();
        let old = rules.by_name.get_mut(wanted.name);
        if let Some(entry) = old
            && entry.expression == expression
            && entry.request.dump == request.dump
        {
            let answer = self.tell(Vec::new(), Some((entry.number, request.clone())))?;
            entry.request = request.clone();
            return self.answered(rules, &answer);
        }
        let old = rules.by_name.get(wanted.name);
        let hits = old.filter(|entry| entry.expression == expression);
        let hits = hits.and_then(|entry| entry.hits.clone());
        let old = old.map(|entry| (entry.number, entry.is_enabled));
        let is_full = old.is_none() && rules.by_name.len() >= RULES_MAX;
        if is_full || rules.next >= NUMBERS_MAX {
            return Err(CommandError::Refused(format!(
                "there are {RULES_MAX} rules, or {NUMBERS_MAX} were added or changed since the start, which is the limit"
            )));
        }
        let common = self.common()?;
        let number = rules.next;
        rules.next += 1;
        self.rules.shared.add(number, &mut prepared)?;
        let entry = Entry {
            number,
            expression: expression.to_owned(),
            request: request.clone(),
            is_enabled: old.is_none_or(|(_, is_enabled)| is_enabled),
            hits: hits.or_else(|| Some(Arc::default())),
        };
        let rule = Rule {
            number,
            text: expression.to_owned(),
            prepared,
            hits: entry.hits.clone().unwrap_or_default(),
            is_enabled: entry.is_enabled,
        };
        let old = old.map(|(number, _)| number);
        let removed = old.map(RuleChange::Remove).into_iter();
        let changes = removed
            .chain([RuleChange::Add(Box::new(rule), template)])
            .collect();
        common.outcomes.add_rule(number, wanted.name);
        let told = self.tell(changes, Some((number, request.clone())));
        let answer = told.inspect_err(|_| {
            self.rules.shared.remove(number);
            if old.is_none() {
                common.outcomes.remove_rule(wanted.name);
            }
        })?;
        rules.by_name.insert(wanted.name.to_owned(), entry);
        rules.leaving.extend(old);
        self.answered(rules, &answer)
    }

    /// Removes a rule; its dumps go on. Whether it was there.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn remove_rule(&self, name: &str) -> Result<bool, CommandError> {
        self.check_live()?;
        let mut rules = lock(&self.rules.rules);
        let Some(entry) = rules.by_name.get(name) else {
            drop(rules);
            return self.settled().map(|()| false);
        };
        entry.check_no_script(name)?;
        let number = entry.number;
        let answer = self.tell(vec![RuleChange::Remove(number)], None)?;
        rules.by_name.remove(name);
        rules.leaving.push(number);
        self.common()?.outcomes.remove_rule(name);
        self.answered(rules, &answer).map(|()| true)
    }

    /// Says whether a rule's matches are hits. Whether that is new.
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: there is no such rule.
    pub fn enable_rule(&self, name: &str, is_enabled: bool) -> Result<bool, CommandError> {
        self.check_live()?;
        let mut rules = lock(&self.rules.rules);
        let Some(entry) = rules.by_name.get_mut(name) else {
            return Err(no_rule(name));
        };
        entry.check_no_script(name)?;
        if entry.is_enabled == is_enabled {
            drop(rules);
            return self.settled().map(|()| false);
        }
        let answer = self.tell(vec![RuleChange::Enable(entry.number, is_enabled)], None)?;
        entry.is_enabled = is_enabled;
        self.answered(rules, &answer).map(|()| true)
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
        let pinned = common.pins.add(&common.ring, name, stamps, &times);
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

    /// What the recorder is doing now.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn status(&self) -> Result<Status, CommandError> {
        Ok(Status::of(&*self.common()?, self))
    }

    /// Listens to events: from this number on as far as they are kept (the last 1024), or those that are to come.
    #[must_use]
    pub fn subscribe(&self, from: Option<u64>) -> Subscription {
        self.log.subscribe(from)
    }

    pub(crate) fn common(&self) -> Result<Arc<Common>, CommandError> {
        self.common.upgrade().ok_or(CommandError::Ended)
    }

    fn check_live(&self) -> Result<(), CommandError> {
        if self.rules.offline {
            let why =
                "a recording from files cannot be changed: its result depends on the packets alone";
            return Err(CommandError::Refused(why.to_owned()));
        }
        Ok(())
    }

    /// Tells the analyzer changes of the rules, which it makes together, or none, and what a rule asks for. Its answer comes when it has
    /// them so, and whatever it was told before.
    fn tell(
        &self,
        changes: Vec<RuleChange>,
        request: Option<(usize, TriggerRequest)>,
    ) -> Result<Receiver<()>, CommandError> {
        self.rules.shared.join();
        let (reply, answer) = sync_channel(1);
        self.send(Command::Rules {
            changes,
            request,
            reply,
        })?;
        Ok(answer)
    }

    /// Waits for the answer, while others look at the rules and change them.
    fn answered(
        &self,
        mut rules: MutexGuard<'_, Numbered>,
        answer: &Receiver<()>,
    ) -> Result<(), CommandError> {
        let leaving = std::mem::take(&mut rules.leaving);
        drop(rules);
        let answered = answer.recv_timeout(self.answer_wait).map_err(late);
        match answered {
            // Until it has taken the change up, it needs them.
            Err(_) => lock(&self.rules.rules).leaving.extend(leaving),
            Ok(()) => leaving
                .into_iter()
                .for_each(|number| self.rules.shared.remove(number)),
        }
        answered
    }

    /// Waits until the analyzer has the rules as it was told.
    fn settled(&self) -> Result<(), CommandError> {
        let rules = lock(&self.rules.rules);
        let answer = self.tell(Vec::new(), None)?;
        self.answered(rules, &answer)
    }

    fn send(&self, command: Command) -> Result<(), CommandError> {
        let sent = self.commands.try_send(command);
        self.waker.wake();
        sent.map_err(|error| match error {
            TrySendError::Full(_) => CommandError::Busy,
            TrySendError::Disconnected(_) => CommandError::Ended,
        })
    }
}

impl Entry {
    fn check_no_script(&self, name: &str) -> Result<(), CommandError> {
        if self.hits.is_some() {
            return Ok(());
        }
        Err(CommandError::Refused(format!(
            "rule '{name}' is a script, which cannot be changed while it runs"
        )))
    }
}

fn no_rule(name: &str) -> CommandError {
    CommandError::Refused(format!("there is no rule '{name}'"))
}

fn late(error: RecvTimeoutError) -> CommandError {
    match error {
        RecvTimeoutError::Timeout => CommandError::Late,
        RecvTimeoutError::Disconnected => CommandError::Ended,
    }
}

/// Names and keys are short, and can be printed.
fn check_name(name: &str) -> Result<(), CommandError> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(CommandError::Refused(format!(
            "a name has 1 to {NAME_BYTES_MAX} bytes, and no control characters"
        )));
    }
    Ok(())
}
