//! Machine code for the recorder's filters, made where nobody waits for it.
//!
//! What is known before the threads start is compiled then, so that short runs use it too. Later, for link types that a file
//! brings up on the way and for dumps, programs go to a thread of their own and are interpreted until it is done with them.
//! A program for which there is no machine code stays with the interpreter; the user is told once.

use std::sync::{
    Mutex, OnceLock,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use retroscope_filter::{Compiler, Joint, Program};

use crate::control::lock;

/// Programs compiled before the start at most, at some tenths of a millisecond each. More go to the thread.
const AT_START_MAX: usize = 1000;

/// What a program of a [`Joint`] costs, in programs compiled by themselves: of 64 short ones some 0.5 ms each, and more of long ones.
const JOINED_COST: usize = 4;

/// See the module. Shared by all threads that meet new filters; none of its functions takes long but
/// [`Self::submit`] and [`Self::submit_joint`] before [`Self::start`].
#[derive(Debug)]
pub(crate) struct NativeCode {
    /// The thread, from the start on. `None`: the system gave none.
    compiler: OnceLock<Option<Compiler>>,
    /// Programs that are still compiled at once.
    at_once: AtomicUsize,
    /// Programs that the thread is to compile, until it is there.
    later: Mutex<Vec<NativeJob>>,
    /// Why a program stays with the interpreter: the first reason.
    failure: OnceLock<String>,
    told: AtomicBool,
}

/// What the thread compiles.
#[derive(Debug)]
enum NativeJob {
    One(Program),
    Together(Joint),
}

// The atomics order nothing else: Relaxed.
impl NativeCode {
    /// Without a thread yet: what is submitted is compiled at once.
    pub(crate) fn new() -> Self {
        Self {
            compiler: OnceLock::new(),
            at_once: AtomicUsize::new(AT_START_MAX),
            later: Mutex::default(),
            failure: OnceLock::new(),
            told: AtomicBool::new(false),
        }
    }

    /// Starts the thread. From now on nobody waits for a program to be compiled.
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

    /// Sees to it that a program runs as machine code, in every clone: now, or some time after the start.
    pub(crate) fn submit(&self, program: &Program) {
        if !self.is_at_once(1) {
            self.leave(NativeJob::One(program.clone()));
        } else if let Err(error) = program.make_native() {
            let _ = self.failure.set(error.to_string());
        }
    }

    /// Sees to it that programs run as one function, in every clone: now, or some time after the start.
    pub(crate) fn submit_joint(&self, joint: &Joint) {
        if self.is_at_once(JOINED_COST * joint.programs().len()) {
            // Where they cannot be joined each runs by itself; if that is as an interpreter, `submit` said so.
            let _ = joint.make_native();
        } else {
            self.leave(NativeJob::Together(joint.clone()));
        }
    }

    /// Whether a program that costs `cost` is still compiled at once; if so, its cost is counted.
    fn is_at_once(&self, cost: usize) -> bool {
        let at_once = self.at_once.load(Relaxed);
        let is_at_once = at_once >= cost && cost > 0;
        if is_at_once {
            // Only one thread submits before the start.
            self.at_once.store(at_once - cost, Relaxed);
        }
        is_at_once
    }

    /// Leaves it to the thread, or to the interpreter where the system gave none.
    fn leave(&self, work: NativeJob) {
        match (self.compiler.get(), work) {
            (None, work) => lock(&self.later).push(work),
            (Some(None), _) => {}
            (Some(Some(compiler)), NativeJob::One(program)) => compiler.submit(&program),
            (Some(Some(compiler)), NativeJob::Together(joint)) => compiler.submit_joint(&joint),
        }
    }

    /// A sentence if some program had to stay with the interpreter, once.
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
        // One thread asks at a time: at the start the one that starts, then the analyzer.
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

    /// So long that it is never compiled.
    fn endless() -> Program {
        Program::new(vec![Instruction::ret(1); 1 << 20], false).unwrap()
    }

    /// Waits until a program runs as machine code.
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
        let joints = [(); 2].map(|()| Joint::new(LinkType::ETHERNET, programs()));
        joints.iter().for_each(|joint| native.submit_joint(joint));
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
