//! The machine of the measurements: `machine.json` in the folder of `results.json`.
//!
//! A fact that the system does not report is omitted. The type [`MachineLoad`] adds the load
//! averages before and after the run, and the share of CPU time that other guests took meanwhile.

use std::{collections::BTreeMap, fs, io, path::Path, process::Command};

use crate::session::{at, read_json};

/// The file of facts, in the folder of results.
pub const MACHINE: &str = "machine.json";
/// Facts from shell commands: a name, ` | `, and a command.
const COMMANDS: &str = include_str!("machine.txt");

/// Facts about machine, build and run, by name.
pub type Facts = BTreeMap<String, String>;

/// Collects the facts of machine and build.
#[must_use]
pub fn look() -> Facts {
    let commands = COMMANDS.lines().filter_map(|line| line.split_once(" | "));
    let facts = commands.filter_map(|(name, command)| Some((name.to_owned(), said(command)?)));
    facts.filter(|(_, fact)| !fact.is_empty()).collect()
}

/// The load of the machine at the start of a run, and its CPU times then.
#[derive(Debug)]
pub struct MachineLoad {
    before: Option<String>,
    times: Option<CpuTimes>,
}

impl MachineLoad {
    /// Reads /proc/loadavg and /proc/stat.
    #[must_use]
    pub fn start() -> Self {
        Self {
            before: load_average(),
            times: CpuTimes::now(),
        }
    }

    /// Adds the load average at the start and now, and the share of CPU time that the hypervisor
    /// gave to other guests in between (steal).
    pub fn tell(&self, facts: &mut Facts) {
        let steal = self.times.zip(CpuTimes::now());
        let steal = steal.and_then(|(start, end)| end.steal_percent_since(start));
        let told = [
            ("load-before", self.before.clone()),
            ("load-after", load_average()),
            ("steal", steal.map(|percent| format!("{percent:.2} %"))),
        ];
        let told = told
            .into_iter()
            .filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
        facts.extend(told);
    }
}

/// The averages over 1, 5 and 15 minutes.
fn load_average() -> Option<String> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    let averages: Vec<&str> = text.split_whitespace().take(3).collect();
    Some(averages.join(", "))
}

/// Times of all CPUs together since the boot, in ticks (proc_stat(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTimes {
    all: u64,
    steal: u64,
}

impl CpuTimes {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the line `cpu`: user, nice, system, idle, iowait, irq, softirq, steal. The guest
    /// times that follow are already included in user and nice.
    fn parse(stat: &str) -> Option<Self> {
        let times = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let times = times.split_whitespace().take(8).map(str::parse);
        let times: Vec<u64> = times.collect::<Result<_, _>>().ok()?;
        let steal = *times.get(7)?;
        let all = times.iter().sum();
        Some(Self { all, steal })
    }

    /// Percentage of the CPU time since `start` that was stolen. `None`: the times did not grow.
    fn steal_percent_since(self, start: Self) -> Option<f64> {
        let all = self.all.checked_sub(start.all).filter(|all| *all > 0)?;
        Some(self.steal.saturating_sub(start.steal) as f64 * 100.0 / all as f64)
    }
}

/// Writes facts into the folder as one flat object.
///
/// # Errors
/// The system's error, with the path.
pub fn write(facts: &Facts, folder: &Path) -> io::Result<()> {
    let path = folder.join(MACHINE);
    let text = serde_json::to_string_pretty(facts)?;
    fs::write(&path, text + "\n").map_err(|error| at(&path, &error))
}

/// Reads the file that [`write()`] wrote.
///
/// # Errors
/// The system's error or the fault of the text, with the path.
pub fn read(folder: &Path) -> io::Result<Facts> {
    read_json(&folder.join(MACHINE))
}

/// The output of a shell command, if it succeeds. `PEERS` in its environment is whether this build
/// has the C and C++ peers.
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

    #[test]
    fn steal_is_a_share_of_the_time_of_all_cpus() {
        let at = |steal, guest| {
            let text = format!(
                "intr 7\ncpu  10 20 30 {} 1 2 3 {steal} {guest} 0\n",
                934 - steal
            );
            CpuTimes::parse(&text)
        };
        let (start, same) = (at(0, 0).unwrap(), at(0, 500).unwrap());
        assert_eq!(start, same, "guest times are not counted twice");
        assert_eq!(same.steal_percent_since(start), None);
        let end = CpuTimes::parse("cpu  10 20 30 1879 1 2 3 55 0 0\n").unwrap();
        assert_eq!(end.steal_percent_since(start), Some(5.5));
        assert_eq!(CpuTimes::parse("cpu  1 2 3\n"), None);
    }

    #[test]
    fn a_run_names_the_processor_and_the_load_of_the_machine() {
        let mut facts = look();
        MachineLoad::start().tell(&mut facts);
        for name in ["cpu", "load-before", "load-after"] {
            assert!(facts.contains_key(name), "{name} in {facts:?}");
        }
        assert_eq!(facts["load-after"].split(", ").count(), 3);
    }
}
