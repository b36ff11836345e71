//! Interfaces: whether they can be recorded, what they do to frames, and what they have lost.
//!
//! State and offloads come from the capture crate, which asks in this process's network namespace. Counters and queues
//! are in `/sys/class/net`, which may show another namespace: they count only where the interface's index agrees.

use std::path::PathBuf;

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

/// What was found about one interface.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) summary: InterfaceSummary,
    pub(super) offloads: Offloads,
    /// Receive queues; `None`: unknown.
    pub(super) receive_queues: Option<u64>,
    pub(super) losses: Losses,
    /// sysfs shows this network namespace.
    pub(super) in_sysfs: bool,
    /// The user named it, so it is meant to work.
    pub(super) wanted: bool,
}

/// The kernel's counters since the interface came up (its Documentation/networking/statistics.rst); `None`: unknown.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Losses {
    /// `rx_dropped`: received, then dropped by the kernel, also for want of anyone interested.
    pub(super) dropped: Option<u64>,
    /// `rx_missed_errors`: the NIC had no buffer.
    pub(super) missed: Option<u64>,
    /// `rx_fifo_errors`: the NIC's own memory was full.
    pub(super) overrun: Option<u64>,
}

/// The interfaces in `wanted`, or all if it is empty.
///
/// # Errors
/// [`Failure`] with exit 1: one of them does not exist, or the system does not list interfaces.
pub(super) fn gather(wanted: &[String]) -> Result<Vec<Facts>, Failure> {
    let all = interfaces()
        .map_err(|error| Failure::failed(format_args!("cannot list interfaces: {error}")))?;
    for name in wanted {
        if !all.iter().any(|interface| interface.name == *name) {
            let names: Vec<_> = all.iter().map(|i| i.name.as_str()).collect();
            return Err(Failure::failed(format_args!(
                "no interface {name}: there are {}",
                names.join(", ")
            )));
        }
    }
    let is_wanted = |summary: &InterfaceSummary| wanted.contains(&summary.name);
    Ok(all
        .into_iter()
        .filter(|summary| wanted.is_empty() || is_wanted(summary))
        .map(|summary| Facts::gather(is_wanted(&summary), summary))
        .collect())
}

impl Facts {
    fn gather(wanted: bool, summary: InterfaceSummary) -> Self {
        let unknown = Offloads {
            generic_receive: None,
            large_receive: None,
            vlan_extraction: None,
        };
        let directory = PathBuf::from("/sys/class/net").join(&summary.name);
        let is_same = read_number(directory.join("ifindex")) == Some(u64::from(summary.index));
        let directory = is_same.then_some(directory);
        let counter = |name: &str| {
            let directory = directory.as_ref()?;
            read_number(directory.join("statistics").join(name))
        };
        Self {
            offloads: offloads(&summary.name).unwrap_or(unknown),
            receive_queues: directory.as_ref().and_then(|directory| {
                let entries = std::fs::read_dir(directory.join("queues")).ok()?;
                let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                Some(names.filter(|name| name.starts_with("rx-")).count() as u64)
            }),
            losses: Losses {
                dropped: counter("rx_dropped"),
                missed: counter("rx_missed_errors"),
                overrun: counter("rx_fifo_errors"),
            },
            in_sysfs: is_same,
            wanted,
            summary,
        }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let state = self.state();
        let works = state.severity == Severity::Ok;
        let mut findings = vec![state];
        if works {
            findings.extend(self.merging());
            findings.extend(self.vlan());
        }
        findings.extend(self.lost());
        findings
    }

    /// What keeps it from being recorded weighs more where the user asked for it.
    fn obstacle(&self, what: String, advice: String) -> Finding {
        let severity = if self.wanted {
            Severity::Warn
        } else {
            Severity::Note
        };
        Finding::new(severity, CHECK_STATE, what, advice)
    }

