//! A NIC's behavior when packets arrive faster than the driver takes them: the size of its receive
//! ring, and whether it pauses the sender. Also whether it stamps packets.

use retroscope_capture::af_packet::{Reception, reception};

use super::finding::Finding;

pub(super) const CHECK_RING: &str = "rx-ring";
pub(super) const CHECK_PAUSE: &str = "pause";
pub(super) const CHECK_STAMPS: &str = "stamps";

/// Findings about one interface. There are none if the interface no longer exists, or if its driver
/// reports neither a ring, pause frames nor stamps, like drivers of many virtual interfaces.
pub(super) fn findings(interface: &str) -> Vec<Finding> {
    reception(interface).map_or_else(|_| Vec::new(), |found| judge(interface, found))
}

fn judge(interface: &str, found: Reception) -> Vec<Finding> {
    let Reception {
        ring,
        sends_pauses,
        stamps_all,
    } = found;
    let ring = ring.map(|(entries, most)| {
        let what = format!("the receive ring has {entries} entries");
        if entries >= most {
            return Finding::ok(CHECK_RING, format!("{what}, the most it can"));
        }
        let advice = format!("sudo ethtool -G {interface} rx {most}");
        Finding::note(CHECK_RING, format!("{what}, and could have {most}"), advice)
    });
    let pause = sends_pauses.map(|sends| {
        if !sends {
            return Finding::ok(CHECK_PAUSE, "never asks the other end to pause");
        }
        Finding::note(
            CHECK_PAUSE,
            "asks the other end to pause when it is full: then packets are late, or lost where nobody here counts them",
            format!("sudo ethtool -A {interface} autoneg off tx off"),
        )
    });
    let stamps = stamps_all.map(|is_on| {
        let what = if is_on {
            "the NIC stamps all received packets"
        } else {
            "the NIC could stamp all received packets: --set time-stamps=hardware"
        };
        Finding::ok(CHECK_STAMPS, what)
    });
    ring.into_iter().chain(pause).chain(stamps).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::finding::Severity, *};

    fn complaints(ring: Option<(u32, u32)>, sends_pauses: Option<bool>) -> Vec<String> {
        let reception = Reception {
            ring,
            sends_pauses,
            stamps_all: None,
        };
        let findings = judge("eth0", reception).into_iter();
        let told = findings.filter(|finding| finding.severity != Severity::Ok);
        told.map(|finding| finding.advice).collect()
    }

    #[test]
    fn a_ring_that_could_be_larger_is_noted() {
        let advice = "sudo ethtool -G eth0 rx 4096";
        assert_eq!(complaints(Some((512, 4096)), None), [advice]);
        assert!(complaints(Some((4096, 4096)), None).is_empty());
        assert!(complaints(None, None).is_empty());
    }

    #[test]
    fn a_nic_that_asks_for_pauses_is_noted() {
        let advice = "sudo ethtool -A eth0 autoneg off tx off";
        assert_eq!(complaints(None, Some(true)), [advice]);
        assert!(complaints(None, Some(false)).is_empty());
    }
}
