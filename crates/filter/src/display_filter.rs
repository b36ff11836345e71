//! Recognizes Wireshark's display filters (wireshark-filter(4)) and translates the common ones, so
//! that the error for `ip.addr == 192.0.2.7` names the capture filter `host 192.0.2.7`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum length, in bytes, of a text that gets a suggestion.
const TEXT_BYTES_MAX: usize = 1000;
/// Maximum nesting of parentheses and negations.
const DEPTH_MAX: usize = 32;

/// How a field with a value becomes a capture filter.
#[derive(Clone, Copy)]
enum Translation {
    /// A primitive before an address. The word `net` replaces `host` before a prefix.
    Address(&'static str),
    /// A primitive before a number.
    Number(&'static str),
    /// An expression to compare with a number.
    Compared(&'static str),
    /// A flag of the TCP header.
    Flag(&'static str),
}

/// Protocols that pcap-filter lacks or calls by another name.
const PROTOCOLS: [(&str, &str); 21] = [
    ("bgp", "tcp port 179"),
    ("bootp", "(udp port 67 or udp port 68)"),
    ("dhcp", "(udp port 67 or udp port 68)"),
    ("dhcpv6", "(udp port 546 or udp port 547)"),
    ("dns", "port 53"),
    ("ftp", "tcp port 21"),
    ("http", "tcp port 80"),
    ("icmpv6", "icmp6"),
    ("imap", "tcp port 143"),
    ("ipv6", "ip6"),
    ("ldap", "tcp port 389"),
    ("mdns", "udp port 5353"),
    ("mqtt", "tcp port 1883"),
    ("ntp", "udp port 123"),
    ("quic", "udp port 443"),
    ("sip", "port 5060"),
    ("smb2", "tcp port 445"),
    ("smtp", "tcp port 25"),
    ("snmp", "udp port 161"),
    ("ssh", "tcp port 22"),
    ("tls", "tcp port 443"),
];

/// Names that mean nearly the same in both languages.
const COMMON: [&str; 7] = ["arp", "icmp", "igmp", "ip", "sctp", "tcp", "udp"];

const FIELDS: [(&str, Translation); 30] = [
    ("eth.addr", Translation::Address("ether host")),
    ("eth.dst", Translation::Address("ether dst")),
    ("eth.src", Translation::Address("ether src")),
    ("eth.type", Translation::Number("ether proto")),
    ("frame.len", Translation::Compared("len")),
    ("icmp.code", Translation::Compared("icmp[icmpcode]")),
    ("icmp.type", Translation::Compared("icmp[icmptype]")),
    ("icmpv6.type", Translation::Compared("icmp6[icmp6type]")),
    ("ip.addr", Translation::Address("host")),
    ("ip.dst", Translation::Address("dst host")),
    ("ip.host", Translation::Address("host")),
    ("ip.len", Translation::Compared("ip[2:2]")),
    ("ip.proto", Translation::Number("ip proto")),
    ("ip.src", Translation::Address("src host")),
    ("ip.ttl", Translation::Compared("ip[8]")),
    ("ipv6.addr", Translation::Address("host")),
    ("ipv6.dst", Translation::Address("dst host")),
    ("ipv6.src", Translation::Address("src host")),
    ("tcp.dstport", Translation::Number("tcp dst port")),
    ("tcp.flags.ack", Translation::Flag("tcp-ack")),
    ("tcp.flags.fin", Translation::Flag("tcp-fin")),
    ("tcp.flags.reset", Translation::Flag("tcp-rst")),
    ("tcp.flags.syn", Translation::Flag("tcp-syn")),
    ("tcp.port", Translation::Number("tcp port")),
    ("tcp.srcport", Translation::Number("tcp src port")),
    ("tcp.window_size_value", Translation::Compared("tcp[14:2]")),
    ("udp.dstport", Translation::Number("udp dst port")),
    ("udp.port", Translation::Number("udp port")),
    ("udp.srcport", Translation::Number("udp src port")),
    ("vlan.id", Translation::Number("vlan")),
];

/// A sentence for the error message of a text that looks like a display filter: the translation, or
/// that display filters are not supported.
pub(crate) fn suggestion(text: &str) -> Option<String> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let tokens = tokens(text)?;
    let mut translator = Translator {
        tokens: &tokens,
        is_display: false,
    };
    match translator.any_of(0) {
        Some(filter) if translator.tokens.is_empty() => translator.is_display.then(|| {
            format!("this is a display filter of Wireshark; as a capture filter, write: {filter}")
        }),
        _ => tokens.iter().any(|token| is_field(token)).then(|| {
            "display filters of Wireshark are not supported; write a capture filter, see pcap-filter(7)".to_owned()
        }),
    }
}

/// Whether a token looks like a field of a display filter: a known protocol, a dot, and a lowercase
/// letter.
fn is_field(token: &str) -> bool {
    token.split_once('.').is_some_and(|(protocol, field)| {
        let is_known = COMMON.contains(&protocol)
            || ["eth", "frame", "vlan"].contains(&protocol)
            || find(&PROTOCOLS, protocol).is_some();
        is_known && field.starts_with(|first: char| first.is_ascii_lowercase())
    })
}

fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(key, _)| *key == name).map(|it| it.1)
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || ".:/_-".contains(character)
}

/// The words, operators, parentheses, braces and commas of a text. `None` if the text has any other
/// character.
fn tokens(text: &str) -> Option<Vec<&str>> {
    let mut all = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_two = ["==", "!=", ">=", "<=", "&&", "||"]
            .iter()
            .any(|operator| rest.starts_with(operator));
        let length = if is_word(first) {
            rest.find(|it| !is_word(it)).unwrap_or(rest.len())
        } else if is_two {
            2
        } else if "!<>=(){},".contains(first) {
            1
        } else {
            return None;
        };
        let (token, after) = rest.split_at(length);
        all.push(token);
        rest = after.trim_start();
    }
    Some(all)
}

