//! Lists of CPUs such as `0-3,8`, the CPUs near an interface, and the assignment of CPUs to
//! threads.

use std::{
    fs,
    path::Path,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// CPU numbers in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuList(Vec<u32>);

/// A text that is not a list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is no list of CPUs: write one like 0-3,8")]
pub struct CpuListError {
    /// The text.
    pub text: String,
}

/// The kernel's limit of CPUs: `NR_CPUS` of its largest configuration.
const CPUS_MAX: u32 = 8192;

impl CpuList {
    /// The CPU numbers.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }

    /// Reads the list in a file of sysfs. Empty if the file is missing or has no list.
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or_default()
    }

    /// The CPUs near the device of an interface. Empty if these CPUs are unknown, or include all
    /// CPUs that are online. Also empty if the interface under `sys` has another index: sysfs may
    /// show another network namespace.
    pub fn near(sys: &Path, interface: &str, index: i32) -> Self {
        let directory = sys.join("class/net").join(interface);
        let found = fs::read_to_string(directory.join("ifindex")).unwrap_or_default();
        if interface.contains('/') || found.trim() != index.to_string() {
            return Self::default();
        }
        Self::read(&directory.join("device/local_cpulist")).unless_everywhere(sys)
    }

    /// The CPUs of a NUMA node. Empty if they are unknown, if no other CPU is online, or if `node`
    /// is negative (the kernel's number for a device without a node).
    pub fn of_node(sys: &Path, node: i32) -> Self {
        let path = sys.join(format!("devices/system/node/node{node}/cpulist"));
        Self::read(&path).unless_everywhere(sys)
    }

    fn unless_everywhere(self, sys: &Path) -> Self {
        let online = Self::read(&sys.join("devices/system/cpu/online"));
        let is_everywhere = online.0.iter().all(|cpu| self.0.contains(cpu));
        if is_everywhere { Self::default() } else { self }
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let error = || CpuListError {
            text: text.to_owned(),
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse().ok().filter(|cpu: &u32| *cpu < CPUS_MAX);
            let (from, to) = number(from).zip(number(to)).ok_or_else(error)?;
            if from > to || cpus.len() > CPUS_MAX as usize {
                return Err(error());
            }
            cpus.extend(from..=to);
        }
        Ok(Self(cpus))
    }
}

/// Assigns CPUs to the capture threads of all interfaces of a recording, in turns. Clones share the
/// turns.
#[derive(Debug, Clone, Default)]
pub struct CpuTurns {
    asked: CpuList,
    /// Threads that have got a CPU of `asked`.
    threads: Arc<AtomicUsize>,
}

impl CpuTurns {
    /// Assigns the CPUs of `asked`, which the user chose, in turns. With an empty list, threads get
    /// the CPUs near their devices, if known.
    #[must_use]
    pub fn new(asked: CpuList) -> Self {
        Self {
            asked,
            threads: Arc::default(),
        }
    }

    /// The CPUs for the next thread: the CPU whose turn it is, or all of `near` if the user asked
    /// for no CPU.
    pub fn of_thread(&self, near: &CpuList) -> Vec<u32> {
        let asked = self.asked.as_slice();
        if asked.is_empty() {
            return near.0.clone();
        }
        // Relaxed: no other data depends on the number.
        vec![asked[self.threads.fetch_add(1, Ordering::Relaxed) % asked.len()]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().unwrap()
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(list("0-3,8").as_slice(), [0, 1, 2, 3, 8]);
        assert_eq!(list("5").as_slice(), [5]);
        for wrong in [
            "",
            "x",
            "3-1",
            "0-",
            "-1",
            "1,,2",
            "9999",
            "0-8191,0-8191,0-1",
        ] {
            let error = wrong.parse::<CpuList>().unwrap_err();
            assert!(error.to_string().contains(wrong));
        }
    }

    #[test]
    fn threads_of_all_interfaces_take_turns() {
        let near = list("0-1");
        let turns = CpuTurns::new(list("4,6-8,9"));
        let of = |turns: &CpuTurns, threads: usize| -> Vec<u32> {
            (0..threads).flat_map(|_| turns.of_thread(&near)).collect()
        };
        assert_eq!(of(&turns, 3), [4, 6, 7]);
        assert_eq!(of(&turns.clone(), 4), [8, 9, 4, 6], "goes on, and around");
        assert_eq!(of(&CpuTurns::default(), 2), [0, 1, 0, 1]);
    }

    #[test]
    fn the_cpus_near_an_interface() {
        let sys = tempfile::tempdir().unwrap();
        let near = |local: &str, online: &str| {
            let device = sys.path().join("class/net/eth0/device");
            let cpus = sys.path().join("devices/system/cpu");
            fs::create_dir_all(&device).unwrap();
            fs::create_dir_all(&cpus).unwrap();
            fs::write(device.join("../ifindex"), "3\n").unwrap();
            fs::write(device.join("local_cpulist"), local).unwrap();
            fs::write(cpus.join("online"), online).unwrap();
            CpuList::near(sys.path(), "eth0", 3)
        };
        assert_eq!(near("8-15\n", "0-15\n"), list("8-15"));
        assert_eq!(near("0-15\n", "0-15\n"), CpuList::default(), "no choice");
        assert_eq!(near("\n", "0-1\n"), CpuList::default(), "unknown");
        assert_eq!(
            CpuList::near(sys.path(), "eth0", 4),
            CpuList::default(),
            "of another namespace"
        );
        assert_eq!(
            CpuList::near(sys.path(), "../net/eth0", 3),
            CpuList::default()
        );
    }
}
