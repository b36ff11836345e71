//! `retroscope doctor`: finds causes of packet loss on this machine, and settings that change
//! packets before they are recorded.
//!
//! Each area is a module that gathers facts from the system and evaluates these facts:
//!
//! - `permission`: capabilities of this process and of the program's file,
//! - `memory`: memory for a ring, and the limit on locked memory,
//! - `pages`: huge pages for a ring,
//! - `numa`: nodes of the interfaces,
//! - `irq`: CPUs that the NICs interrupt,
//! - `kernel`: the kernel's input queues and filter programs,
//! - `governor`: frequency governors of the CPUs,
//! - `interface`: state, offloads and losses of each interface,
//! - `host`: whether this host uses an interface,
//! - `nic`: receive ring, flow control and time stamps of a NIC,
//! - `rss`: whether the NIC's hash splits conversations,
//! - `clock`: the kernel's clock, which usually timestamps packets,
//! - `library`: the libpcap that compiles filters.
//!
//! docs/tuning.md has a line for each check.
//!
//! The command changes nothing, captures no packet and needs no privilege.

mod clock;
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
    sync::Arc,
};

use retroscope_api::doctor as finding;
use retroscope_packet::LinkType;

use self::{
    finding::{Doctor, DoctorReport, Finding},
    report::Text,
};
use crate::{
    failure::{Code, Failure, put, put_json},
    numa::Topology,
    system_file::{read, read_number},
};

/// All checks.
const CHECKS: [&str; 23] = [
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
    nic::CHECK_STAMPS,
    rss::CHECK,
    clock::CHECK,
    clock::CHECK_SOURCE,
    library::CHECK,
];

/// Check this machine for causes of packet loss, and suggest remedies.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing would lose packets, 1 something would (or an interface does not exist), \
                  2 wrong arguments."
)]
pub(crate) struct Args {
    /// Check only this interface. Repeatable
    #[arg(short, long, value_name = "IFACE")]
    interface: Vec<String>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let report = DoctorReport::new(findings(&args.interface)?, &CHECKS);
    let done = if args.json {
        put_json(&report)?
    } else {
        put(&report.text(wants_colour()))?
    };
    Ok(if report.loses_packets {
        Code::Failed.into()
    } else {
        done
    })
}

/// The findings that a recorder reports over HTTP: those of the command, except the check
/// `permission`, because a recorder drops its capabilities after it has opened the sources.
pub(super) fn of_recorder() -> Doctor {
    Doctor(Arc::new(|wanted| {
        let mut findings = findings(wanted).map_err(|error| error.to_string())?;
        findings.retain(|finding| finding.check != permission::CHECK);
        Ok(DoctorReport::new(findings, &CHECKS))
    }))
}

/// All findings. Interfaces are limited to `wanted`, unless `wanted` is empty.
fn findings(wanted: &[String]) -> Result<Vec<Finding>, Failure> {
    let interfaces = interface::gather(wanted)?;
    let names = interfaces.iter().map(|one| one.summary.name.as_str());
    let (sys, proc) = (Path::new("/sys"), Path::new("/proc"));
    let mut findings = vec![permission::finding()];
    findings.extend(memory::findings());
    findings.extend(pages::findings());
    findings.extend(numa::findings(&Topology::read(sys, names)));
    let in_sysfs = interfaces.iter().filter(|one| one.in_sysfs);
    findings.extend(in_sysfs.filter_map(|one| irq::finding(sys, proc, &one.summary.name)));
    findings.extend(kernel::findings());
    findings.extend(governor::finding(sys));
    for facts in &interfaces {
        let name = &facts.summary.name;
        let mut told = facts.findings();
        if !facts.summary.loopback {
            let is_ethernet = facts.summary.link_type == Some(LinkType::ETHERNET);
            told.extend(is_ethernet.then(|| host::finding(name)));
            told.extend(nic::findings(name));
        }
        told.extend(rss::findings(name, facts.receive_queues));
        findings.extend(told.into_iter().map(|finding| finding.on(name)));
    }
    findings.extend(clock::findings());
    findings.push(library::finding());
    Ok(findings)
}

/// Colors are for a terminal other than `dumb`, unless `NO_COLOR` is not empty (no-color.org).
fn wants_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_is_of_a_listed_check() {
        for finding in findings(&[]).unwrap() {
            assert!(CHECKS.contains(&finding.check), "{}", finding.check);
        }
    }
}
