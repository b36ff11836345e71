//! Converts libpcap's `DLT_` values of live handles to the link types of files.

use retroscope_packet::LinkType;

/// The link type of a `DLT_` value; `None`: unknown.
///
/// The two numberings agree for the oldest types and, by the rule of `pcap/dlt.h`, from 104 on. In
/// between, the values are from libpcap on Linux.
pub(super) fn of_dlt(dlt: i32) -> Option<LinkType> {
    let link_type = match dlt {
        // DLT_ATM_RFC1483, DLT_RAW, DLT_SLIP_BSDOS, DLT_PPP_BSDOS.
        11 => 100,
        12 => 101,
        15 => 102,
        16 => 103,
        // DLT_PFSYNC.
        18 => 246,
        // DLT_ATM_CLIP.
        19 => 106,
        // Both numberings agree. 50, 51 and 99 are DLT_PPP_SERIAL, DLT_PPP_ETHER and
        // DLT_SYMANTEC_FIREWALL.
        0..=10 | 50 | 51 | 99 | 104.. => u16::try_from(dlt).ok()?,
        _ => return None,
    };
    Some(LinkType(link_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_numbers_change_and_new_ones_do_not() {
        for (dlt, link_type) in [
            (0, LinkType::NULL),
            (1, LinkType::ETHERNET),
            (9, LinkType::PPP),
            (12, LinkType::RAW),
            (50, LinkType::PPP_SERIAL),
            (113, LinkType::LINUX_SLL),
            (276, LinkType::LINUX_SLL2),
        ] {
            assert_eq!(of_dlt(dlt), Some(link_type), "{dlt}");
        }
        for unknown in [-1, 13, 14, 17, 20, 98, 103, 70_000] {
            assert_eq!(of_dlt(unknown), None, "{unknown}");
        }
    }
}
