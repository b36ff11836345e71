//! The work of sinks, its order, and the loop of a worker.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering, mpsc},
};

use super::{
    budget::{Load, PoolLimits},
    queue::{DISK, SinkFault},
};
use crate::{
    control::lock,
    dump::{
        captures::Captures,
        file::DumpFile,
        sidecar::Sidecar,
        sink::{SinkContents, SinkEnd},
        stream::FileDigests,
    },
};

/// A piece of work of a sink.
#[derive(Debug)]
pub(in crate::dump) enum SinkWork {
    /// Make the first file, with its first piece.
    Create(Arc<Load>),
    /// Write the next piece of a file.
    Write(Arc<Load>),
    /// Fail the sink: the packets could not be encoded.
    Fail(io::Error),
    /// Answer when all earlier work is done.
    Flush,
    /// Complete the files, and answer.
    Finish(Box<(SinkEnd, Captures)>),
    /// Compress the complete files, and answer.
    Compress,
    /// Write the sidecar, and answer.
    WriteSidecar(Box<Sidecar>),
    /// Close the sink, which is no longer needed.
    Close,
}

/// The result of a piece of work.
#[derive(Debug)]
pub(in crate::dump) enum SinkOutcome {
    /// A piece of work failed. From now on the sink writes only its sidecar.
    Failed(SinkFault),
    /// The answer to [`SinkWork::Flush`], [`SinkWork::Finish`] and [`SinkWork::Compress`].
    Done {
        failed: Option<SinkFault>,
        held: SinkContents,
    },
    /// The answer to [`SinkWork::WriteSidecar`]. `Ok(false)`: no sidecar was written, because the
    /// dump's captures are missing or replaced.
    SidecarWritten {
        sidecar: io::Result<bool>,
        held: SinkContents,
    },
}

#[derive(Debug)]
pub(super) struct PoolShared {
    pub(super) limits: Arc<PoolLimits>,
    /// Number of workers that may do slow work at a time.
    pub(super) slow_max: usize,
    pub(super) state: Mutex<PoolState>,
    /// Wakes the workers of [`Lane::Write`].
    pub(super) work: Condvar,
    /// Wakes the workers of [`Lane::Compress`].
    pub(super) compressions: Condvar,
    /// Wakes the dumper that waits for a sink.
    pub(super) done: Condvar,
}

/// Kinds of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Does all work except compression.
    Write,
    /// Compresses, and closes sinks whose compression was dropped.
    Compress,
}

#[derive(Debug, Default)]
pub(super) struct PoolState {
    pub(super) slots: HashMap<u64, SinkSlot>,
    /// Sinks that have work and no worker, by the [class](WorkClass) of the next work. A sink may
    /// also be listed for a digest.
    ready: [VecDeque<u64>; 5],
    /// Number of workers that do slow work.
    pub(super) slow: usize,
    pub(super) is_over: bool,
}

#[derive(Debug)]
pub(super) struct SinkSlot {
    /// `None`: a worker works on the sink.
    pub(super) body: Option<SinkBody>,
    pub(super) work: VecDeque<SinkWork>,
    /// Whether the sink is in [`PoolState::ready`] for its next work.
    is_listed: bool,
    /// The digests are computed while the files are written.
    has_digests: bool,
    /// Digests of the files. `None`: a worker has taken the digests.
    pub(super) digests: Option<FileDigests>,
    /// Pieces that go into the digests next.
    pub(super) loads: VecDeque<Arc<Load>>,
    /// Whether a worker has taken the first packets of the sink.
    pub(super) has_begun: bool,
}

#[derive(Debug)]
pub(super) struct SinkBody {
    pub(super) file: Box<DumpFile>,
    pub(super) has_failed: Option<SinkFault>,
    /// The sink's open descriptors, as counted in `limits`.
    pub(super) files: usize,
    pub(super) limits: Arc<PoolLimits>,
}

/// Kinds of work, by urgency and by the threads that do the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkClass {
    First,
    Write,
    Slow,
    Compress,
    Digest,
}

pub(super) enum SinkTask {
    Work(Box<WorkTask>),
    /// Adds a piece to the digests of a sink.
    Digest(u64, FileDigests, Arc<Load>),
}

