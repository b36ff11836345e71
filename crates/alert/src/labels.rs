//! Filter expressions with placeholders for labels of an alert, such as the labels of Prometheus'
//! Alertmanager.
//!
//! In `host {instance} and port {instance}` each placeholder names a label. The word before the
//! placeholder determines which part of the label's value is used.
//!
//! Values come from strangers. Each address, network or port is parsed and formatted again. An
//! interface name is checked, and `$iface` replaces it in the expression. So no text of a value is
//! copied into an expression.

use std::{net::IpAddr, net::Ipv4Addr, net::Ipv6Addr, ops::Range};

/// Maximum number of bytes of a value in an error message.
const SHOWN_BYTES: usize = 64;
/// Maximum length of an interface name. Linux allows 15 bytes (`IFNAMSIZ` of `linux/if.h` without
/// the terminator), but names in capture files may be longer.
const INTERFACE_BYTES_MAX: usize = 64;

/// An expression with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelTemplate {
    text: String,
    places: Vec<Placeholder>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Placeholder {
    /// The range of the template's text that is replaced: by `$iface` for an interface, else by the
    /// value.
    span: Range<usize>,
    label: String,
    kind: PlaceholderKind,
}

/// The type of value that a placeholder needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlaceholderKind {
    Address,
    Net,
    Port,
    Interface,
}

/// A template filled in with the values of an alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelFilled {
    /// The filter expression. For `interface {label}` in the template it contains `$iface`.
    pub expression: String,
    /// The interface for `$iface`.
    pub interface: Option<String>,
}

impl LabelTemplate {
    /// Parses a template. `{label}` is an address after `host`, `src` or `dst`, a network after
    /// `net`, and a port after `port`. `interface {label}` is the term for packets of that
    /// interface. Braces around text that is not a label name (`[a-zA-Z_][a-zA-Z0-9_]*`) stay
    /// unchanged.
    ///
    /// # Errors
    /// A message if a placeholder is not right after one of these words, or for two interfaces.
    pub fn new(text: &str) -> Result<Self, String> {
        let mut places: Vec<Placeholder> = Vec::new();
        let mut from = 0;
        while let Some(begin) = text[from..].find('{').map(|at| from + at) {
            from = begin + 1;
            let Some(end) = text[from..].find('}').map(|at| from + at) else {
                break;
            };
            let label = &text[from..end];
            if !is_label(label) {
                continue;
            }
            let before = text[..begin].trim_end();
            let is_word = |c: char| c.is_ascii_alphanumeric() || "_-$".contains(c);
            let word = &before[before.trim_end_matches(is_word).len()..];
            let kind = match word {
                "host" | "src" | "dst" => PlaceholderKind::Address,
                "net" => PlaceholderKind::Net,
                "port" => PlaceholderKind::Port,
                "interface" => PlaceholderKind::Interface,
                _ => {
                    return Err(format!(
                        "before {{{label}}} stands `host`, `src` or `dst` for an address, `net`, `port` or `interface`, each time anew"
                    ));
                }
            };
            let is_interface = kind == PlaceholderKind::Interface;
            if is_interface && places.iter().any(|place| place.kind == kind) {
                return Err("an alert is about one interface: say it once".to_owned());
            }
            let begin = if is_interface {
                before.len() - word.len()
            } else {
                begin
            };
            places.push(Placeholder {
                span: begin..end + 1,
                label: label.to_owned(),
                kind,
            });
            from = end + 1;
        }
        Ok(Self {
            text: text.to_owned(),
            places,
        })
    }

    /// The template with IPv4 addresses and with IPv6 addresses, to test the expression before
    /// there is an alert.
    #[must_use]
    pub fn samples(&self) -> [LabelFilled; 2] {
        ["192.0.2.1", "2001:db8::1"].map(|address| {
            self.filled(|place| match place.kind {
                PlaceholderKind::Port => "9".to_owned(),
                PlaceholderKind::Interface => "eth0".to_owned(),
                PlaceholderKind::Address | PlaceholderKind::Net => address.to_owned(),
            })
        })
    }

    /// Fills in the template. `label` returns the value of a label.
    ///
    /// # Errors
    /// A message if a label is missing, or if its value does not have the type of the placeholder.
    pub fn fill<'v>(&self, label: impl Fn(&str) -> Option<&'v str>) -> Result<LabelFilled, String> {
        let mut values = Vec::with_capacity(self.places.len());
        for Placeholder {
            label: name, kind, ..
        } in &self.places
        {
            let value = label(name).ok_or_else(|| format!("the alert has no label `{name}`"))?;
            values.push(kind.value(value).ok_or_else(|| {
                let shown = &value[..value.floor_char_boundary(SHOWN_BYTES)];
                format!("label `{name}` is {shown:?}, which is {}", kind.missing())
            })?);
        }
        let mut values = values.into_iter();
        Ok(self.filled(|_| values.next().unwrap_or_default()))
    }

    fn filled(&self, mut value: impl FnMut(&Placeholder) -> String) -> LabelFilled {
        let mut expression = String::with_capacity(self.text.len());
        let (mut copied, mut interface) = (0, None);
        for place in &self.places {
            expression.push_str(&self.text[copied..place.span.start]);
            let value = value(place);
            if place.kind == PlaceholderKind::Interface {
                expression.push_str("$iface");
                interface = Some(value);
            } else {
                expression.push_str(&value);
            }
            copied = place.span.end;
        }
        expression.push_str(&self.text[copied..]);
        LabelFilled {
            expression,
            interface,
        }
    }
}

