//! Machine code for the filters of rules and dumps.
//!
//! Filters that are known before the start are compiled at once, unless there are too many, so that
//! short runs use machine code too. A compiler thread compiles later filters. The interpreter runs
//! programs that are not yet compiled or cannot be compiled.

use std::sync::{
    Mutex, OnceLock,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use retroscope_filter::{Compiler, FusedPrograms, Program};

use crate::control::lock;

/// Maximum number of programs that are compiled before the start, at some tenths of a millisecond
/// each. The compiler thread compiles the rest.
const AT_START_MAX: usize = 1000;

/// A program of a [`FusedPrograms`] costs about the compile time of this number of single programs:
/// about 0.5 ms for each of 64 short programs, more for long programs.
const JOINED_COST: usize = 4;

/// Compiles programs, for all threads that make filters. After [`Self::start`], no function waits
/// for a compilation.
#[derive(Debug)]
pub(crate) struct NativeCode {
    /// The compiler thread, after the start. `None`: the system refused to start a thread.
    compiler: OnceLock<Option<Compiler>>,
    /// How much may still be compiled in the caller's thread, counted in single programs.
    at_once: AtomicUsize,
    /// Programs for the compiler thread, until the thread runs.
    later: Mutex<Vec<NativeJob>>,
    /// The first reason why a program stays with the interpreter.
    failure: OnceLock<String>,
    told: AtomicBool,
}

#[derive(Debug)]
enum NativeJob {
    One(Program),
    Together(FusedPrograms),
}

// Relaxed: no other access is ordered with these atomics.
impl NativeCode {
    /// Starts no thread. Until [`Self::start`], submitted programs are compiled in the caller's
    /// thread, as long as they cost no more than [`AT_START_MAX`] single programs.
    pub(crate) fn new() -> Self {
        Self {
            compiler: OnceLock::new(),
            at_once: AtomicUsize::new(AT_START_MAX),
            later: Mutex::default(),
            failure: OnceLock::new(),
            told: AtomicBool::new(false),
        }
    }

    /// Starts the thread. From now on no caller waits for a compilation.
    pub(crate) fn start(&self) {
        self.at_once.store(0, Relaxed);
        self.compiler.get_or_init(|| {
            Compiler::new()
                .map_err(|error| {
                    let _ = self
                        .failure
                        .set(format!("no thread to compile it: {error}"));
                })
                .ok()
        });
        let later = std::mem::take(&mut *lock(&self.later));
        later.into_iter().for_each(|work| self.leave(work));
    }

    /// Compiles a program, if possible, so that all clones run as machine code: now, or some time
    /// after the start.
    pub(crate) fn submit(&self, program: &Program) {
        if !self.is_at_once(1) {
            self.leave(NativeJob::One(program.clone()));
        } else if let Err(error) = program.make_native() {
            let _ = self.failure.set(error.to_string());
        }
    }

    /// Compiles programs, if possible, so that all clones run as one function: now, or some time
    /// after the start.
    pub(crate) fn submit_fused(&self, joint: &FusedPrograms) {
        if self.is_at_once(JOINED_COST * joint.programs().len()) {
            // If the programs cannot be joined, each runs by itself.
            let _ = joint.make_native();
        } else {
            self.leave(NativeJob::Together(joint.clone()));
        }
    }

    /// Whether a job of this cost is still compiled in the caller's thread. If so, deducts the
    /// cost.
    fn is_at_once(&self, cost: usize) -> bool {
        let at_once = self.at_once.load(Relaxed);
        let is_at_once = at_once >= cost && cost > 0;
        if is_at_once {
            // Only one thread submits before the start.
            self.at_once.store(at_once - cost, Relaxed);
        }
        is_at_once
    }

    /// Gives a job to the compiler thread. Before the start, keeps the job for the thread.
    fn leave(&self, work: NativeJob) {
        match (self.compiler.get(), work) {
            (None, work) => lock(&self.later).push(work),
            (Some(None), _) => {}
            (Some(Some(compiler)), NativeJob::One(program)) => compiler.submit(&program),
            (Some(Some(compiler)), NativeJob::Together(joint)) => compiler.submit_fused(&joint),
        }
    }

    /// A message if some program stays with the interpreter; given once.
    pub(crate) fn notice(&self) -> Option<String> {
        if self.told.load(Relaxed) {
            return None;
        }
        if let Some(Some(compiler)) = self.compiler.get()
            && compiler.counts().failed > 0
            && let Some(error) = compiler.failures().first()
        {
            let _ = self.failure.set(error.to_string());
        }
        let failure = self.failure.get()?;
        // One thread asks at a time.
        self.told.store(true, Relaxed);
        Some(format!(
            "a filter is interpreted, which is slower than machine code: {failure}; this is said once"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use retroscope_filter::Instruction;
    use retroscope_packet::LinkType;

    use super::*;

    /// A program that is too long to be compiled.
    fn endless() -> Program {
        Program::new(vec![Instruction::ret(1); 1 << 20], false).unwrap()
    }

    fn wait(program: &Program) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while program.native().is_none() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_too_much_for_the_start_is_compiled_after_it() {
        let native = NativeCode::new();
        native.at_once.store(1, Relaxed);
        let programs = [1, 2].map(Program::constant);
        programs.iter().for_each(|program| native.submit(program));
        assert!(programs[0].native().is_some() && programs[1].native().is_none());
        native.start();
        wait(&programs[1]);
    }

    #[test]
    fn joined_programs_are_compiled_at_once_as_far_as_that_goes_and_later_behind_it() {
        let native = NativeCode::new();
        native.at_once.store(JOINED_COST * 3, Relaxed);
        let programs = || vec![Program::constant(1); 2];
        let joints = [(); 2].map(|()| FusedPrograms::new(LinkType::ETHERNET, programs()));
        joints.iter().for_each(|joint| native.submit_fused(joint));
        assert!(joints[0].native().is_some() && joints[1].native().is_none());
        native.start();
        let deadline = Instant::now() + Duration::from_secs(60);
        while joints[1].native().is_none() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    #[test]
    fn programs_are_compiled_at_once_before_the_start_and_later_behind_it() {
        let native = NativeCode::new();
        let (before, after) = (Program::constant(1), Program::constant(2));
        native.submit(&before);
        assert!(before.native().is_some());
        native.start();
        native.submit(&after);
        wait(&after);
        assert_eq!(native.notice(), None);
    }

    #[test]
    fn what_stays_with_the_interpreter_is_said_once() {
        for is_started in [false, true] {
            let native = NativeCode::new();
            if is_started {
                native.start();
            }
            let program = endless();
            native.submit(&program);
            let deadline = Instant::now() + Duration::from_secs(60);
            let notice = loop {
                if let Some(notice) = native.notice() {
                    break notice;
                }
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            };
            assert!(notice.contains("interpreted"), "{notice}");
            native.submit(&endless());
            assert_eq!(native.notice(), None);
        }
    }
}
