//! From bytes to [`Parsed`]: one pass, outermost header first.
//!
//! Each function reads at an offset into the captured bytes and writes the facts it finds at once, so that a frame cut
//! short keeps what came before the cut. Reads are checked; nothing is read beyond `data`.

mod bytes;
mod ip;
mod link;

use crate::{LinkType, ParseOutcome, Parsed};

/// Why parsing ended before the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParseStop {
    /// The captured bytes end here.
    Truncated,
    /// A header cannot be right.
    Malformed,
    /// The link type is unknown.
    UnknownLinkType,
}

/// Parses the captured bytes of one frame.
///
/// Any input is fine: a frame that is cut short, damaged or of an unknown link type has fewer facts, and
/// [`Parsed::outcome`] says why. Neither allocates nor panics.
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
