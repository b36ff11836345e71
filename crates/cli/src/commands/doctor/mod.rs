//! `retroscope doctor`: what on this machine would lose packets, or change them before they are recorded.
//!
//! Each area is a module with its facts, a function that gathers them from the system, and a pure function that judges
//! them:
//!
//! - `permission`: capabilities of this process and of the program's file,
//! - `memory`: what a ring may take,
//! - `pages`: huge pages for it,
//! - `numa`: on which node the interfaces are,
//! - `irq`: which CPUs their cards interrupt,
//! - `kernel`: the kernel's input queues and filter programs,
//! - `governor`: how CPUs choose their frequency,
//! - `interface`: state, offloads and losses of each interface,
//! - `host`: whether this host uses it,
//! - `nic`: its receive ring and flow control,
//! - `rss`: whether the NIC's hash splits conversations,
//! - `clock`: who stamps the packets,
//! - `library`: which libpcap compiles the filters.
//!
//! docs/tuning.md has a line for each check; a test compares them.
//!
//! Nothing is changed, no packet is captured, and no privilege is needed.

mod clock;
mod finding;
mod governor;
mod host;
mod interface;
mod irq;
mod kernel;
mod library;
mod memory;
mod nic;
mod numa;
mod pages;
mod permission;
mod report;
mod rss;

use std::{
    io::{self, IsTerminal},
    path::Path,
    process::ExitCode,
};

use retroscope_packet::LinkType;

use self::{finding::Finding, report::Report};
use crate::failure::{Code, Failure, put};

/// Every check that there is.
const CHECKS: [&str; 22] = [
    permission::CHECK,
    memory::CHECK,
    memory::CHECK_LOCKED,
    pages::CHECK,
    pages::CHECK_SHARED,
    numa::CHECK,
    irq::CHECK,
    kernel::CHECK_BACKLOG,
    kernel::CHECK_BUDGET,
    kernel::CHECK_BPF,
    governor::CHECK,
    interface::CHECK_STATE,
    interface::CHECK_OFFLOAD,
    interface::CHECK_VLAN,
    interface::CHECK_DROPS,
    host::CHECK,
    nic::CHECK_RING,
    nic::CHECK_PAUSE,
    rss::CHECK,
    clock::CHECK,
    clock::CHECK_SOURCE,
    library::CHECK,
];

/// Check this machine for what would lose packets, and say what to do.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing would lose packets, 1 something would (or an interface does not exist), \
                  2 wrong arguments."
)]
pub(crate) struct Args {
    /// Look at this interface only; repeat for several
    #[arg(short, long, value_name = "IFACE")]
    interface: Vec<String>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let report = Report::new(findings(&args.interface)?, &CHECKS);
    let text = if args.json {
        let line = serde_json::to_string(&report).map_err(Failure::failed)?;
        line + "\n"
    } else {
        report.text(wants_colour())
    };
    let done = put(&text)?;
    Ok(if report.loses_packets() {
        Code::Failed.into()
    } else {
        done
    })
}

/// All findings; of interfaces only those in `wanted`, unless it is empty.
fn findings(wanted: &[String]) -> Result<Vec<Finding>, Failure> {
    let mut findings = permission::Facts::gather().findings();
    findings.extend(memory::Facts::gather().findings());
    findings.extend(pages::Facts::gather().findings());
    findings.extend(numa::findings(&numa::gather(wanted)));
    findings.extend(irq::gather(wanted).iter().map(irq::Facts::finding));
    findings.extend(kernel::Facts::gather().findings());
    findings.extend(governor::finding(&governor::gather(Path::new("/sys"))));
    for facts in interface::gather(wanted)? {
        let queues = rss::Facts::gather(&facts.summary.name, facts.receive_queues);
        let is_ethernet = facts.summary.link_type == Some(LinkType::ETHERNET);
        let host = (is_ethernet && !facts.summary.loopback)
            .then(|| host::Facts::gather(&facts.summary.name).finding());
        let card = (!facts.summary.loopback).then(|| nic::Facts::gather(&facts.summary.name));
        findings.extend(facts.findings());
        findings.extend(host);
        findings.extend(card.into_iter().flat_map(|card| card.findings()));
        findings.extend(queues.into_iter().flat_map(|facts| facts.findings()));
    }
    findings.extend(clock::Facts::gather().findings());
    findings.extend(library::Facts::gather().findings());
    Ok(findings)
}

/// Colour is for a terminal whose user did not forbid it (<https://no-color.org>).
fn wants_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// The text of a small file under `/proc` or `/sys`, without the newline; `None` if it is not there.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

/// The number in such a file.
fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use super::*;

    #[test]
    fn the_tuning_page_has_a_line_for_each_check_and_no_other() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tuning.md");
        let page = fs::read_to_string(page).unwrap();
        let lines = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let told: Vec<&str> = lines.filter_map(|line| line.split('`').next()).collect();
        let checks = BTreeSet::from(CHECKS);
        assert_eq!(told.len(), checks.len(), "a check has two lines");
        assert_eq!(BTreeSet::from_iter(told), checks);
        for finding in findings(&[]).unwrap() {
            assert!(checks.contains(finding.check), "{}", finding.check);
        }
    }
}
