//! Helpers that all tests of the program can use.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::Output,
};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_retroscope");

pub(crate) fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).expect("stdout is text")
}

pub(crate) fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).expect("stderr is text")
}

/// Path of a file in the folder `shared` next to the checkout. `None`, with a message, if the file
/// is missing.
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    skip(&format!(
        "{} is not there; nothing was tested",
        path.display()
    ));
    None
}

/// Prints that a test was skipped. Writes to stderr directly, because the test harness captures the
/// output of passing tests.
pub(crate) fn skip(why: &str) {
    let _ = writeln!(io::stderr(), "SKIP: {why}");
}
