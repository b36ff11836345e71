//! The dump-keeper: the thread that deletes dumps beyond the limits, and makes room on a full disk.
//! It holds, releases and deletes dumps on request. It has the privileges of the threads that write
//! dumps.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc::SyncSender},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use super::{
    DeletedDump, MinFree, StoreListener, StoredDump, StoredFile, WhyDeleted,
    lister::{DumpFileReader, Lister, Question, StoredDumps},
    listing::Listing,
    queue::{NextRequest, NoAnswer, RequestQueue},
    retention::{Retention, RuleRetention, for_room},
    second_copy::{SecondCopies, SecondCopy},
};
use crate::{directory::DumpDirectory, lock, time::rfc3339};
use retroscope_capture::clock::Clock;
use serde_json::Value;

/// Interval at which the dump-keeper wakes without a request, if some space must stay free.
const ROOM_EVERY: Duration = Duration::from_secs(1);
/// Minimum interval between two periodic listings of the directory, which find changes by other
/// programs. If only limits are set, the dump-keeper wakes at this interval to check the limits.
/// The pause after a failed deletion is as long.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long the writer of a dump waits for one answer of the dump-keeper about room on a full disk.
/// The first listing of a large directory can take seconds.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// Least number of bytes to free when a file system is full, or a hundredth of the file system if
/// that is less.
const ROOM_BYTES: u64 = 64 << 20;

/// Retention limits, and the space that dumps must leave free on the file system.
#[derive(Debug, Clone, Default)]
pub struct KeeperConfig {
    /// Limits on bytes and age.
    pub limits: Retention,
    /// Space that must stay free. `None`: no limit.
    pub min_free: Option<MinFree>,
}

/// The handle of the dump-keeper and of the dump-lister, for any number of threads.
#[derive(Debug, Clone)]
pub struct KeeperHandle {
    requests: RequestQueue<KeeperRequest>,
    questions: RequestQueue<Question>,
    open: Arc<Mutex<UnfinishedDumps>>,
    second_copies: SecondCopies,
    /// Locked while files of a dump are deleted, and by [`KeeperHandle::without_deletion`].
    deleting: Arc<Mutex<()>>,
    makes_room: bool,
}

pub(super) type UnfinishedDumps = BTreeMap<String, UnfinishedDump>;

/// A dump that is being written.
#[derive(Debug, Clone)]
pub struct UnfinishedDump {
    /// The number of the dump, from 1.
    pub number: u64,
    /// The expression of the trigger rule, the name of the script or module, `alert` or `manual`.
    /// If a command triggered a rule, the name of the rule.
    pub rule: String,
    /// The name of the rule. `None` for a dump by hand or of an IDS alert.
    pub rule_name: Option<String>,
    /// Stamp of the trigger, ns since the epoch.
    pub trigger_ns: i64,
    /// Paths of the files, and how many bytes of each contain whole packets.
    pub files: Vec<(PathBuf, u64)>,
}

/// A request to the dump-keeper.
#[derive(Debug)]
pub(crate) enum KeeperRequest {
    /// A dump is finished, or a finished dump has other files. The first name is that of the open
    /// dump, the second name is the final name, often the same.
    Finished(String, String),
    /// Replaces the retention limits of rules' dumps.
    Rules(HashMap<String, RuleRetention>),
    Hold(String, bool, SyncSender<io::Result<bool>>),
    Delete(String, Option<String>, SyncSender<Result<bool, String>>),
    /// The file system is full, or a quota is. The reply says whether a dump was deleted.
    Room(u64, SyncSender<bool>),
}

impl KeeperHandle {
    /// Registers a dump that is being written.
    pub fn register_open(&self, id: &str, dump: UnfinishedDump) {
        lock(&self.open).insert(id.to_owned(), dump);
    }

    /// The ID of the open dump with this number.
    pub fn id_of_open(&self, number: u64) -> Option<String> {
        let open = lock(&self.open);
        let found = open.iter().find(|(_, dump)| dump.number == number);
        found.map(|(id, _)| id.clone())
    }

    /// Replaces the files of an open dump and their lengths.
    pub fn update_files(&self, id: &str, files: Vec<(PathBuf, u64)>) {
        if let Some(dump) = lock(&self.open).get_mut(id) {
            dump.files = files;
        }
    }

    /// Registers the end of an open dump, which was finished under the name `finished_as`.
    pub fn register_finished(&self, id: &str, finished_as: &str) {
        if lock(&self.open).remove(id).is_some() {
            let finished = KeeperRequest::Finished(id.to_owned(), finished_as.to_owned());
            self.requests.push(finished);
        }
    }