    fn state(&self) -> Finding {
        let InterfaceSummary {
            name,
            up,
            running,
            link_type,
            kind,
            mtu,
            ..
        } = &self.summary;
        let Some(link_type) = link_type else {
            return self.obstacle(
                format!(
                    "cannot be recorded: its frames ({kind}) have no link type that is supported"
                ),
                "record the interface below it, or one of type Ethernet, loopback or tun"
                    .to_owned(),
            );
        };
        if !up {
            return self.obstacle(
                "is down: nothing arrives".to_owned(),
                format!("sudo ip link set {name} up"),
            );
        }
        if !running {
            return self.obstacle(
                "is up but has no carrier: nothing arrives".to_owned(),
                "check the cable, the switch port or the other end".to_owned(),
            );
        }
        let link = match *link_type {
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
        Finding::ok(CHECK_STATE, what)
    }

    /// Generic and large receive offload join segments. Nothing on the loopback interface was ever on a wire.
    fn merging(&self) -> Option<Finding> {
        let Self {
            summary, offloads, ..
        } = self;
        if summary.loopback {
            return None;
        }
        let name = &summary.name;
        let what = |offload: &str| {
            format!(
                "{offload} joins TCP segments: captured frames are larger and fewer than those on the wire"
            )
        };
        Some(match (offloads.generic_receive, offloads.large_receive) {
            (Some(true), Some(true)) => Finding::note(
                CHECK_OFFLOAD,
                what("receive offload (GRO and LRO)"),
                format!("sudo ethtool -K {name} gro off lro off"),
            ),
            (Some(true), _) => Finding::note(
                CHECK_OFFLOAD,
                what("generic receive offload (GRO)"),
                format!("sudo ethtool -K {name} gro off"),
            ),
            (_, Some(true)) => Finding::note(
                CHECK_OFFLOAD,
                what("large receive offload (LRO)"),
                format!("sudo ethtool -K {name} lro off"),
            ),
            (Some(false), _) => {
                Finding::ok(CHECK_OFFLOAD, "frames are captured as they are on the wire")
            }
            (None, _) => Finding::note(
                CHECK_OFFLOAD,
                "cannot tell whether receive offload joins TCP segments",
                format!("look at: ethtool -k {name}"),
            ),
        })
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
        let Losses {
            dropped,
            missed,
            overrun,
        } = self.losses;
        let name = &self.summary.name;
        let mut findings = Vec::new();
        let (missed, overrun) = (missed.unwrap_or(0), overrun.unwrap_or(0));
        // Drivers differ in whether one counter includes the other, so they are not added up.
        if missed > 0 || overrun > 0 {
            findings.push(Finding::warn(
                CHECK_DROPS,
                format!("the NIC has lost packets since it came up: {missed} for want of a buffer, {overrun} by overrun"),
                format!("larger receive ring: sudo ethtool -G {name} rx MAX, where ethtool -g {name} shows MAX"),
            ));
        }
        if let Some(dropped @ 1..) = dropped {
            findings.push(Finding::note(
                CHECK_DROPS,
                format!(
                    "the kernel has dropped {} since it came up, also those that nobody wanted",
                    counted(dropped, "packet")
                ),
                format!("see whether the number grows while recording: ip -s link show {name}"),
            ));
        }
        // Unknown is not 0.
        if findings.is_empty() && dropped == Some(0) {
            findings.push(Finding::ok(
                CHECK_DROPS,
                "neither NIC nor kernel have dropped a packet since it came up",
            ));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interface that has nothing wrong.
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
            losses: Losses {
                dropped: Some(0),
                missed: Some(0),
                overrun: Some(0),
            },
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
        facts.losses.dropped = Some(7);
        let found = complaints(&facts);
        assert_eq!(
            (found.len(), found[0].0, found[0].1),
            (1, Severity::Note, "drops")
        );
        for (missed, overrun) in [(Some(1), Some(0)), (None, Some(1))] {
            facts.losses = Losses {
                dropped: None,
                missed,
                overrun,
            };
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
        facts.losses = Losses::default();
        assert_eq!(complaints(&facts), [], "unknown is no loss");
        assert_eq!((told(&facts), told(&good())), (0, 1), "nor none");
    }
}
