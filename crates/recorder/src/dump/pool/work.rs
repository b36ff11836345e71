//! What is done with sinks, in which order, and the threads that do it.

use std::{
    collections::{HashMap, VecDeque},
    io,
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering, mpsc},
};

use super::{
    budget::{Charge, Limits},
    queue::{DISK, Fault},
};
use crate::{
    control::lock,
    dump::{
        captures::Captures,
        file::DumpFile,
        output::Piece,
        sidecar::Sidecar,
        sink::{End, Held},
    },
};

/// What is done with a sink.
#[derive(Debug)]
pub(in crate::dump) enum Work {
    /// Make the first file, with its first piece.
    Create(Piece),
    /// Write the next piece of a file.
    Write(Piece, Charge),
    /// The packets could not be encoded.
    Fail(io::Error),
    /// Give back what is kept for more.
    Rest,
    /// Answer when all that came is written.
    Flush,
    /// Complete it, and answer.
    Finish(Box<(End, Captures)>),
    /// Compress what is complete, and answer.
    Compress,
    /// Write the sidecar, and answer.
    Tell(Box<Sidecar>),
    /// Close it: nobody needs it any more.
    Leave,
}

/// What became of it.
#[derive(Debug)]
pub(in crate::dump) enum Outcome {
    /// It failed, and takes nothing more. Told once.
    Failed(Fault),
    /// To [`Work::Flush`], [`Work::Finish`] and [`Work::Compress`].
    Done { failed: Option<Fault>, held: Held },
    /// To [`Work::Tell`]: whether there is a sidecar now.
    Told {
        sidecar: io::Result<bool>,
        held: Held,
    },
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Arc<Limits>,
    /// Workers that may do slow work at a time.
    pub(super) slow_max: usize,
    pub(super) state: Mutex<State>,
    /// Wakes the workers of [`Lane::Write`].
    pub(super) work: Condvar,
    /// Wakes the workers of [`Lane::Compress`].
    pub(super) compressions: Condvar,
}

/// Kinds of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Does all work but compression.
    Write,
    /// Only compresses.
    Compress,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) slots: HashMap<u64, Slot>,
    /// Sinks with work that nobody works on, by the [class](Class) of their next work.
    ready: [VecDeque<u64>; 4],
    /// Workers at slow work.
    pub(super) slow: usize,
    pub(super) is_over: bool,
}

/// A sink in the pool.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None`: a worker has it.
    pub(super) body: Option<Body>,
    pub(super) work: VecDeque<Work>,
    /// Whether its first packets are written.
    pub(super) has_begun: bool,
}

/// The files of a dump, and whether they have failed.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) file: Box<DumpFile>,
    pub(super) has_failed: Option<Fault>,
    /// Its descriptors, as they are counted in `limits`.
    pub(super) files: usize,
    pub(super) limits: Arc<Limits>,
}

/// Kinds of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    First,
    Write,
    Slow,
    Compress,
}

/// A piece of work, taken.
pub(super) struct Task {
    pub(super) id: u64,
    pub(super) body: Body,
    pub(super) work: Work,
    pub(super) class: Class,
    /// No packets follow at once.
    pub(super) is_last: bool,
}

impl Shared {
    pub(super) fn submit(&self, id: u64, work: Work) {
        let mut state = lock(&self.state);
        let (ready, given_up) = state.submit(id, work);
        drop(state);
        if let Some(class) = ready {
            self.lane(class.lane()).notify_one();
        }
        drop(given_up);
    }

    /// The condition that wakes the workers of a lane.
    fn lane(&self, lane: Lane) -> &Condvar {
        match lane {
            Lane::Write => &self.work,
            Lane::Compress => &self.compressions,
        }
    }

    /// What a worker does until the pool is dropped.
    pub(super) fn work(&self, lane: Lane, news: &mpsc::Sender<(u64, Outcome)>) {
        let mut state = lock(&self.state);
        while !state.is_over {
            let next = match lane {
                Lane::Write => state.next(self.slow_max),
                Lane::Compress => state.take(Class::Compress),
            };
            let Some(mut task) = next else {
                let woken = self.lane(lane).wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let body = if matches!(task.work, Work::Leave) {
                drop(task.body);
                None
            } else {
                let outcome = task.body.perform(task.work, task.is_last);
                if let Some(outcome) = outcome {
                    // Before anybody else can take the sink, so that its news come in order. The dumper may be gone.
                    let _ = news.send((task.id, outcome));
                }
                Some(task.body)
            };
            state = lock(&self.state);
            if task.class == Class::Slow {
                state.slow -= 1;
                // Others may have waited for that.
                self.work.notify_one();
            }
            let ready = state.put_back(task.id, body);
            // This worker takes more work of its own lane in the next turn.
            if let Some(other) = ready.map(Class::lane).filter(|other| *other != lane) {
                self.lane(other).notify_one();
            }
        }
    }
}

impl State {
    /// Adds work to the queue of a sink. Returns the class for which one more worker must be
    /// woken, and the work that is dropped because of `work`, which the caller drops without the
    /// lock.
    pub(super) fn submit(&mut self, id: u64, work: Work) -> (Option<Class>, VecDeque<Work>) {
        let Some(slot) = self.slots.get_mut(&id) else {
            return (None, VecDeque::from([work]));
        };
        // A worker that has the sink looks for more itself.
        let is_free = slot.body.is_some();
        let is_listed = is_free && !slot.work.is_empty();
        let given_up = if matches!(work, Work::Leave) {
            std::mem::take(&mut slot.work)
        } else {
            VecDeque::new()
        };
        slot.work.push_back(work);
        let ready = if is_listed { None } else { self.list(id) };
        (ready, given_up)
    }