    /// Registers that a finished dump has other files now.
    pub fn register_changed(&self, id: &str) {
        self.requests
            .push(KeeperRequest::Finished(id.to_owned(), id.to_owned()));
    }

    /// Registers the compression of a dump with this number of bytes.
    pub fn second_copy(&self, plain_bytes: u64) -> SecondCopy {
        self.second_copies.begin(plain_bytes)
    }

    /// Calls `act` while no dump is deleted. `act` must not ask the dump-keeper anything.
    pub fn without_deletion<T>(&self, act: impl FnOnce() -> T) -> T {
        let _deleting = lock(&self.deleting);
        act()
    }

    /// Replaces the retention limits of rules' dumps, by the name of the rule.
    pub fn set_rule_limits(&self, rules: HashMap<String, RuleRetention>) {
        self.requests.push(KeeperRequest::Rules(rules));
    }

    /// Makes room on a full file system, if [`KeeperConfig::min_free`] is set. Returns whether a
    /// dump was deleted. Returns `false` if no answer arrives in time.
    pub fn make_room(&self, bytes: u64) -> bool {
        self.make_room_within(bytes, ROOM_WAIT)
    }

    pub(super) fn make_room_within(&self, bytes: u64, wait: Duration) -> bool {
        let room = |reply| KeeperRequest::Room(bytes, reply);
        self.makes_room && self.requests.ask_urgently(room, wait).unwrap_or(false)
    }

    /// The dumps in the directory and one level below it, the oldest first and open dumps last.
    ///
    /// # Errors
    /// [`NoAnswer`], as for all questions; waits for at most `wait`.
    pub fn dumps(&self, wait: Duration) -> Result<StoredDumps, NoAnswer> {
        self.look(Question::List, wait)
    }

    /// A dump with its sidecar, which is `null` while the dump is open.
    ///
    /// # Errors
    /// As for [`Self::dumps`].
    pub fn dump(&self, id: &str, wait: Duration) -> Result<Option<(StoredDump, Value)>, NoAnswer> {
        self.look(|reply| Question::Get(id.to_owned(), reply), wait)
    }

    /// Opens a capture file of a dump by the name that the dump lists.
    ///
    /// # Errors
    /// As for [`Self::dumps`]. The inner error is that of the file system, or `NotFound`.
    pub fn open_file(
        &self,
        id: &str,
        name: &str,
        wait: Duration,
    ) -> Result<io::Result<DumpFileReader>, NoAnswer> {
        let open = |reply| Question::Open(id.to_owned(), name.to_owned(), reply);
        self.look(open, wait)
    }

    /// Holds or releases a dump, open or not. Returns whether this changed the dump.
    ///
    /// # Errors
    /// As for [`Self::open_file`].
    pub fn hold(
        &self,
        id: &str,
        is_held: bool,
        wait: Duration,
    ) -> Result<io::Result<bool>, NoAnswer> {
        self.ask(
            |reply| KeeperRequest::Hold(id.to_owned(), is_held, reply),
            wait,
        )
    }

    /// Deletes a dump on behalf of the client `by`. Fails if the dump is open or held. Returns
    /// whether a dump was deleted.
    ///
    /// # Errors
    /// As for [`Self::dumps`]. The inner error is a message for the user.
    pub fn delete(
        &self,
        id: &str,
        by: Option<&str>,
        wait: Duration,
    ) -> Result<Result<bool, String>, NoAnswer> {
        let by = by.map(str::to_owned);
        self.ask(
            |reply| KeeperRequest::Delete(id.to_owned(), by, reply),
            wait,
        )
    }

    /// Sends a request to the dump-keeper, and waits for the reply.
    pub(super) fn ask<T>(
        &self,
        request: impl FnOnce(SyncSender<T>) -> KeeperRequest,
        wait: Duration,
    ) -> Result<T, NoAnswer> {
        self.requests.ask(request, wait)
    }

    /// Sends a question to the dump-lister, and waits for the reply.
    pub(super) fn look<T>(
        &self,
        question: impl FnOnce(SyncSender<T>) -> Question,
        wait: Duration,
    ) -> Result<T, NoAnswer> {
        self.questions.ask(question, wait)
    }

    /// Pending requests to the dump-keeper.
    #[cfg(test)]
    pub(super) fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Pending questions to the dump-lister.
    #[cfg(test)]
    pub(super) fn questions(&self) -> usize {
        self.questions.questions()
    }
}

