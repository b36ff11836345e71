//! What the figures were measured on: `machine.json` beside `results.json`.
//!
//! A fact that the system does not tell is left out.

use std::{fs, io, path::Path, process::Command};

use serde_json::{Map, Value};

use crate::{pin, session::at};

/// A file of facts, in the folder of results.
pub const MACHINE: &str = "machine.json";

/// Facts about machine and build, each a word or a sentence, in the order in which they should be read.
#[derive(Debug, Clone, Default)]
pub struct Machine(Vec<(String, String)>);

impl Machine {
    /// Looks around.
    #[must_use]
    pub fn look() -> Self {
        let cpuinfo = file("/proc/cpuinfo").unwrap_or_default();
        let meminfo = file("/proc/meminfo").unwrap_or_default();
        let cpu = |of: &str| file(&format!("/sys/devices/system/cpu/cpu0/{of}"));
        let model = field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "CPU part"));
        let kib = field(&meminfo, "MemTotal").and_then(|kib| kib.split(' ').next()?.parse().ok());
        let flags = field(&cpuinfo, "flags").unwrap_or_default();
        let is_guest = flags.split(' ').any(|flag| flag == "hypervisor");
        let mut machine = Self::default();
        for (name, fact) in [
            ("cpu", model),
            ("cores", Some(pin::cores().to_string())),
            ("l1d", cpu("cache/index0/size")),
            ("l2", cpu("cache/index2/size")),
            ("l3", cpu("cache/index3/size")),
            (
                "memory",
                kib.map(|kib: f64| format!("{:.1} GiB", kib / f64::from(1 << 20))),
            ),
            ("kernel", file("/proc/sys/kernel/osrelease")),
            ("thp", chosen("/sys/kernel/mm/transparent_hugepage/enabled")),
            ("governor", cpu("cpufreq/scaling_governor")),
            ("hypervisor", is_guest.then(|| "yes".to_owned())),
            ("rustc", said("rustc", &["--version"])),
            ("commit", commit()),
            ("date", said("date", &["-u", "+%F"])),
            ("peers", peers()),
        ] {
            machine.fact(name, fact);
        }
        machine
    }

    /// Adds a fact, if there is one.
    pub fn fact(&mut self, name: &str, fact: Option<String>) {
        if let Some(fact) = fact.filter(|fact| !fact.is_empty()) {
            self.0.push((name.to_owned(), fact));
        }
    }

    /// All facts.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, fact)| (name.as_str(), fact.as_str()))
    }

    /// Writes them into the folder as one flat object.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let lines: Vec<String> = self
            .0
            .iter()
            .map(|(name, fact)| {
                format!(
                    "  {}: {}",
                    Value::from(name.as_str()),
                    Value::from(fact.as_str())
                )
            })
            .collect();
        let path = folder.join(MACHINE);
        let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
        fs::write(&path, text).map_err(|error| at(&path, &error))
    }

    /// Reads what [`Self::write`] wrote, sorted by name.
    ///
    /// # Errors
    /// The system's, or what is wrong with the text, with the path.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(MACHINE);
        let text = fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
        let facts: Map<String, Value> = serde_json::from_str(&text)?;
        let fact =
            |(name, fact): (&String, &Value)| Some((name.clone(), fact.as_str()?.to_owned()));
        Ok(Self(facts.iter().filter_map(fact).collect()))
    }
}

fn file(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The word in brackets: `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    let text = file(path)?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// What stands behind a name and a colon.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The commit of the working directory, and whether its code, documents aside, was changed.
fn commit() -> Option<String> {
    let commit = said("git", &["rev-parse", "--short", "HEAD"])?;
    let changed = [
        "status",
        "--porcelain",
        "-uno",
        "--",
        ":/",
        ":(top,exclude)docs",
    ];
    let clean = said("git", &changed)?.is_empty();
    Some(if clean {
        commit
    } else {
        format!("{commit} with changes")
    })
}

/// The peers of this build with their versions: of crates those that `Cargo.lock` has, of Debian's packages those that are installed.
fn peers() -> Option<String> {
    let crates = ["rtrb", "crossbeam-queue", "crossbeam-channel"].map(|name| {
        let (_, rest) =
            include_str!("../../Cargo.lock").split_once(&format!("name = \"{name}\""))?;
        let (_, rest) = rest.split_once("version = \"")?;
        Some(format!("{name} {}", rest.split_once('"')?.0))
    });
    let packages = [
        "libreaderwriterqueue-dev",
        "libconcurrentqueue-dev",
        "libdpdk-dev",
    ];
    let packages = packages.into_iter().filter(|_| cfg!(feature = "peers"));
    let installed =
        packages.map(|name| said("dpkg-query", &["-W", "-f=${Package} ${Version}", name]));
    let known: Vec<_> = crates.into_iter().chain(installed).flatten().collect();
    Some(known.join(", "))
}

/// What a program says, if it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut machine = Machine::look();
        machine.fact("command", Some("make \"bench\"".to_owned()));
        machine.fact("nothing", None);
        machine.write(folder.path()).unwrap();
        let read = Machine::read(folder.path()).unwrap();
        let mut facts: Vec<_> = machine.facts().collect();
        facts.sort_unstable();
        assert_eq!(read.facts().collect::<Vec<_>>(), facts);
        assert!(facts.contains(&("command", "make \"bench\"")));
        assert!(facts.iter().any(|(name, _)| *name == "cores"));
    }
}
