//! The kernel's processing before a capture sees packets: its input queues and its filter programs.
//!
//! See the kernel's Documentation/admin-guide/sysctl/net.rst. `/proc/net/softnet_stat` has a line
//! for each online CPU with counts since the system started, in hexadecimal. The first three
//! columns are processed packets, packets dropped at the input queue, and rounds that used up their
//! time or budget (`softnet_seq_show` of `net/core/net-procfs.c`).

use super::{finding::Finding, read, read_number};
use crate::units::counted;

pub(super) const CHECK_BACKLOG: &str = "backlog";
pub(super) const CHECK_BUDGET: &str = "budget";
pub(super) const CHECK_BPF: &str = "bpf-jit";

/// Sums of the first three columns of `softnet_stat` over all its lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SoftnetStat {
    taken: u64,
    dropped: u64,
    squeezed: u64,
}

/// Findings about the input queues, the budget, and the filter programs. If `softnet_stat` is
/// unreadable, there is no finding about queues and budget. If `bpf_jit_enable` is unreadable,
/// there is no finding about filter programs.
pub(super) fn findings() -> Vec<Finding> {
    let setting = |name| read_number(format!("/proc/sys/net/core/{name}"));
    let input = read("/proc/net/softnet_stat").and_then(|text| SoftnetStat::parse(&text));
    let input = input.map(|input| {
        [
            queue(input, setting("netdev_max_backlog")),
            time(input, setting("netdev_budget")),
        ]
    });
    // This setting may be unreadable, or absent in a network namespace.
    let filters = setting("bpf_jit_enable").map(filters);
    input.into_iter().flatten().chain(filters).collect()
}

fn filters(compiles: u64) -> Finding {
    if compiles > 0 {
        return Finding::ok(CHECK_BPF, "the kernel compiles filters and XDP programs");
    }
    Finding::note(
        CHECK_BPF,
        "the kernel interprets filters and XDP programs, at several times the cost",
        "sudo sysctl net.core.bpf_jit_enable=1",
    )
}

/// A command that doubles the setting `name`. If the `value` is unknown, a command that shows the
/// setting.
fn doubled(name: &str, value: Option<u64>) -> String {
    match value {
        Some(value) => format!("sudo sysctl net.core.{name}={}", value.saturating_mul(2)),
        None => format!("a larger one; see it with: sysctl net.core.{name}"),
    }
}

/// The finding about the input queues. `backlog`: the setting `netdev_max_backlog`, the maximum of
/// packets in the input queue of each CPU.
fn queue(input: SoftnetStat, backlog: Option<u64>) -> Finding {
    let dropped = match input.dropped {
        0 => "nothing".to_owned(),
        dropped => counted(dropped, "packet"),
    };
    let what = format!("the kernel's input queues have dropped {dropped} since the system started");
    if input.dropped == 0 {
        return Finding::ok(CHECK_BACKLOG, what);
    }
    Finding::warn(CHECK_BACKLOG, what, doubled("netdev_max_backlog", backlog))
}

/// The finding about the time for receiving. `budget`: the setting `netdev_budget`, the maximum of
/// packets that the kernel processes in a round.
fn time(input: SoftnetStat, budget: Option<u64>) -> Finding {
    let times = counted(input.squeezed, "time");
    let what = format!("receiving ran out of its budget {times}");
    // A round processes many packets, so one exhausted round in 1000 packets means that the NIC is
    // often not emptied.
    if input.squeezed > 0 && input.squeezed >= input.taken / 1000 {
        let what = format!("{what} since the system started");
        return Finding::note(CHECK_BUDGET, what, doubled("netdev_budget", budget));
    }
    let packets = counted(input.taken, "packet");
    Finding::ok(CHECK_BUDGET, format!("{what}, for {packets}"))
}

impl SoftnetStat {
    /// Adds up the lines of `softnet_stat`. `None`: a line cannot be parsed, or `text` is empty.
    fn parse(text: &str) -> Option<Self> {
        let mut sum = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let mut number = || u64::from_str_radix(words.next()?, 16).ok();
            sum.taken += number()?;
            sum.dropped += number()?;
            sum.squeezed += number()?;
        }
        (!text.is_empty()).then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    #[test]
    fn lines_of_all_cpus_are_added() {
        let text = "0000000a 00000001 00000002 00000000\n000000ff 00000000 0000000f 00000000\n";
        let sum = SoftnetStat {
            taken: 265,
            dropped: 1,
            squeezed: 17,
        };
        assert_eq!(SoftnetStat::parse(text), Some(sum));
        for wrong in ["", "0000000a", "0000000a 00000001 word"] {
            assert_eq!(SoftnetStat::parse(wrong), None, "{wrong}");
        }
    }

    fn complaints(dropped: u64, squeezed: u64, compiles: u64) -> Vec<(Severity, String)> {
        let input = SoftnetStat {
            taken: 1_000_000,
            dropped,
            squeezed,
        };
        let findings = [
            queue(input, Some(1000)),
            time(input, Some(300)),
            filters(compiles),
        ];
        let told = findings
            .into_iter()
            .filter(|finding| finding.severity != Severity::Ok);
        told.map(|finding| (finding.severity, finding.advice))
            .collect()
    }

    #[test]
    fn what_the_kernel_dropped_is_a_warning() {
        assert_eq!(complaints(0, 999, 1), []);
        let backlog = "sudo sysctl net.core.netdev_max_backlog=2000".to_owned();
        assert_eq!(complaints(1, 0, 1), [(Severity::Warn, backlog)]);
        let budget = "sudo sysctl net.core.netdev_budget=600".to_owned();
        assert_eq!(complaints(0, 1000, 2), [(Severity::Note, budget)]);
        let bpf = "sudo sysctl net.core.bpf_jit_enable=1".to_owned();
        assert_eq!(complaints(0, 0, 0), [(Severity::Note, bpf)]);
    }
}
