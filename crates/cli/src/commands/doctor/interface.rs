//! Interfaces: whether they can be recorded, whether they change frames, and how many packets they
//! lost.
//!
//! State and offloads come from the capture crate, which reads them in this process's network
//! namespace. Counters and queues come from `/sys/class/net`, which may show another namespace, so
//! they are used only if the interface index in `/sys/class/net` matches.

use std::path::Path;

use retroscope_capture::af_packet::{InterfaceSummary, Offloads, interfaces, offloads};
use retroscope_packet::LinkType;

use super::{
    finding::{Finding, Severity},
    read_number,
};
use crate::{failure::Failure, units::counted};

pub(super) const CHECK_STATE: &str = "state";
pub(super) const CHECK_OFFLOAD: &str = "offload";
pub(super) const CHECK_VLAN: &str = "vlan";
pub(super) const CHECK_DROPS: &str = "drops";

/// Facts about one interface. Its counters start when the driver creates the interface, and keep
/// their values while the interface is down (Documentation/networking/statistics.rst). A counter of
/// `None` is unknown.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) summary: InterfaceSummary,
    pub(super) offloads: Offloads,
    /// Receive queues; `None`: unknown.
    pub(super) receive_queues: Option<u64>,
    /// `rx_dropped`: packets that the kernel received and dropped, also for lack of a receiver.
    pub(super) dropped: Option<u64>,
    /// `rx_missed_errors`: packets for which the NIC had no buffer.
    pub(super) missed: Option<u64>,
    /// `rx_fifo_errors`: overflows of the NIC's internal memory, if the driver counts these.
    pub(super) overrun: Option<u64>,
    /// Whether `/sys/class/net` shows this interface, with the same name and index. If not, sysfs
    /// probably shows another network namespace.
    pub(super) in_sysfs: bool,
    /// The user named this interface, so it is meant to work.
    pub(super) wanted: bool,
}

/// The interfaces in `wanted`, or all interfaces if `wanted` is empty.
///
/// # Errors
/// [`Failure`] with exit 1: a named interface does not exist, or the system cannot list interfaces.
pub(super) fn gather(wanted: &[String]) -> Result<Vec<Facts>, Failure> {
    let mut all = interfaces()
        .map_err(|error| Failure::failed(format_args!("cannot list interfaces: {error}")))?;
    let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
    if let Some(name) = wanted.iter().find(|name| !names.contains(&name.as_str())) {
        let names = names.join(", ");
        return Err(Failure::failed(format_args!(
            "no interface {name}: there are {names}"
        )));
    }
    all.retain(|summary| wanted.is_empty() || wanted.contains(&summary.name));
    let facts = |summary| Facts::gather(!wanted.is_empty(), summary);
    Ok(all.into_iter().map(facts).collect())
}

