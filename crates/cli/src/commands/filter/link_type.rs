//! Link types by the names that libpcap gives them.

use retroscope_filter::link_type_name;
use retroscope_packet::LinkType;

/// Search limit for link types with names. The
/// [registry](https://www.tcpdump.org/linktypes.html) ends near 300 and grows slowly.
const NAMED_MAX: u16 = 1024;

/// Parses a link type: libpcap's name (`EN10MB` or `DLT_EN10MB`) in any case, or its number in
/// capture files.
///
/// # Errors
/// A message that says what to write instead.
pub(super) fn parse(text: &str) -> Result<LinkType, String> {
    if let Ok(number) = text.parse() {
        return Ok(LinkType(number));
    }
    let upper = text.to_ascii_uppercase();
    let wanted = upper.strip_prefix("DLT_").unwrap_or(&upper);
    // Search from the end, because some old files have another, smaller number for the same name.
    let mut link_types = (0..NAMED_MAX).rev().map(LinkType);
    let found = link_types.find(|one| link_type_name(*one) == Some(wanted));
    found.ok_or_else(|| {
        "no such link type: write a name such as EN10MB, RAW or LINUX_SLL2, or its number"
            .to_owned()
    })
}

/// libpcap's name for a link type, or its number if the link type has no name or if a higher number
/// has the same name.
pub(super) fn name(link_type: LinkType) -> String {
    match link_type_name(link_type) {
        Some(name) if parse(name) == Ok(link_type) => name.to_owned(),
        _ => link_type.0.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        for (text, number) in [
            ("EN10MB", 1),
            ("en10mb", 1),
            ("DLT_RAW", 101),
            ("linux_sll2", 276),
            ("0", 0),
            ("147", 147),
            ("65535", 65_535),
        ] {
            assert_eq!(parse(text), Ok(LinkType(number)), "{text}");
        }
        for bad in ["", "EN10", "-1", "65536", "1.0", "DLT_"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_name_leads_to_one_number() {
        let named = (0..NAMED_MAX).filter(|number| name(LinkType(*number)) != number.to_string());
        let named: Vec<u16> = named.collect();
        assert!(named.len() >= 150, "{named:?}");
        for number in named {
            let name = name(LinkType(number));
            assert_eq!(parse(&name), Ok(LinkType(number)), "{name}");
        }
    }

    #[test]
    fn some_have_no_name() {
        assert_eq!(name(LinkType::RAW), "RAW");
        assert_eq!(name(LinkType(147)), "147");
        assert_eq!(name(LinkType(12)), "12", "RAW is 101");
    }
}
