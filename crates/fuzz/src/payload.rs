//! Compares payload terms with a naive search.

use retroscope_filter::{Aux, Filter, FilterFrame, FilterMode, LinkContext, PacketView};
use retroscope_packet::{LinkType, parse};

use crate::bytes::InputBytes;

/// Some of the link types whose headers the packet crate parses.
const LINK_TYPES: [LinkType; 6] = [
    LinkType::ETHERNET,
    LinkType::RAW,
    LinkType::NULL,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::PPP,
];

/// Input: link type, length of a string, the string, length of a pattern, the pattern, the frame.
pub fn payload(data: &[u8]) {
    let mut bytes = InputBytes(data);
    let link_type = LINK_TYPES[usize::from(bytes.u8()) % LINK_TYPES.len()];
    let needle_len = usize::from(bytes.u8() % 16) + 1;
    let needle = bytes.take(needle_len);
    let pattern_len = usize::from(bytes.u8() % 64);
    // Without slashes: a slash would end the pattern, and pcap-filter text with names to look up
    // could follow.
    let pattern = String::from_utf8_lossy(bytes.take(pattern_len)).replace('/', "");
    let frame = bytes.0;

    let parsed = parse(link_type, frame);
    let payload = parsed.payload(frame);
    if let Some(payload) = payload {
        let start = parsed.payload_offset.expect("where there is a payload");
        assert!(payload.len() <= frame.len() - start.min(frame.len()));
        let cut = frame.len() / 2;
        if let Some(less) = parse(link_type, &frame[..cut]).payload(&frame[..cut]) {
            assert!(payload.starts_with(less), "cut to {cut}: {frame:02x?}");
        }
    }
    if !needle.is_empty() {
        let hex: String = needle.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let contains = payload
            .is_some_and(|payload| payload.windows(needle.len()).any(|window| window == needle));
        let starts = payload.is_some_and(|payload| payload.starts_with(needle));
        for (text, expected) in [
            (format!("payload contains \"{hex}\""), contains),
            (format!("payload startswith \"{hex}\""), starts),
            (format!("not (payload matches /{hex}/)"), !contains),
            (format!("payload matches /^{hex}/"), starts),
            (
                format!(
                    "payload contains \"{hex}\" or payload contains \"{hex}\" or payload contains \"{hex}\""
                ),
                contains,
            ),
        ] {
            let filter = Filter::plain(&text).unwrap_or_else(|error| panic!("{}", error.render()));
            assert_eq!(
                matches(filter, link_type, frame),
                expected,
                "{text} {frame:02x?}"
            );
        }
    }
    // Other tests check what a pattern matches. Here any text must be a pattern or an error.
    match Filter::plain(&format!("payload matches /{pattern}/i")) {
        Ok(filter) => _ = matches(filter, link_type, frame),
        Err(error) => assert!(error.render().starts_with("filter: ")),
    }
}

/// The result of the filter, which must be the same for two equal packets together and for one
/// packet alone.
fn matches(mut filter: Filter, link_type: LinkType, frame: &[u8]) -> bool {
    let mode = FilterMode::Savefile;
    let link = LinkContext {
        link_type,
        snaplen: 0,
        mode,
        optimize: false,
    };
    filter
        .prepare(link)
        .expect("there is no pcap-filter text to compile");
    let wire_len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    let alone = filter.matches(&PacketView {
        link_type,
        mode,
        interface: 0,
        aux: Aux::default(),
        data: frame,
        wire_len,
    });
    let frames = [FilterFrame::new(frame, wire_len, Aux::default()); 2];
    let together = filter.matches_many((link_type, mode), 0, &frames);
    assert_eq!(together, if alone { 0b11 } else { 0 }, "{frame:02x?}");
    alone
}