impl Facts {
    fn gather(wanted: bool, summary: InterfaceSummary) -> Self {
        let directory = Path::new("/sys/class/net").join(&summary.name);
        let in_sysfs = read_number(directory.join("ifindex")) == Some(u64::from(summary.index));
        let counter = |name: &str| {
            let path = directory.join("statistics").join(name);
            read_number(path).filter(|_| in_sysfs)
        };
        let queues = std::fs::read_dir(directory.join("queues")).ok();
        let receive_queues = queues.filter(|_| in_sysfs).map(|entries| {
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.filter(|name| name.starts_with("rx-")).count() as u64
        });
        Self {
            offloads: offloads(&summary.name).unwrap_or_default(),
            receive_queues,
            dropped: counter("rx_dropped"),
            missed: counter("rx_missed_errors"),
            overrun: counter("rx_fifo_errors"),
            in_sysfs,
            wanted,
            summary,
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = match self.state() {
            Ok(what) => {
                let state = Finding::ok(CHECK_STATE, what);
                let further = [self.merging(), self.vlan()];
                [Some(state)].into_iter().chain(further).flatten().collect()
            }
            Err((what, advice)) => {
                // The finding is more severe if the user named the interface.
                let severity = if self.wanted {
                    Severity::Warn
                } else {
                    Severity::Note
                };
                vec![Finding::new(severity, CHECK_STATE, what, advice)]
            }
        };
        findings.extend(self.lost());
        findings
    }

    /// State of the interface. `Err`: why no packets can be recorded there, and what to do.
    fn state(&self) -> Result<String, (String, String)> {
        let InterfaceSummary {
            name, kind, mtu, ..
        } = &self.summary;
        let Some(link_type) = self.summary.link_type else {
            return Err((
                format!(
                    "cannot be recorded: its frames ({kind}) have no link type that is supported"
                ),
                "record the interface below it, or one of type Ethernet, loopback or tun"
                    .to_owned(),
            ));
        };
        if !self.summary.up {
            let what = "is down: nothing arrives".to_owned();
            return Err((what, format!("sudo ip link set {name} up")));
        }
        if !self.summary.running {
            return Err((
                "is up but has no carrier: nothing arrives".to_owned(),
                "check the cable, the switch port or the other end".to_owned(),
            ));
        }
        let link = match link_type {
            LinkType::ETHERNET => "Ethernet frames".to_owned(),
            LinkType::RAW => "IP packets without link header".to_owned(),
            LinkType(number) => format!("link type {number}"),
        };
        let mut what = format!("is up: {kind}, {link}");
        if let Some(mtu) = mtu {
            what.push_str(&format!(", MTU {mtu}"));
        }
        if let Some(queues @ 2..) = self.receive_queues {
            what.push_str(&format!(", {queues} receive queues"));
        }
        Ok(what)
    }

    /// The finding about generic and large receive offload, which merge TCP segments. `None` for
    /// the loopback interface, because its frames were never on a wire.
    fn merging(&self) -> Option<Finding> {
        if self.summary.loopback {
            return None;
        }
        let name = &self.summary.name;
        let (offload, off) = match (self.offloads.generic_receive, self.offloads.large_receive) {
            (Some(true), Some(true)) => ("receive offload (GRO and LRO)", "gro off lro off"),
            (Some(true), _) => ("generic receive offload (GRO)", "gro off"),
            (_, Some(true)) => ("large receive offload (LRO)", "lro off"),
            (Some(false), _) => {
                let what = "frames are captured as they are on the wire";
                return Some(Finding::ok(CHECK_OFFLOAD, what));
            }
            (None, _) => {
                let what = "cannot tell whether receive offload joins TCP segments";
                let advice = format!("look at: ethtool -k {name}");
                return Some(Finding::note(CHECK_OFFLOAD, what, advice));
            }
        };
        let what = format!(
            "{offload} joins TCP segments: captured frames are larger and fewer than those on the wire"
        );
        let advice = format!("sudo ethtool -K {name} {off}");
        Some(Finding::note(CHECK_OFFLOAD, what, advice))
    }

    fn vlan(&self) -> Option<Finding> {
        let what = if self.offloads.vlan_extraction? {
            "VLAN tags are taken out on receipt; recording puts them back where they were, except with AF_XDP"
        } else {
            "VLAN tags stay in the frames"
        };
        Some(Finding::ok(CHECK_VLAN, what))
    }

    fn lost(&self) -> Vec<Finding> {
        let name = &self.summary.name;
        let mut findings = Vec::new();
        let (missed, overrun) = (self.missed.unwrap_or(0), self.overrun.unwrap_or(0));
        // Drivers differ in whether one counter includes the other, so the counters are not added.
        if missed > 0 || overrun > 0 {
            findings.push(Finding::warn(
                CHECK_DROPS,
                format!("the NIC has lost packets since its driver made it: {missed} for want of a buffer, {overrun} by overrun"),
                format!("larger receive ring: sudo ethtool -G {name} rx MAX, where ethtool -g {name} shows MAX"),
            ));
        }
        if let Some(dropped @ 1..) = self.dropped {
            findings.push(Finding::note(
                CHECK_DROPS,
                format!(
                    "the kernel has dropped {} since its driver made it, also those that nobody wanted",
                    counted(dropped, "packet")
                ),
                format!("see whether the number grows while recording: ip -s link show {name}"),
            ));
        }
        // An unknown `rx_dropped` is not 0, so it gives no finding.
        if findings.is_empty() && self.dropped == Some(0) {
            let what = "neither NIC nor kernel have dropped a packet since its driver made it";
            findings.push(Finding::ok(CHECK_DROPS, what));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interface without problems.
    fn good() -> Facts {
        Facts {
            summary: InterfaceSummary {
                name: "eth0".to_owned(),
                index: 2,
                up: true,
                running: true,
                loopback: false,
                link_type: Some(LinkType::ETHERNET),
                kind: "ixgbe".to_owned(),
                mtu: Some(1500),
            },
            offloads: Offloads {
                generic_receive: Some(false),
                large_receive: Some(false),
                vlan_extraction: Some(true),
            },
            receive_queues: Some(4),
            dropped: Some(0),
            missed: Some(0),
            overrun: Some(0),
            in_sysfs: true,
            wanted: false,
        }
    }

    /// The findings that are not `ok`: severity, check, advice.
    fn complaints(facts: &Facts) -> Vec<(Severity, &'static str, String)> {
        facts
            .findings()
            .into_iter()
            .filter(|finding| finding.severity != Severity::Ok)
            .map(|finding| (finding.severity, finding.check, finding.advice))
            .collect()
    }

    #[test]
    fn a_good_interface_has_no_complaints() {
        assert_eq!(complaints(&good()), []);
        let what = good().findings().remove(0).what;
        assert_eq!(
            what,
            "is up: ixgbe, Ethernet frames, MTU 1500, 4 receive queues"
        );
    }

    #[test]
    fn what_cannot_be_recorded_is_worse_where_it_was_asked_for() {
        let mut down = good();
        down.summary.up = false;
        let mut unplugged = good();
        unplugged.summary.running = false;
        let mut foreign = good();
        foreign.summary.link_type = None;
        for mut facts in [down, unplugged, foreign] {
            for (wanted, severity) in [(false, Severity::Note), (true, Severity::Warn)] {
                facts.wanted = wanted;
                let found = complaints(&facts);
                assert_eq!(found.len(), 1, "{found:?}");
                assert_eq!((found[0].0, found[0].1), (severity, "state"));
            }
        }
    }

    #[test]
    fn offloads_that_join_segments_are_noted() {
        for (generic, large, advice) in [
            (Some(true), Some(false), "sudo ethtool -K eth0 gro off"),
            (Some(true), None, "sudo ethtool -K eth0 gro off"),
            (Some(false), Some(true), "sudo ethtool -K eth0 lro off"),
            (None, Some(true), "sudo ethtool -K eth0 lro off"),
            (
                Some(true),
                Some(true),
                "sudo ethtool -K eth0 gro off lro off",
            ),
            (None, None, "look at: ethtool -k eth0"),
        ] {
            let mut facts = good();
            facts.offloads.generic_receive = generic;
            facts.offloads.large_receive = large;
            let expected = [(Severity::Note, "offload", advice.to_owned())];
            assert_eq!(complaints(&facts), expected, "{generic:?} {large:?}");
            facts.summary.loopback = true;
            assert_eq!(complaints(&facts), [], "on loopback");
        }
    }

    #[test]
    fn losses_at_the_nic_are_warnings() {
        let mut facts = good();
        facts.dropped = Some(7);
        let found = complaints(&facts);
        assert_eq!(
            (found.len(), found[0].0, found[0].1),
            (1, Severity::Note, "drops")
        );
        for (missed, overrun) in [(Some(1), Some(0)), (None, Some(1))] {
            (facts.dropped, facts.missed, facts.overrun) = (None, missed, overrun);
            let found = complaints(&facts);
            assert_eq!(
                (found.len(), found[0].0, found[0].1),
                (1, Severity::Warn, "drops")
            );
        }
        let told = |facts: &Facts| {
            let findings = facts.findings().into_iter();
            findings
                .filter(|finding| finding.check == CHECK_DROPS)
                .count()
        };
        (facts.missed, facts.overrun) = (None, None);
        assert_eq!(complaints(&facts), [], "unknown is no loss");
        assert_eq!((told(&facts), told(&good())), (0, 1), "nor none");
    }
}
