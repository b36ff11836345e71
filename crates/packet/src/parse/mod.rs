//! From bytes to [`Parsed`] in one pass, outermost header first.
//!
//! The functions read at an offset into the captured bytes and store facts as soon as they are
//! found. A truncated frame therefore keeps most facts before the cut. All reads are
//! bounds-checked; nothing beyond `data` is read.

mod bytes;
mod ip;
mod link;

use crate::{LinkType, ParseOutcome, Parsed};

/// Why the parser stopped before the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParseStop {
    /// The captured bytes end here.
    Truncated,
    /// A header is inconsistent, or there are too many headers.
    Malformed,
    /// The link type is unknown.
    UnknownLinkType,
}

/// Parses the captured bytes of one frame.
///
/// Accepts any input. A frame that is truncated, malformed or of an unknown link type gives fewer
/// facts, and [`Parsed::outcome`] gives the reason. Never allocates or panics.
///
/// ```
/// use retroscope_packet::{LinkType, Ports, parse};
///
/// let udp = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
///     0x04, 0xd2, 0, 53, 0, 8, 0, 0, // UDP
/// ];
/// let parsed = parse(LinkType::RAW, &udp);
/// assert_eq!(parsed.transport, Some(Ports { src: 1234, dst: 53 }));
/// assert_eq!(parse(LinkType::RAW, &udp[..22]).transport, None);
/// ```
#[must_use]
pub fn parse(link_type: LinkType, data: &[u8]) -> Parsed {
    let mut parsed = Parsed {
        link_type,
        ..Parsed::default()
    };
    parsed.outcome = match link::frame(&mut parsed, data) {
        Ok(payload) => {
            parsed.payload_offset = Some(payload);
            ParseOutcome::Complete
        }
        Err(ParseStop::Truncated) => ParseOutcome::Truncated,
        Err(ParseStop::Malformed) => ParseOutcome::Malformed,
        Err(ParseStop::UnknownLinkType) => ParseOutcome::UnknownLinkType,
    };
    if parsed.payload_offset.is_none() {
        parsed.payload_end = None;
    }
    parsed
}

#[cfg(test)]
mod tests;
