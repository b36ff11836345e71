//! Frequency governors of the CPUs: the kernel's Documentation/admin-guide/pm/cpufreq.rst.
//!
//! A CPU that saves power may be slow at the start of a burst, when packets are waiting.

use std::{collections::BTreeSet, fs, path::Path};

use super::{finding::Finding, read};

pub(super) const CHECK: &str = "governor";

/// A finding, if the CPUs have governors. Most virtual machines have no governors. `sys` is the
/// mount point of sysfs.
pub(super) fn finding(sys: &Path) -> Option<Finding> {
    let cpus = fs::read_dir(sys.join("devices/system/cpu")).ok()?;
    let paths = cpus.filter_map(|entry| Some(entry.ok()?.path().join("cpufreq/scaling_governor")));
    let governors: BTreeSet<String> = paths.filter_map(read).collect();
    let is_saving = |governor: &&String| *governor != "performance";
    let saving: Vec<&str> = governors
        .iter()
        .filter(is_saving)
        .map(String::as_str)
        .collect();
    if governors.is_empty() {
        return None;
    }
    if saving.is_empty() {
        let what = "all CPUs run at full speed (performance)";
        return Some(Finding::ok(CHECK, what));
    }
    let saving = saving.join(", ");
    Some(Finding::note(
        CHECK,
        format!("CPUs change their frequency ({saving}): they are slow when a burst begins"),
        "sudo cpupower frequency-set -g performance",
    ))
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    #[test]
    fn governors_that_save_power_are_noted() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(finding(root.path()), None);
        let mut severities = Vec::new();
        for (cpu, governor) in [
            ("cpu0", "performance\n"),
            ("cpu1", "performance\n"),
            ("cpu2", "schedutil\n"),
        ] {
            let folder = root
                .path()
                .join("devices/system/cpu")
                .join(cpu)
                .join("cpufreq");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("scaling_governor"), governor).unwrap();
            severities.push(finding(root.path()).unwrap().severity);
        }
        assert_eq!(severities, [Severity::Ok, Severity::Ok, Severity::Note]);
        assert!(finding(root.path()).unwrap().what.contains("(schedutil)"));
    }
}
