//! The clock that usually timestamps packets: the kernel's real-time clock.
//!
//! The clock counts as synchronised if systemd-timesyncd's flag file exists, or if a time daemon
//! runs. The kernel's own flag (adjtimex(2)) is not used, because not every daemon sets the flag.

use std::{fs, path::Path};

use super::{finding::Finding, read};

pub(super) const CHECK: &str = "clock";
pub(super) const CHECK_SOURCE: &str = "clocksource";

/// Names of time daemons in `/proc/PID/comm`, which truncates names to 15 bytes.
const DAEMONS: [&str; 7] = [
    "chronyd",
    "ntpd",
    "ntpsec",
    "openntpd",
    "ptp4l",
    "phc2sys",
    "VBoxService",
];

/// Clock sources that are bad for time stamps. To read `hpet` or `acpi_pm` takes about a
/// microsecond or more; the jiffies advance only with the kernel's timer tick.
const SLOW: [&str; 4] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"];

/// Whether the clock is synchronised, and the kernel's clock source.
pub(super) fn findings() -> [Finding; 2] {
    let timesyncd = Path::new("/run/systemd/timesync/synchronized").exists();
    let source = read("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    [
        synchronised(timesyncd, running_daemon()),
        clock_source(source.as_deref()),
    ]
}

/// `timesyncd`: systemd-timesyncd has set the clock since the system started. `daemon`: a running
/// time daemon.
fn synchronised(timesyncd: bool, daemon: Option<String>) -> Finding {
    match daemon {
        _ if timesyncd => Finding::ok(CHECK, "is synchronised: systemd-timesyncd has set it"),
        Some(daemon) => Finding::ok(CHECK, format!("is looked after by {daemon}")),
        None => Finding::note(
            CHECK,
            "no program synchronises the clock: time stamps may differ from the stamps of other machines",
            "install and start chrony, or: sudo timedatectl set-ntp true",
        ),
    }
}

/// `source` is a name like `tsc` or `kvm-clock`.
fn clock_source(source: Option<&str>) -> Finding {
    match source {
        None => Finding::note(
            CHECK_SOURCE,
            "cannot tell which clock source the kernel uses",
            "look at the kernel's messages: dmesg | grep clocksource",
        ),
        Some(source) if SLOW.contains(&source) => Finding::warn(
            CHECK_SOURCE,
            format!(
                "the kernel reads {source}, which takes a microsecond or more for each packet's stamp"
            ),
            "boot without clocksource= and notsc, and see in dmesg why tsc is not used",
        ),
        Some(source) => Finding::ok(CHECK_SOURCE, format!("the kernel reads {source}")),
    }
}

/// The first time daemon among the visible processes.
fn running_daemon() -> Option<String> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let entry = entry.ok()?;
        let is_process = (entry.file_name().to_str()?.bytes()).all(|b| b.is_ascii_digit());
        is_process.then(|| read(entry.path().join("comm")))?
    });
    let mut names = processes.filter(|name| DAEMONS.contains(&name.as_str()));
    names.next()
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    fn severities(timesyncd: bool, daemon: Option<&str>, source: Option<&str>) -> [Severity; 2] {
        [
            synchronised(timesyncd, daemon.map(str::to_owned)).severity,
            clock_source(source).severity,
        ]
    }

    #[test]
    fn a_clock_that_nobody_sets_is_a_note() {
        assert_eq!(
            severities(true, None, Some("tsc")),
            [Severity::Ok, Severity::Ok]
        );
        let daemon = severities(false, Some("chronyd"), Some("kvm-clock"));
        assert_eq!(daemon, [Severity::Ok, Severity::Ok]);
        assert_eq!(
            severities(false, None, None),
            [Severity::Note, Severity::Note]
        );
    }

    #[test]
    fn a_slow_clock_source_loses_packets() {
        for source in SLOW {
            assert_eq!(
                severities(true, None, Some(source))[1],
                Severity::Warn,
                "{source}"
            );
        }
    }
}
