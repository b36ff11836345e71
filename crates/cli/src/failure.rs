//! Exit codes, and output to stdout and stderr.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write},
    process::ExitCode,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::commands::removed;

/// Maximum number of deferred messages. Further messages are dropped.
const HELD_MAX: usize = 1000;

/// Messages that wait until the terminal shows no screen. `None`: messages are printed at once.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Exit codes. 0 means done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// A requested action failed.
    Failed = 1,
    /// The arguments are wrong, or a configuration file or script that they name.
    Usage = 2,
    /// Done, but packets, triggers, flows or lines of EVE are missing.
    Incomplete = 3,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// The reason why a command ends early.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    /// An action failed: exit 1.
    pub(crate) fn failed(message: impl fmt::Display) -> Self {
        Self {
            code: Code::Failed,
            message: message.to_string(),
        }
    }

    /// The arguments, or a file that they name, are wrong: exit 2. The message should name the
    /// remedy.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self {
            code: Code::Usage,
            message: message.to_string(),
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn report(self) -> ExitCode {
        say(&self.message);
        self.code.into()
    }
}

/// Prints a clap error: help and version unchanged, a wrong argument as one sentence.
pub(crate) fn arguments(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    let whole = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == whole {
        // A failure to print, for example because the reader of stdout left, changes no exit code.
        let _ = error.print();
        let code = u8::try_from(error.exit_code()).unwrap_or(Code::Usage as u8);
        return ExitCode::from(code);
    }
    if let Some(instead) = removed::instead(error) {
        return Failure::usage(instead).report();
    }
    let sentence = sentence(&error.to_string());
    Failure::usage(format!("{sentence} (see --help)")).report()
}

/// The first paragraph of a clap error, and its tips, in one line.
pub(crate) fn sentence(rendered: &str) -> String {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut paragraphs = rendered.split("\n\n");
    let first = words(paragraphs.next().unwrap_or_default());
    let first = first.strip_prefix("error: ").unwrap_or(&first);
    let tips = paragraphs.filter_map(|p| p.trim_start().strip_prefix("tip: ").map(words));
    let tips: String = tips.map(|tip| format!("; {tip}")).collect();
    format!("{first}{tips}")
}

/// Prints a line on stderr. Ignores errors, where `eprintln!` panics: the recording goes on if the
/// reader of stderr is gone.
pub(crate) fn print_line(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Prints a message on stderr, or defers the message: see [`hold`].
pub(crate) fn say(message: &str) {
    match &mut *held() {
        Some(held) if held.len() < HELD_MAX => held.push(message.to_owned()),
        Some(_) => {}
        None => print_line(&format!("retroscope: {message}")),
    }
}

fn held() -> MutexGuard<'static, Option<Vec<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Defers messages until [`release`], if stderr is a terminal.
pub(crate) fn hold() {
    *held() = io::stderr().is_terminal().then(Vec::new);
}

pub(crate) fn release() {
    let messages = held().take();
    messages.iter().flatten().for_each(|message| say(message));
}

/// Writes to stdout. A reader that leaves early is no error.
///
/// # Errors
/// [`Failure`], exit 1.
pub(crate) fn put(text: &str) -> Result<ExitCode, Failure> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(
            format_args!("cannot write stdout: {error}"),
        )),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Writes an object in one line, like [`put()`].
///
/// # Errors
/// [`Failure`], exit 1.
pub(crate) fn put_json(object: &impl serde::Serialize) -> Result<ExitCode, Failure> {
    put(&(serde_json::to_string(object).map_err(Failure::failed)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_argument_is_one_sentence() {
        let rendered = "error: unexpected argument '--trigge' found\n\n  tip: a similar argument exists: '--trigger'\n\nUsage: x\n";
        assert_eq!(
            sentence(rendered),
            "unexpected argument '--trigge' found; a similar argument exists: '--trigger'"
        );
        assert_eq!(
            sentence(
                "error: the following required arguments were not provided:\n  -r <FILE>\n\nUsage: x\n"
            ),
            "the following required arguments were not provided: -r <FILE>"
        );
    }
}
