//! A thread that makes machine code while the data path continues with the interpreter.

use std::{
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread::{Builder, JoinHandle},
};

use super::NativeError;
use crate::{FusedPrograms, Program};

/// Maximum number of queued programs. The queue may hold the programs of thousands of rules.
const WAITING_MAX: u64 = 65_536;
/// Maximum number of failures kept for [`Compiler::failures`]. Further failures are only counted.
const FAILURES_MAX: usize = 16;

/// The thread `filter-compiler`. After a successful compilation, a submitted program runs as
/// machine code in every clone.
///
/// Any thread may submit, and none waits for the result. Dropping the compiler finishes the current
/// program, skips the queued programs, and joins the thread.
///
/// ```
/// use retroscope_filter::{Compiler, Program};
///
/// let compiler = Compiler::new()?;
/// let program = Program::constant(0);
/// compiler.submit(&program);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Compiler {
    queue: Option<Sender<CompileJob>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<CompilerState>,
}

type CompileJob = Box<dyn FnOnce(&CompilerState) + Send>;

// The counters and the flag order nothing else, so all accesses are Relaxed. Compiled code reaches
// other threads through the program's own slot.
#[derive(Debug, Default)]
struct CompilerState {
    ends: AtomicBool,
    /// Number of queued programs.
    waiting: AtomicU64,
    made: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
    failures: Mutex<Vec<NativeError>>,
}

/// Numbers of submitted programs, by what a [`Compiler`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompilerCounts {
    /// Programs that were compiled to machine code, or had machine code already.
    pub made: u64,
    /// Programs whose compilation failed.
    pub failed: u64,
    /// Programs that were not compiled, for example because the queue was full.
    pub skipped: u64,
}

impl Compiler {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's error if the thread cannot start.
    pub fn new() -> io::Result<Self> {
        let (queue, work) = channel::<CompileJob>();
        let shared = Arc::new(CompilerState::default());
        let worker = Arc::clone(&shared);
        let thread = Builder::new()
            .name("filter-compiler".to_owned())
            .spawn(move || {
                for work in work {
                    worker.waiting.fetch_sub(1, Ordering::Relaxed);
                    work(&worker);
                }
            })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            shared,
        })
    }

    /// Queues a program, unless it has machine code. If the queue is full, the program stays with
    /// the interpreter.
    pub fn submit(&self, program: &Program) {
        if program.native().is_none() {
            let program = program.clone();
            self.send(Box::new(move |shared| {
                shared.make(program.is_last(), || program.make_native());
            }));
        }
    }

    /// Queues programs that will run as one function. The group counts as one program.
    pub fn submit_fused(&self, joint: &FusedPrograms) {
        if joint.native().is_none() {
            let joint = joint.clone();
            self.send(Box::new(move |shared| {
                shared.make(joint.is_given_up(), || joint.make_native());
            }));
        }
    }

    fn send(&self, work: CompileJob) {
        if self.shared.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            self.shared.skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // The queue exists until `drop`, and the thread receives until the queue is gone.
        if let Some(queue) = &self.queue {
            let _ = queue.send(work);
        }
    }

    /// Counts since the start.
    #[must_use]
    pub fn counts(&self) -> CompilerCounts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompilerCounts {
            made: count(&self.shared.made),
            failed: count(&self.shared.failed),
            skipped: count(&self.shared.skipped),
        }
    }

    /// Failures since the last call, at most 16.
    #[must_use]
    pub fn failures(&self) -> Vec<NativeError> {
        let mut failures = self
            .shared
            .failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut failures)
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of the code generator.
            let _ = thread.join();
        }
    }
}

impl CompilerState {
    fn make(&self, is_unwanted: bool, make: impl FnOnce() -> Result<(), NativeError>) {
        let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        if self.ends.load(Ordering::Relaxed) || is_unwanted {
            add(&self.skipped);
            return;
        }
        match make() {
            Ok(()) => {
                add(&self.made);
            }
            // Each program still runs by itself, as machine code if it was compiled alone.
            Err(NativeError::NotFused { .. }) => {
                add(&self.skipped);
            }
            Err(error) => {
                let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                if failures.len() < FAILURES_MAX {
                    failures.push(error);
                }
                // Counted under the lock, so that a reader that sees the count also finds the
                // failure, unless the list was full.
                add(&self.failed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Aux, Instruction};

    fn wait(compiler: &Compiler, total: u64) -> CompilerCounts {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let counts = compiler.counts();
            if counts.made + counts.failed + counts.skipped >= total {
                return counts;
            }
            assert!(Instant::now() < deadline, "{counts:?}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_submitted_program_becomes_native_in_every_clone() {
        let compiler = Compiler::new().expect("a thread");
        let program = Program::new(vec![Instruction::ret(5)], false).expect("valid");
        let clone = program.clone();
        compiler.submit(&program);
        let counts = wait(&compiler, 1);
        assert_eq!((counts.made, counts.failed), (1, 0));
        assert!(clone.native().is_some() && compiler.failures().is_empty());
        assert_eq!(clone.run(&[], 0, Aux::default()), 5);
        compiler.submit(&clone);
        assert_eq!(compiler.counts(), counts);
    }

    #[test]
    fn a_program_that_is_too_long_stays_with_the_interpreter() {
        let compiler = Compiler::new().expect("a thread");
        let long = vec![Instruction::ret(5); super::super::emit::INSTRUCTIONS_MAX + 1];
        let program = Program::new(long, false).expect("valid");
        compiler.submit(&program);
        assert_eq!(wait(&compiler, 1).failed, 1);
        assert!(matches!(
            compiler.failures().as_slice(),
            [NativeError::TooLong { .. }]
        ));
        assert!(compiler.failures().is_empty() && program.native().is_none());
        assert_eq!(program.run(&[], 0, Aux::default()), 5);
    }

    #[test]
    fn what_waits_is_bounded_and_counted() {
        let compiler = Compiler::new().expect("a thread");
        let waiting = &compiler.shared.waiting;
        waiting.fetch_add(WAITING_MAX, Ordering::Relaxed);
        let program = Program::new(vec![Instruction::ret(5)], false).expect("valid");
        compiler.submit(&program);
        let counts = compiler.counts();
        assert_eq!((counts.skipped, counts.made), (1, 0));
        assert_eq!(program.run(&[], 0, Aux::default()), 5);
        waiting.fetch_sub(WAITING_MAX, Ordering::Relaxed);
        compiler.submit(&program);
        assert_eq!(wait(&compiler, 2).made, 1);
        assert_eq!(compiler.shared.waiting.load(Ordering::Relaxed), 0);
    }
}