pub(super) struct WorkTask {
    pub(super) id: u64,
    pub(super) body: SinkBody,
    pub(super) work: SinkWork,
    /// The digests for [`SinkWork::Finish`].
    pub(super) digests: FileDigests,
    pub(super) class: WorkClass,
    /// The next work of the sink is not a further piece of a file.
    pub(super) is_last: bool,
}

impl PoolShared {
    pub(super) fn submit(&self, id: u64, work: SinkWork) {
        let mut state = lock(&self.state);
        let is_load = matches!(work, SinkWork::Create(_) | SinkWork::Write(_));
        let (ready, given_up) = state.submit(id, work);
        drop(state);
        if is_load {
            // One worker writes, another may update the digest.
            self.work.notify_one();
        }
        if let Some(class) = ready {
            self.lane(class.lane()).notify_one();
        }
        drop(given_up);
    }

    fn lane(&self, lane: Lane) -> &Condvar {
        match lane {
            Lane::Write => &self.work,
            Lane::Compress => &self.compressions,
        }
    }

    /// The loop of a worker, until the pool is dropped or a worker has panicked.
    pub(super) fn work(&self, lane: Lane, news: &mpsc::Sender<(u64, SinkOutcome)>) {
        let mut state = lock(&self.state);
        while !state.is_over {
            let next = match lane {
                Lane::Write => state.next(self.slow_max),
                Lane::Compress => state.take(WorkClass::Compress),
            };
            let Some(task) = next else {
                let woken = self.lane(lane).wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            state = match task {
                SinkTask::Work(task) => self.do_work(task, lane, news),
                SinkTask::Digest(id, mut digests, load) => {
                    digests.update(&load.piece);
                    drop(load);
                    let mut state = lock(&self.state);
                    state.put_digests_back(id, digests);
                    state
                }
            };
            self.done.notify_all();
        }
    }

    fn do_work(
        &self,
        mut task: Box<WorkTask>,
        lane: Lane,
        news: &mpsc::Sender<(u64, SinkOutcome)>,
    ) -> MutexGuard<'_, PoolState> {
        let body = if matches!(task.work, SinkWork::Close) {
            drop(task.body);
            None
        } else {
            let done = (task.body).perform(task.work, task.digests, task.is_last);
            if let Some(outcome) = done {
                // The news is sent before another worker can take the sink, so that the sink's news
                // arrive in order.
                let _ = news.send((task.id, outcome));
            }
            Some(task.body)
        };
        let mut state = lock(&self.state);
        if task.class == WorkClass::Slow {
            state.slow -= 1;
            // Other slow work may have waited for this.
            self.work.notify_one();
        }
        let ready = state.put_back(task.id, body);
        // Wakes only the other kind of worker: this worker looks for more work itself.
        if let Some(other) = ready.map(WorkClass::lane).filter(|other| *other != lane) {
            self.lane(other).notify_one();
        }
        state
    }

    /// Returns when a sink has no work left, or the workers have ended.
    pub(super) fn wait(&self, id: u64) {
        self.wait_while(id, SinkSlot::is_busy);
    }

    /// Returns when a sink has no work left and no pieces wait for its digests, or the workers have
    /// ended.
    pub(super) fn wait_for_digests(&self, id: u64) {
        self.wait_while(id, |slot| slot.is_busy() || !slot.loads.is_empty());
    }

    fn wait_while(&self, id: u64, is_so: impl Fn(&SinkSlot) -> bool) {
        let waits =
            |state: &mut PoolState| !state.is_over && state.slots.get(&id).is_some_and(&is_so);
        drop(self.done.wait_while(lock(&self.state), waits));
    }
}