/// Reads a display filter by recursive descent. In display filters `and` binds more tightly than
/// `or`; in pcap-filter both have the same precedence. So the translation adds parentheses.
struct Translator<'t> {
    tokens: &'t [&'t str],
    /// Whether a name appeared that is not in [`COMMON`].
    is_display: bool,
}

impl<'t> Translator<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    fn accept(&mut self, wanted: &[&str]) -> bool {
        let is_wanted = self.tokens.first().is_some_and(|it| wanted.contains(it));
        if is_wanted {
            self.tokens = &self.tokens[1..];
        }
        is_wanted
    }

    fn any_of(&mut self, depth: usize) -> Option<String> {
        let mut all = vec![self.all_of(depth)?];
        while self.accept(&["||", "or"]) {
            all.push(self.all_of(depth)?);
        }
        Some(match all.len() {
            1 => all.remove(0),
            _ if depth == 0 => all.join(" or "),
            _ => format!("({})", all.join(" or ")),
        })
    }

    fn all_of(&mut self, depth: usize) -> Option<String> {
        let mut all = vec![self.one(depth)?];
        while self.accept(&["&&", "and"]) {
            all.push(self.one(depth)?);
        }
        Some(match all.len() {
            1 => all.remove(0),
            _ => format!("({})", all.join(" and ")),
        })
    }

    fn one(&mut self, depth: usize) -> Option<String> {
        if depth > DEPTH_MAX {
            return None;
        }
        if self.accept(&["!", "not"]) {
            return Some(format!("not {}", self.one(depth + 1)?));
        }
        if self.accept(&["("]) {
            let inner = self.any_of(depth + 1)?;
            return self.accept(&[")"]).then_some(inner);
        }
        let name = self.next()?;
        if let Some(translation) = find(&FIELDS, name) {
            self.is_display = true;
            return self.field(translation);
        }
        if COMMON.contains(&name) {
            return Some(name.to_owned());
        }
        self.is_display = true;
        find(&PROTOCOLS, name).map(str::to_owned)
    }

    /// Translates the operator and the value after the name of a field, or `in` and a set.
    fn field(&mut self, translation: Translation) -> Option<String> {
        if self.accept(&["in"]) {
            return self.set(translation);
        }
        let operator = match self.next()? {
            "==" | "=" | "eq" => "=",
            "!=" | "ne" => "!=",
            ">" | "gt" => ">",
            "<" | "lt" => "<",
            ">=" | "ge" => ">=",
            "<=" | "le" => "<=",
            _ => return None,
        };
        let value = self.next()?;
        test(translation, operator, value)
    }

    /// Translates the set after `in`: `{80, 443}` or `{80 443}`.
    fn set(&mut self, translation: Translation) -> Option<String> {
        if !self.accept(&["{"]) {
            return None;
        }
        let mut all = Vec::new();
        while !self.accept(&["}"]) {
            if !self.accept(&[","]) {
                all.push(test(translation, "=", self.next()?)?);
            }
        }
        (!all.is_empty()).then(|| format!("({})", all.join(" or ")))
    }
}

