//! Exit codes and the one sentence that goes with them.

use std::{fmt, process::ExitCode};

/// Exit codes: 0 done, 1 failed, 2 usage, 3 done but a dump is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// Something that the user asked for could not be done.
    Failed = 1,
    /// The arguments are wrong.
    Usage = 2,
    /// Done, but a dump is incomplete or failed.
    Incomplete = 3,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Why a command ends early: an exit code and what to tell the user.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    message: String,
}

impl Failure {
    /// Something could not be done: exit 1.
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self {
            code: Code::Failed,
            message: message.to_string(),
        }
    }

    /// The arguments are wrong: exit 2. The message says what to write instead.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            code: Code::Usage,
            message: message.to_string(),
        }
    }

    /// Tells the user and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        say(&self.message);
        self.code.into()
    }
}

/// A message for the user, on stderr, with the program's name. Several lines stay together.
#[expect(clippy::print_stderr, reason = "words for the user go to stderr")]
pub(crate) fn say(message: &str) {
    eprintln!("retroscope: {message}");
}