impl PoolState {
    /// Adds work to the queue of a sink. Returns the class for which one more worker must be woken,
    /// and the work that is dropped, which the caller drops without the lock.
    pub(super) fn submit(
        &mut self,
        id: u64,
        work: SinkWork,
    ) -> (Option<WorkClass>, VecDeque<SinkWork>) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return (None, VecDeque::from([work]));
        };
        let given_up = if matches!(work, SinkWork::Close) {
            slot.loads.clear();
            std::mem::take(&mut slot.work)
        } else {
            VecDeque::new()
        };
        if let SinkWork::Create(load) | SinkWork::Write(load) = &work
            && slot.has_digests
        {
            slot.loads.push_back(Arc::clone(load));
            if slot.digests.is_some() && slot.loads.len() == 1 {
                self.ready[WorkClass::Digest as usize].push_back(id);
            }
        }
        slot.work.push_back(work);
        (self.list(id), given_up)
    }

    /// Lists a sink that has no worker and whose next work can be done. Returns the class of the
    /// work if the sink is newly listed.
    pub(super) fn list(&mut self, id: u64) -> Option<WorkClass> {
        let slot = self.slots.get_mut(&id).filter(|slot| slot.body.is_some())?;
        let work = slot.work.front()?;
        // The end of a file needs the digest of all its pieces.
        let is_early = matches!(work, SinkWork::Finish(_)) && !slot.is_digested();
        if slot.is_listed || is_early {
            return None;
        }
        slot.is_listed = true;
        let class = work.class(slot.has_begun);
        let ready = &mut self.ready[class as usize];
        if matches!(work, SinkWork::WriteSidecar(_)) {
            // Dumps get their sidecars before the files of other dumps are completed.
            ready.push_front(id);
        } else {
            ready.push_back(id);
        }
        Some(class)
    }

    /// The most urgent piece of work except compression, with its sink.
    pub(super) fn next(&mut self, slow_max: usize) -> Option<SinkTask> {
        // Dumps are completed however much there is to write.
        let order = match self.slow {
            0 => [
                WorkClass::First,
                WorkClass::Slow,
                WorkClass::Write,
                WorkClass::Digest,
            ],
            _ => [
                WorkClass::First,
                WorkClass::Write,
                WorkClass::Digest,
                WorkClass::Slow,
            ],
        };
        order.into_iter().find_map(|class| match class {
            WorkClass::Slow if self.slow >= slow_max => None,
            WorkClass::Digest => self.take_digest(),
            _ => self.take(class),
        })
    }

    pub(super) fn take(&mut self, class: WorkClass) -> Option<SinkTask> {
        let id = self.ready[class as usize].pop_front()?;
        let slot = self.slots.get_mut(&id)?;
        slot.is_listed = false;
        let (body, work) = (slot.body.take()?, slot.work.pop_front()?);
        // The class may differ from `class`: the listed work may have been dropped.
        let class = work.class(slot.has_begun);
        slot.has_begun |= matches!(work, SinkWork::Write(_));
        let is_last = !matches!(slot.work.front(), Some(SinkWork::Write(_)));
        let digests = match work {
            SinkWork::Finish(_) => slot.digests.take(),
            _ => None,
        };
        if matches!(work, SinkWork::Close) {
            self.slots.remove(&id);
        }
        self.slow += usize::from(class == WorkClass::Slow);
        Some(SinkTask::Work(Box::new(WorkTask {
            id,
            body,
            work,
            digests: digests.unwrap_or_default(),
            class,
            is_last,
        })))
    }

    fn take_digest(&mut self) -> Option<SinkTask> {
        while let Some(id) = self.ready[WorkClass::Digest as usize].pop_front() {
            // The dumper may have closed the sink since.
            if let Some(slot) = self.slots.get_mut(&id)
                && let Some(load) = slot.loads.pop_front()
                && let Some(digests) = slot.digests.take()
            {
                return Some(SinkTask::Digest(id, digests, load));
            }
        }
        None
    }

    pub(super) fn put_digests_back(&mut self, id: u64, digests: FileDigests) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return;
        };
        slot.digests = Some(digests);
        if !slot.loads.is_empty() {
            self.ready[WorkClass::Digest as usize].push_back(id);
        }
        self.list(id);
    }

    /// Makes the sink available again. Returns the class of its next work if the sink is now listed
    /// for that work.
    pub(super) fn put_back(&mut self, id: u64, body: Option<SinkBody>) -> Option<WorkClass> {
        self.slots.get_mut(&id)?.body = body;
        self.list(id)
    }
}