/// Translates the comparison of a field with a value, if possible.
fn test(translation: Translation, operator: &str, value: &str) -> Option<String> {
    let is_number = !value.is_empty() && value.bytes().all(|it| it.is_ascii_digit())
        || value
            .strip_prefix("0x")
            .is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|it| it.is_ascii_hexdigit()));
    let not = match operator {
        "=" => "",
        "!=" => "not ",
        _ => {
            let Translation::Compared(left) = translation else {
                return None;
            };
            return is_number.then(|| format!("{left} {operator} {value}"));
        }
    };
    match translation {
        Translation::Address(primitive)
            if value.starts_with(|it: char| it.is_alphanumeric()) || value.starts_with(':') =>
        {
            Some(match value.split_once('/') {
                Some((address, bits)) => {
                    let primitive = primitive.replace("host", "net");
                    format!("{not}{primitive} {}", network(address, bits)?)
                }
                None => format!("{not}{primitive} {value}"),
            })
        }
        Translation::Number(primitive) if is_number => Some(format!("{not}{primitive} {value}")),
        Translation::Compared(left) if is_number => Some(format!("{left} {operator} {value}")),
        Translation::Flag(flag) => {
            let is_set = match value {
                "1" | "true" | "True" => true,
                "0" | "false" | "False" => false,
                _ => return None,
            };
            let operator = if is_set == not.is_empty() { "!=" } else { "=" };
            Some(format!("tcp[tcpflags] & {flag} {operator} 0"))
        }
        _ => None,
    }
}