/// The dump-keeper and the dump-lister. When this is dropped, both threads answer all pending
/// requests and end.
#[derive(Debug)]
pub struct StoreThreads {
    keeper: KeeperHandle,
    threads: Vec<JoinHandle<()>>,
}

impl StoreThreads {
    /// Starts the threads, which have the privileges of the caller.
    pub fn start(
        directory: DumpDirectory,
        config: KeeperConfig,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn StoreListener>,
    ) -> io::Result<Self> {
        let (keeper, mut keeping, mut lister) =
            KeeperState::new(directory, config, clock, listener);
        let mut threads = Self {
            keeper,
            threads: Vec::new(),
        };
        let thread = Builder::new().name("dump-keeper".to_owned());
        (threads.threads).push(thread.spawn(move || keeping.run())?);
        let thread = Builder::new().name("dump-lister".to_owned());
        (threads.threads).push(thread.spawn(move || lister.run())?);
        Ok(threads)
    }

    /// The handle of the dump-keeper and of the dump-lister.
    pub fn keeper(&self) -> &KeeperHandle {
        &self.keeper
    }
}

impl Drop for StoreThreads {
    fn drop(&mut self) {
        self.keeper.requests.close();
        self.keeper.questions.close();
        for thread in self.threads.drain(..) {
            // The panic hook has already reported a panic.
            let _ = thread.join();
        }
    }
}

/// The state of the dump-keeper.
#[derive(Debug)]
pub(super) struct KeeperState {
    listing: Listing,
    /// The directory has been listed.
    is_listed: bool,
    config: KeeperConfig,
    clock: Arc<dyn Clock>,
    listener: Arc<dyn StoreListener>,
    requests: RequestQueue<KeeperRequest>,
    open: Arc<Mutex<UnfinishedDumps>>,
    second_copies: SecondCopies,
    deleting: Arc<Mutex<()>>,
    /// Dumps whose deletion by a limit or for room failed since the last periodic listing.
    refused: BTreeSet<String>,
    /// Time of the next listing of the directory, ns on the monotonic clock.
    look_ns: i64,
    /// Time until which only requests delete dumps, ns on the monotonic clock.
    rest_ns: i64,
    /// The user was informed that too little space is free and nothing may be deleted.
    is_short: bool,
    /// The user was informed that held dumps alone exceed the limit.
    is_held_up: bool,
}

impl KeeperState {
    pub(super) fn new(
        directory: DumpDirectory,
        config: KeeperConfig,
        clock: Arc<dyn Clock>,
        listener: Arc<dyn StoreListener>,
    ) -> (KeeperHandle, Self, Lister) {
        let keeper = KeeperHandle {
            requests: RequestQueue::default(),
            questions: RequestQueue::default(),
            open: Arc::default(),
            second_copies: SecondCopies::default(),
            deleting: Arc::default(),
            makes_room: config.min_free.is_some(),
        };
        let (open, questions) = (Arc::clone(&keeper.open), keeper.questions.clone());
        let lister = Lister::new(
            directory.clone(),
            questions,
            Arc::clone(&open),
            Arc::clone(&listener),
        );
        let second_copies = keeper.second_copies.clone();
        let deleting = Arc::clone(&keeper.deleting);
        let keeping = Self {
            listing: Listing::new(directory),
            is_listed: false,
            config,
            clock,
            listener,
            requests: keeper.requests.clone(),
            open,
            second_copies,
            deleting,
            refused: BTreeSet::new(),
            look_ns: i64::MIN,
            rest_ns: i64::MIN,
            is_short: false,
            is_held_up: false,
        };
        (keeper, keeping, lister)
    }

    fn run(&mut self) {
        loop {
            self.keep();
            match self.requests.next(self.wait()) {
                NextRequest::Request(request) => self.serve(request),
                NextRequest::Nothing => {}
                NextRequest::End => break,
            }
        }
        self.keep();
    }

    /// Time until the next work without a request. `None`: no such work.
    fn wait(&self) -> Option<Duration> {
        if self.config.min_free.is_some() {
            Some(ROOM_EVERY)
        } else {
            self.config.limits.are_any().then_some(LOOK_EVERY)
        }
    }

    /// Serves the pending requests.
    #[cfg(test)]
    pub(super) fn serve_all(&mut self) {
        while let NextRequest::Request(request) = self.requests.next(Some(Duration::ZERO)) {
            self.serve(request);
        }
    }