/// Whether the text is a label name: Prometheus, "Data model".
fn is_label(text: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(is_start) && text.chars().all(|c| is_start(c) || c.is_ascii_digit())
}

impl PlaceholderKind {
    /// The needed part of a value without white space around it: an interface name, or any other
    /// type formatted again. `None` if the value does not have this type.
    fn value(self, value: &str) -> Option<String> {
        let value = value.trim();
        match self {
            Self::Address => Some(endpoint(value)?.0.to_string()),
            Self::Net => net(value),
            Self::Port => {
                let port = value.parse().ok().or_else(|| endpoint(value)?.1);
                Some(port.filter(|port| *port > 0)?.to_string())
            }
            Self::Interface => {
                let is_good = |c: char| c.is_ascii_graphic() && c != '/';
                let is_name = (1..=INTERFACE_BYTES_MAX).contains(&value.len());
                (is_name && value.chars().all(is_good)).then(|| value.to_owned())
            }
        }
    }

    /// Describes the type that a value does not have.
    fn missing(self) -> &'static str {
        match self {
            Self::Address => {
                "no address, alone, with a port, or in a URL (names are not looked up)"
            }
            Self::Net => "no network (10.0.0.0/8) and no address",
            Self::Port => "no port, and no address with one",
            Self::Interface => "no interface's name",
        }
    }
}

/// An address and its optional port: `192.0.2.1`, `192.0.2.1:9100`, `2001:db8::1`,
/// `[2001:db8::1]:9100`, or these in a URL.
fn endpoint(value: &str) -> Option<(IpAddr, Option<u16>)> {
    let value = match value.split_once("://") {
        Some((_, rest)) => rest.split(['/', '?', '#']).next().unwrap_or_default(),
        None => value,
    };
    if let Ok(address) = value.parse::<IpAddr>() {
        return Some((address.to_canonical(), None));
    }
    let (address, port) = match value.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':')?),
            };
            (IpAddr::V6(address.parse::<Ipv6Addr>().ok()?), port)
        }
        None => {
            let (address, port) = value.split_once(':')?;
            (IpAddr::V4(address.parse::<Ipv4Addr>().ok()?), Some(port))
        }
    };
    let port = port.map(|port| port.parse::<u16>().ok());
    match port {
        Some(None) => None,
        port => Some((address.to_canonical(), port.flatten())),
    }
}