impl SinkWork {
    fn class(&self, has_begun: bool) -> WorkClass {
        match self {
            Self::Create(_) => WorkClass::First,
            Self::Write(_) if !has_begun => WorkClass::First,
            Self::Write(_) | Self::Fail(_) | Self::Flush => WorkClass::Write,
            Self::Finish(_) | Self::WriteSidecar(_) | Self::Close => WorkClass::Slow,
            // Compression may take hours, and must not delay the end of another dump.
            Self::Compress => WorkClass::Compress,
        }
    }
}

impl WorkClass {
    fn lane(self) -> Lane {
        match self {
            Self::Compress => Lane::Compress,
            Self::First | Self::Write | Self::Slow | Self::Digest => Lane::Write,
        }
    }
}

impl SinkSlot {
    pub(super) fn new(body: SinkBody) -> Self {
        let digests = body.file.digests();
        Self {
            body: Some(body),
            work: VecDeque::new(),
            is_listed: false,
            has_digests: digests.are_on(),
            digests: Some(digests),
            loads: VecDeque::new(),
            has_begun: false,
        }
    }

    fn is_busy(&self) -> bool {
        self.body.is_none() || !self.work.is_empty()
    }

    /// Whether all pieces are in the digests.
    fn is_digested(&self) -> bool {
        self.digests.is_some() && self.loads.is_empty()
    }
}

impl SinkBody {
    pub(super) fn new(file: Box<DumpFile>, limits: &Arc<PoolLimits>) -> Self {
        Self {
            file,
            has_failed: None,
            files: 0,
            limits: Arc::clone(limits),
        }
    }

    pub(super) fn perform(
        &mut self,
        work: SinkWork,
        mut digests: FileDigests,
        is_last: bool,
    ) -> Option<SinkOutcome> {
        let outcome = match work {
            SinkWork::Create(load) => {
                let failed = self.attempt(|file| file.create(&load.piece));
                failed.map(SinkOutcome::Failed)
            }
            SinkWork::Write(load) => {
                let failed = self.attempt(|file| file.write(&load.piece));
                if is_last {
                    self.file.tell_bytes();
                }
                failed.map(SinkOutcome::Failed)
            }
            SinkWork::Fail(error) => self.attempt(|_| Err(error)).map(SinkOutcome::Failed),
            SinkWork::Flush => Some(self.done()),
            SinkWork::Finish(end) => {
                let (end, captures) = *end;
                self.attempt(|file| file.finish(&end, captures, &mut digests));
                Some(self.done())
            }
            SinkWork::Compress => {
                if self.has_failed.is_none() {
                    self.file.compress();
                }
                Some(self.done())
            }
            SinkWork::WriteSidecar(sidecar) => {
                let sidecar = self.file.sidecar(&sidecar);
                Some(SinkOutcome::SidecarWritten {
                    sidecar,
                    held: self.file.held(),
                })
            }
            SinkWork::Close => None,
        };
        self.count_files();
        outcome
    }

    /// Runs an operation on the files, unless an earlier operation failed. Returns the failure of
    /// this operation, if any.
    pub(super) fn attempt(
        &mut self,
        act: impl FnOnce(&mut DumpFile) -> io::Result<()>,
    ) -> Option<SinkFault> {
        if self.has_failed.is_some() {
            return None;
        }
        let error = act(&mut self.file).err()?;
        self.file.close_files();
        self.has_failed = Some(SinkFault {
            error: error.to_string(),
            cause: DISK,
            held: self.file.held(),
        });
        self.has_failed.clone()
    }

    fn done(&self) -> SinkOutcome {
        SinkOutcome::Done {
            failed: self.has_failed.clone(),
            held: self.file.held(),
        }
    }

    /// Counts the sink's descriptors, and closes its files if too many are open.
    pub(super) fn count_files(&mut self) {
        let (files, limits) = (self.file.open_files(), &self.limits);
        if files == self.files {
            return;
        }
        limits.files.fetch_sub(self.files, Ordering::Relaxed);
        self.files = files;
        if limits.files.fetch_add(files, Ordering::Relaxed) + files > limits.files_kept {
            self.file.close_files();
            limits.files.fetch_sub(files, Ordering::Relaxed);
            self.files = 0;
        }
    }
}

impl Drop for SinkBody {
    fn drop(&mut self) {
        self.limits.files.fetch_sub(self.files, Ordering::Relaxed);
    }
}