    fn serve(&mut self, request: KeeperRequest) {
        match request {
            KeeperRequest::Finished(was, id) => {
                self.hold_on(&was, &id);
                if self.is_listed {
                    self.listing.look_again(&id);
                }
            }
            KeeperRequest::Rules(keeps) => self.config.limits.rules = keeps,
            KeeperRequest::Hold(id, is_held, reply) => _ = reply.send(self.hold(&id, is_held)),
            KeeperRequest::Delete(id, by, reply) => _ = reply.send(self.delete_asked(&id, by)),
            KeeperRequest::Room(bytes, reply) => {
                // Handle pending reports of finished dumps first: these dumps may be the only dumps
                // that may be deleted.
                let is_finished =
                    |request: &KeeperRequest| matches!(request, KeeperRequest::Finished(..));
                for finished in self.requests.take_all(is_finished) {
                    self.serve(finished);
                }
                self.list();
                let space = self.listing.space();
                let more = space.map_or(0, |space| ROOM_BYTES.min(space.total / 100));
                let room = self.delete_for_room(bytes.max(more).max(1));
                let _ = reply.send(room);
            }
        }
    }

    /// Lists the directory, unless this was already done.
    fn list(&mut self) {
        if !self.is_listed {
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        match self.listing.refresh() {
            Ok(()) => self.is_listed = true,
            Err(error) => self.tell(format!("the directory of dumps cannot be read: {error}")),
        }
    }

    fn tell(&self, text: String) {
        self.listener.notice(text);
    }

    fn hold(&mut self, id: &str, is_held: bool) -> io::Result<bool> {
        let is_open = lock(&self.open).contains_key(id);
        self.listing.look_again(id);
        if !is_open && self.listing.get(id).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let is_new = self.listing.hold(id, is_held);
        self.listing.look_again(id);
        is_new
    }

    /// If a dump was held under `was` while it was open, holds it under its final name `id`.
    fn hold_on(&mut self, was: &str, id: &str) {
        if was == id || !self.listing.is_held(was) {
            return;
        }
        // The new mark first, so that the dump is held at any time.
        let held = self.listing.hold(id, true).and_then(|_| {
            self.listing.look_again(was);
            // If another dump took the old name, the old mark stays, and holds that dump.
            match self.listing.get(was) {
                Some(_) => Ok(false),
                None => self.listing.hold(was, false),
            }
        });
        if let Err(error) = held {
            self.tell(format!("dump {id}: its hold as {was}: {error}"));
        }
    }

    fn delete_asked(&mut self, id: &str, by: Option<String>) -> Result<bool, String> {
        if lock(&self.open).contains_key(id) {
            return Err(format!("dump {id} is open: it is being written"));
        }
        self.listing.look_again(id);
        let known = self.listing.get(id);
        if known.is_some_and(|known| known.dump.is_held) {
            return Err(format!("dump {id} is held: release it first"));
        }
        let deleted = self.delete_files(id);
        let deleted = deleted.map_err(|error| format!("dump {id}: not deleted: {error}"))?;
        let is_new = deleted.is_some();
        if let Some(dump) = deleted {
            self.tell_deleted(&dump, WhyDeleted::Asked, by);
        }
        Ok(is_new)
    }

    /// Deletes the dumps beyond the limits, and the oldest dumps if too little space is free.
    pub(super) fn keep(&mut self) {
        let now = self.clock.now();
        if !self.config.limits.are_any() && self.config.min_free.is_none() {
            return;
        }
        if now.mono_ns >= self.look_ns {
            let every_ns = i64::try_from(LOOK_EVERY.as_nanos()).unwrap_or(i64::MAX);
            self.look_ns = now.mono_ns.saturating_add(every_ns);
            self.refused.clear();
            self.refresh();
        }
        if now.mono_ns < self.rest_ns {
            return;
        }
        let (dumps, others) = self.deletable();
        let due = (self.config.limits).due(dumps.into_iter(), others, now.wall_ns);
        let due: Vec<_> = due
            .into_iter()
            .map(|(dump, why)| (dump.id.clone(), why))
            .collect();
        for (id, why) in due {
            if self.delete(&id, why).is_err() {
                return;
            }
        }
        self.tell_held();
        if let Some(min_free) = self.config.min_free {
            self.leave_room(min_free);
        }
    }

    /// Informs the user when held dumps alone begin to exceed the limit on the bytes of all dumps.
    /// Every other dump is then usually deleted as soon as it is finished.
    fn tell_held(&mut self) {
        let held = self.listing.dumps().filter(|dump| dump.is_held);
        let held = held.fold(0_u64, |sum, dump| sum.saturating_add(dump.bytes));
        let most = self.config.limits.all.bytes;
        let was_held_up =
            std::mem::replace(&mut self.is_held_up, most.is_some_and(|most| held > most));
        if self.is_held_up && !was_held_up {
            self.tell(format!(
                "--keep: the dumps that are held have {held} bytes, more than are to be kept: all others are deleted when they are finished"
            ));
        }
    }

    /// The dumps that may be deleted or are held, and the bytes of all other dumps, which also
    /// count.
    fn deletable(&self) -> (Vec<&StoredDump>, u64) {
        let open = lock(&self.open);
        let open_bytes = open
            .values()
            .fold(0_u64, |sum, dump| sum.saturating_add(dump.bytes()));
        let dumps = self.listing.dumps();
        let (refused, dumps) = dumps.partition::<Vec<_>, _>(|it| self.refused.contains(&it.id));
        let refused = refused.iter().map(|dump| dump.bytes);
        (dumps, refused.fold(open_bytes, u64::saturating_add))
    }

    fn leave_room(&mut self, min_free: MinFree) {
        // Of two copies of a dump that is being compressed, the smaller counts as free. A writer
        // that finds no room before compression ends requests room. Space that compression frees
        // between the two readings here counts twice, until the next reading.
        let given_back = self.second_copies.bytes();
        let Ok(space) = self.listing.space() else {
            return;
        };
        let free = space.free.saturating_add(given_back);
        let wanted = min_free.bytes(space).saturating_sub(free);
        if wanted == 0 {
            self.is_short = false;
        } else if !self.delete_for_room(wanted) && !self.is_short {
            self.is_short = true;
            self.tell(
                "min-free: the file system has less room than is to be left, and no dump lies there that may be deleted"
                    .to_owned(),
            );
        }
    }

    /// Deletes the oldest dumps for this number of bytes. Returns whether it deleted any dump.
    fn delete_for_room(&mut self, bytes: u64) -> bool {
        let (dumps, _) = self.deletable();
        let oldest = for_room(dumps.into_iter(), bytes).into_iter();
        let ids: Vec<_> = oldest.map(|dump| dump.id.clone()).collect();
        let mut has_deleted = false;
        for id in ids {
            match self.delete(&id, WhyDeleted::MinFree) {
                Ok(is_gone) => has_deleted |= is_gone,
                Err(()) => break,
            }
        }
        has_deleted
    }

    /// [`Listing::delete`], with the lock that [`KeeperHandle::without_deletion`] uses.
    fn delete_files(&mut self, id: &str) -> io::Result<Option<Arc<StoredDump>>> {
        let deleting = Arc::clone(&self.deleting);
        let _deleting = lock(&deleting);
        self.listing.delete(id)
    }

    /// Deletes a dump, unless it is held or no longer exists. Returns whether a dump was deleted.
    /// Reports an error to the user.
    fn delete(&mut self, id: &str, why: WhyDeleted) -> Result<bool, ()> {
        match self.delete_files(id) {
            Ok(deleted) => {
                let is_gone = deleted.is_some();
                if let Some(dump) = deleted {
                    self.tell_deleted(&dump, why, None);
                }
                Ok(is_gone)
            }
            Err(error) => {
                self.tell(format!("dump {id}: not deleted: {error}"));
                self.refused.insert(id.to_owned());
                let rest_ns = i64::try_from(LOOK_EVERY.as_nanos()).unwrap_or(i64::MAX);
                self.rest_ns = self.clock.now().mono_ns.saturating_add(rest_ns);
                Err(())
            }
        }
    }

    fn tell_deleted(&self, dump: &StoredDump, why: WhyDeleted, by: Option<String>) {
        self.listener.deleted(DeletedDump {
            id: dump.id.clone(),
            rule: dump.rule.clone(),
            bytes: dump.bytes,
            why,
            by,
        });
    }
}

impl UnfinishedDump {
    /// Sum of the bytes in `files`.
    fn bytes(&self) -> u64 {
        let files = self.files.iter();
        files.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    pub(super) fn stored(&self, id: &str) -> StoredDump {
        let name = |path: &PathBuf| {
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        let files = self.files.iter().map(|(path, bytes)| StoredFile {
            name: name(path).unwrap_or_default(),
            bytes: *bytes,
            sha256: None,
        });
        StoredDump {
            id: id.to_owned(),
            number: Some(self.number),
            is_open: true,
            is_held: false,
            rule: self.rule.clone(),
            rule_name: self.rule_name.clone(),
            trigger_time: rfc3339(self.trigger_ns),
            from: String::new(),
            to: String::new(),
            verdict: None,
            packets: 0,
            bytes: self.bytes(),
            made_ns: self.trigger_ns,
            files: files.collect(),
            recording: None,
        }
    }
}