    /// Lists a sink that has work and no worker. Returns the class of that work.
    pub(super) fn list(&mut self, id: u64) -> Option<Class> {
        let slot = self.slots.get(&id).filter(|slot| slot.body.is_some())?;
        let work = slot.work.front()?;
        let class = work.class(slot.has_begun);
        let ready = &mut self.ready[class as usize];
        if matches!(work, Work::Tell(_)) {
            // A dump is done with before others are begun to be completed.
            ready.push_front(id);
        } else {
            ready.push_back(id);
        }
        Some(class)
    }

    /// The most urgent piece of work but compression, with its sink.
    pub(super) fn next(&mut self, slow_max: usize) -> Option<Task> {
        // However much there is to write, dumps are completed too.
        let order = match self.slow {
            0 => [Class::First, Class::Slow, Class::Write],
            _ => [Class::First, Class::Write, Class::Slow],
        };
        let class = order.into_iter().find(|class| {
            let is_too_much = *class == Class::Slow && self.slow >= slow_max;
            !is_too_much && !self.ready[*class as usize].is_empty()
        })?;
        self.take(class)
    }

    /// The first piece of work of a class, with its sink.
    pub(super) fn take(&mut self, class: Class) -> Option<Task> {
        let id = self.ready[class as usize].pop_front()?;
        let slot = self.slots.get_mut(&id)?;
        let (body, work) = (slot.body.take()?, slot.work.pop_front()?);
        // The class may differ from `class`: the listed work may have been dropped.
        let class = work.class(slot.has_begun);
        slot.has_begun |= matches!(work, Work::Write(..));
        let is_last = !matches!(slot.work.front(), Some(Work::Write(..)));
        if matches!(work, Work::Leave) {
            self.slots.remove(&id);
        }
        self.slow += usize::from(class == Class::Slow);
        Some(Task {
            id,
            body,
            work,
            class,
            is_last,
        })
    }

    /// The sink is free again. Returned is the class of its next work.
    pub(super) fn put_back(&mut self, id: u64, body: Option<Body>) -> Option<Class> {
        self.slots.get_mut(&id)?.body = body;
        self.list(id)
    }
}

impl Work {
    fn class(&self, has_begun: bool) -> Class {
        match self {
            Self::Create(_) => Class::First,
            Self::Write(..) if !has_begun => Class::First,
            Self::Write(..) | Self::Fail(_) | Self::Rest | Self::Flush => Class::Write,
            Self::Finish(_) | Self::Tell(_) | Self::Leave => Class::Slow,
            // Compression may take hours, and must not delay the end of another dump.
            Self::Compress => Class::Compress,
        }
    }
}

impl Class {
    fn lane(self) -> Lane {
        match self {
            Self::Compress => Lane::Compress,
            Self::First | Self::Write | Self::Slow => Lane::Write,
        }
    }
}

impl Slot {
    /// Of a sink without work.
    pub(super) fn new(body: Body) -> Self {
        Self {
            body: Some(body),
            work: VecDeque::new(),
            has_begun: false,
        }
    }
}

impl Body {
    pub(super) fn new(file: Box<DumpFile>, limits: &Arc<Limits>) -> Self {
        Self {
            file,
            has_failed: None,
            files: 0,
            limits: Arc::clone(limits),
        }
    }

    pub(super) fn perform(&mut self, work: Work, is_last: bool) -> Option<Outcome> {
        let outcome = match work {
            Work::Create(piece) => {
                let failed = self.attempt(|file| file.create(&piece));
                failed.map(Outcome::Failed)
            }
            // The charge counts until the piece is written.
            Work::Write(piece, _charge) => {
                let failed = self.attempt(|file| {
                    file.write(piece)?;
                    if is_last { file.flush() } else { Ok(()) }
                });
                failed.map(Outcome::Failed)
            }
            Work::Fail(error) => self.attempt(|_| Err(error)).map(Outcome::Failed),
            Work::Rest => self.attempt(|file| file.flush()).map(Outcome::Failed),
            Work::Flush => {
                self.attempt(|file| file.flush());
                Some(self.done())
            }
            Work::Finish(end) => {
                let (end, captures) = *end;
                self.attempt(|file| file.finish(&end, captures));
                Some(self.done())
            }
            Work::Compress => {
                if self.has_failed.is_none() {
                    self.file.compress();
                }
                Some(self.done())
            }
            Work::Tell(sidecar) => {
                let sidecar = self.file.sidecar(&sidecar);
                Some(Outcome::Told {
                    sidecar,
                    held: self.file.held(),
                })
            }
            Work::Leave => None,
        };
        self.count_files();
        outcome
    }

    /// Does something with the files, unless they have failed before. Returns why that fails.
    pub(super) fn attempt(
        &mut self,
        act: impl FnOnce(&mut DumpFile) -> io::Result<()>,
    ) -> Option<Fault> {
        if self.has_failed.is_some() {
            return None;
        }
        let error = act(&mut self.file).err()?;
        self.file.close_files();
        self.has_failed = Some(Fault {
            error: error.to_string(),
            cause: DISK,
            held: self.file.held(),
        });
        self.has_failed.clone()
    }

    fn done(&self) -> Outcome {
        Outcome::Done {
            failed: self.has_failed.clone(),
            held: self.file.held(),
        }
    }

    /// Counts its descriptors, and gives them back where there are too many.
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

impl Drop for Body {
    fn drop(&mut self) {
        self.limits.files.fetch_sub(self.files, Ordering::Relaxed);
    }
}