/// A network with its host bits cleared, because libpcap refuses host bits; or an address.
fn net(value: &str) -> Option<String> {
    let Some((address, bits)) = value.split_once('/').filter(|_| !value.contains("://")) else {
        return Some(endpoint(value)?.0.to_string());
    };
    let is_number = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
    let bits: u32 = bits.parse().ok().filter(|_| is_number)?;
    let net: IpAddr = match address.parse().ok()? {
        IpAddr::V4(address) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            Ipv4Addr::from(u32::from(address) & mask).into()
        }
        IpAddr::V6(address) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            Ipv6Addr::from(u128::from(address) & mask).into()
        }
        _ => return None,
    };
    Some(format!("{net}/{bits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(template: &str, value: &str) -> Result<String, String> {
        let template = LabelTemplate::new(template).unwrap();
        let filled = template.fill(|name| (name == "x").then_some(value));
        filled.map(|filled| filled.expression)
    }

    #[test]
    fn a_value_is_read_as_what_its_place_takes() {
        for (template, value, expected) in [
            ("host {x}", "192.0.2.7", "host 192.0.2.7"),
            ("host {x}", " 192.0.2.7:9100 ", "host 192.0.2.7"),
            ("host {x}", "2001:DB8::1", "host 2001:db8::1"),
            ("host {x}", "[2001:db8::1]", "host 2001:db8::1"),
            ("host {x}", "[2001:db8::1]:9100", "host 2001:db8::1"),
            ("host {x}", "::ffff:192.0.2.7", "host 192.0.2.7"),
            (
                "host {x}",
                "https://192.0.2.7:8443/probe?x=1",
                "host 192.0.2.7",
            ),
            ("host {x}", "http://[2001:db8::1]/", "host 2001:db8::1"),
            (
                "src {x} and dst port {x}",
                "192.0.2.7:53",
                "src 192.0.2.7 and dst port 53",
            ),
            ("port {x}", "9100", "port 9100"),
            ("port {x}", "[2001:db8::1]:9100", "port 9100"),
            ("net {x}", "10.1.2.3/8", "net 10.0.0.0/8"),
            ("net {x}", "0.0.0.0/0", "net 0.0.0.0/0"),
            ("net {x}", "2001:db8:1::1/32", "net 2001:db8::/32"),
            ("net {x}", "192.0.2.7:80", "net 192.0.2.7"),
            (
                "interface {x} and host {x}",
                "192.0.2.7",
                "$iface and host 192.0.2.7",
            ),
            ("udp", "whatever", "udp"),
            (
                "payload matches /a{2}/ and host {x}",
                "192.0.2.7",
                "payload matches /a{2}/ and host 192.0.2.7",
            ),
        ] {
            assert_eq!(fill(template, value).as_deref(), Ok(expected), "{value}");
        }
        let template = LabelTemplate::new("udp and not interface  {x}").unwrap();
        let filled = template.fill(|_| Some("eth0.7")).unwrap();
        assert_eq!(filled.expression, "udp and not $iface");
        assert_eq!(filled.interface.as_deref(), Some("eth0.7"));
    }

    /// Values that strangers may write in a label.
    #[test]
    fn nothing_else_is_taken() {
        for value in [
            "",
            "www.example.com",
            "www.example.com:80",
            "192.0.2.7 or tcp",
            "192.0.2.7)or(tcp",
            "192.0.2.7:80 or tcp",
            "192.0.2.7/0",
            "192.0.2.256",
            "1.2.3",
            "0x7f000001",
            "192.0.2.7:",
            "192.0.2.7:99999",
            "192.0.2.7:80:81",
            "fe80::1%eth0",
            "[192.0.2.7]:80",
            "[::1",
            "[::1]80",
            "http://user@192.0.2.7/",
            "$srcIP",
            "{x}",
            "192.0.2.7\0",
            "\u{661}.2.3.4",
            "::1 or ::2",
            "payload contains \"a\"",
        ] {
            let why = fill("host {x}", value).unwrap_err();
            assert!(why.contains("no address"), "{value}: {why}");
        }
        for value in [
            "",
            "http",
            "0",
            "65536",
            "-1",
            "+1 or 2",
            "80 or tcp",
            "192.0.2.7",
            "2001:db8::1",
        ] {
            assert!(fill("port {x}", value).is_err(), "{value}");
        }
        for value in [
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "10/8",
            "10.0.0.0/8/8",
            "::/129",
            "a/8",
        ] {
            assert!(fill("net {x}", value).is_err(), "{value}");
        }
        for value in ["", "a b", "../x", "eth0\n", "\u{e9}th0", &"e".repeat(65)] {
            // The name with a line feed is accepted: white space around a value is ignored.
            assert!(
                fill("interface {x}", value).is_err() || value == "eth0\n",
                "{value}"
            );
        }
        let template = LabelTemplate::new("host {x}").unwrap();
        assert!(
            template
                .fill(|_| None)
                .unwrap_err()
                .contains("no label `x`")
        );
        let long = fill("host {x}", &"é".repeat(1000)).unwrap_err();
        assert!(long.len() < 300, "{long}");
    }

    #[test]
    fn a_placeholder_stands_where_a_value_can() {
        for text in [
            "{x}",
            "host 192.0.2.1 or {x}",
            "portrange {x}",
            "vlan {x}",
            "ether host{x}x and proto {x}",
            "tcp[{x}] = 1",
        ] {
            let read = LabelTemplate::new(text);
            assert!(
                read.as_ref().is_err_and(|why| why.contains("before {x}")),
                "{read:?}"
            );
        }
        let twice = LabelTemplate::new("interface {a} or interface {b}");
        assert!(twice.unwrap_err().contains("one interface"));
        let [v4, v6] = LabelTemplate::new("net {a} and port {b} and interface {c}")
            .unwrap()
            .samples();
        assert_eq!(v4.expression, "net 192.0.2.1 and port 9 and $iface");
        assert_eq!(v6.expression, "net 2001:db8::1 and port 9 and $iface");
    }

    /// Whatever the labels contain, an address, network or port in an expression consists of
    /// hexadecimal digits, dots, colons and slashes.
    #[test]
    fn generated_values_never_change_the_expression() {
        let mut random = fastrand::Rng::with_seed(20);
        let pieces = [
            "192.0.2.7",
            "::1",
            "[",
            "]",
            ":",
            "80",
            "/",
            "8",
            " ",
            "or",
            "$flow",
            "http://",
            "(",
            ")",
            "\"",
            "{x}",
            "\u{fe}",
            "%",
            "@",
            "&",
        ];
        let mut filled = 0;
        for _ in 0..200_000 {
            let value: String = (0..random.usize(1..6))
                .map(|_| pieces[random.usize(..pieces.len())])
                .collect();
            for kind in ["host ", "net ", "port "] {
                if let Ok(expression) = fill(&format!("({kind}{{x}})"), &value) {
                    filled += 1;
                    let inner = expression
                        .strip_prefix(&format!("({kind}"))
                        .and_then(|rest| rest.strip_suffix(')'));
                    let inner = inner.unwrap();
                    let is_plain = |c: char| c.is_ascii_hexdigit() || ".:/".contains(c);
                    assert!(inner.chars().all(is_plain), "{value:?}: {inner}");
                }
            }
        }
        assert!(filled > 1000, "{filled}");
    }
}
