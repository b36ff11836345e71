//! What the figures were measured on: `machine.json` beside `results.json`.
//!
//! A fact that the system does not tell is left out.

use std::{collections::BTreeMap, fs, io, path::Path, process::Command};

use crate::session::{at, read_json};

/// A file of facts, in the folder of results.
pub const MACHINE: &str = "machine.json";
/// Facts that the shell tells: a name, ` | `, and a command.
const COMMANDS: &str = include_str!("machine.txt");

/// Facts about machine and build by name, each a word or a sentence.
pub type Facts = BTreeMap<String, String>;

/// Looks around.
#[must_use]
pub fn look() -> Facts {
    let commands = COMMANDS.lines().filter_map(|line| line.split_once(" | "));
    let facts = commands.filter_map(|(name, command)| Some((name.to_owned(), said(command)?)));
    facts.filter(|(_, fact)| !fact.is_empty()).collect()
}

/// Writes facts into the folder as one flat object.
///
/// # Errors
/// The system's, with the path.
pub fn write(facts: &Facts, folder: &Path) -> io::Result<()> {
    let path = folder.join(MACHINE);
    let text = serde_json::to_string_pretty(facts)?;
    fs::write(&path, text + "\n").map_err(|error| at(&path, &error))
}

/// Reads what [`write()`] wrote.
///
/// # Errors
/// The system's, or what is wrong with the text, with the path.
pub fn read(folder: &Path) -> io::Result<Facts> {
    read_json(&folder.join(MACHINE))
}

/// What a command of the shell says, if it succeeds. It is told whether this build has the peers that are C and C++.
fn said(command: &str) -> Option<String> {
    let mut shell = Command::new("sh");
    shell.env("PEERS", cfg!(feature = "peers").to_string());
    let output = shell.args(["-c", command]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut facts = look();
        facts.insert("command".to_owned(), "make \"bench\"".to_owned());
        write(&facts, folder.path()).unwrap();
        assert_eq!(read(folder.path()).unwrap(), facts);
        assert!(facts.contains_key("cores"));
    }
}