/// The network of an address. libpcap refuses a network with bits of a host.
fn network(address: &str, bits: &str) -> Option<String> {
    let bits: u32 = bits.parse().ok()?;
    let net = match address.parse().ok()? {
        IpAddr::V4(address) if bits <= 32 => {
            let host = u32::MAX.checked_shr(bits).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & !host).into()
        }
        IpAddr::V6(address) if bits <= 128 => {
            let host = u128::MAX.checked_shr(bits).unwrap_or(0);
            IpAddr::from(Ipv6Addr::from_bits(address.to_bits() & !host))
        }
        _ => return None,
    };
    Some(format!("{net}/{bits}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Filter;

    fn translated(text: &str) -> Option<String> {
        let sentence = suggestion(text)?;
        let (_, filter) = sentence.split_once("write: ")?;
        Some(filter.to_owned())
    }

    #[test]
    fn display_filters_become_capture_filters() {
        for (display, capture) in [
            ("ip.addr == 1.2.3.4", "host 1.2.3.4"),
            ("ip.addr==1.2.3.4", "host 1.2.3.4"),
            ("ip.src == 10.0.0.0/8", "src net 10.0.0.0/8"),
            ("ip.src == 10.1.2.3/8", "src net 10.0.0.0/8"),
            ("ip.src == 10.1.2.3/32", "src net 10.1.2.3/32"),
            ("ipv6.addr == 2001:db8::1/64", "net 2001:db8::/64"),
            ("ip.addr != 1.2.3.4", "not host 1.2.3.4"),
            ("ipv6.addr eq 2001:db8::1", "host 2001:db8::1"),
            ("tcp.port == 80", "tcp port 80"),
            ("tcp.port in {80, 443}", "(tcp port 80 or tcp port 443)"),
            ("udp.srcport == 53", "udp src port 53"),
            ("dns", "port 53"),
            (
                "tls && ip.dst == 1.2.3.4",
                "(tcp port 443 and dst host 1.2.3.4)",
            ),
            ("dns or http and tcp", "port 53 or (tcp port 80 and tcp)"),
            ("!(arp or dns)", "not (arp or port 53)"),
            (
                "eth.src == 02:00:00:00:00:01",
                "ether src 02:00:00:00:00:01",
            ),
            ("frame.len > 1000", "len > 1000"),
            (
                "tcp.flags.syn == 1 and tcp.flags.ack == 0",
                "(tcp[tcpflags] & tcp-syn != 0 and tcp[tcpflags] & tcp-ack = 0)",
            ),
            ("tcp.flags.reset != 0", "tcp[tcpflags] & tcp-rst != 0"),
            ("vlan.id == 10", "vlan 10"),
            ("icmp.type == 8", "icmp[icmptype] = 8"),
            ("icmpv6.type == 128", "icmp6[icmp6type] = 128"),
            ("dhcp", "(udp port 67 or udp port 68)"),
        ] {
            assert_eq!(translated(display).as_deref(), Some(capture), "{display}");
            assert!(Filter::plain(capture).is_ok(), "{capture}");
        }
    }

    #[test]
    fn every_translation_is_a_capture_filter() {
        for (name, translation) in FIELDS {
            let value = match translation {
                Translation::Address(primitive) if primitive.starts_with("ether") => {
                    "02:00:00:00:00:01"
                }
                Translation::Address(_) => "192.0.2.1",
                Translation::Number(_) | Translation::Compared(_) | Translation::Flag(_) => "1",
            };
            let filter = translated(&format!("{name} == {value}")).expect(name);
            let prepared = Filter::plain(&filter).unwrap().prepare(context());
            assert!(prepared.is_ok(), "{name}: {filter}: {prepared:?}");
        }
        for (name, filter) in PROTOCOLS {
            let prepared = Filter::plain(filter).unwrap().prepare(context());
            assert!(prepared.is_ok(), "{name}: {prepared:?}");
        }
    }

    fn context() -> crate::LinkContext {
        crate::LinkContext {
            link_type: retroscope_packet::LinkType::ETHERNET,
            snaplen: 65_535,
            mode: crate::FilterMode::Savefile,
            optimize: true,
        }
    }

    #[test]
    fn other_texts_get_no_translation() {
        for text in [
            "",
            "tcp",
            "tcp port",
            "host bad..1 and tcp",
            "ip.addr ==",
            "ip.addr == 1.2.3.4/33",
            "ip.addr == 1.2.3.4; rm",
            "eth.addr == 02:00:00:00:00:01/24",
            "tcp.port == http",
            "tcp.port > 80",
            "udp.port in {}",
            "(dns",
            "www.example.com",
            &"!".repeat(100),
            &"(".repeat(1001),
        ] {
            assert_eq!(translated(text), None, "{text}");
        }
        assert!(suggestion("tcp.analysis.retransmission").is_some());
        assert_eq!(suggestion("host www.example.com or or"), None);
    }

    #[test]
    fn any_text_is_survived() {
        let words = [
            "ip.addr", "==", "1.2.3.4", "(", ")", "!", "in", "{", "}", "dns", "or", "é", "\"",
        ];
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let text: Vec<&str> = (0..random.usize(..12))
                .map(|_| words[random.usize(..words.len())])
                .collect();
            let _ = suggestion(&text.join(" "));
        }
    }
}
