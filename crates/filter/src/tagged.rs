//! Detects tagged frames, for the hint that a filter without `vlan` does not see their content.

use retroscope_packet::{LinkType, VlanTag};

use crate::link::LinkLayout;

/// EtherTypes of tags that pcap-filter's `vlan` finds.
pub(crate) const TPIDS: &[u16] = VlanTag::TPIDS.split_at(3).0;

/// Whether a frame has a tag that `vlan` finds directly after its link header.
#[must_use]
pub fn is_tagged(link_type: LinkType, data: &[u8]) -> bool {
    let Some(LinkLayout::EtherType { at, .. }) = LinkLayout::of(link_type) else {
        return false;
    };
    let tpid = data.get(usize::from(at)..).and_then(<[u8]>::first_chunk);
    tpid.is_some_and(|tpid| TPIDS.contains(&u16::from_be_bytes(*tpid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_seen_where_the_ethertype_stands() {
        let mut frame = [0; 20];
        frame[12..14].copy_from_slice(&[0x81, 0x00]);
        assert!(is_tagged(LinkType::ETHERNET, &frame));
        assert!(!is_tagged(LinkType::LINUX_SLL, &frame));
        assert!(!is_tagged(LinkType::RAW, &frame));
        assert!(!is_tagged(LinkType::ETHERNET, &frame[..13]));
        assert!(is_tagged(LinkType::LINUX_SLL2, &[0x88, 0xa8]));
    }
}
