//! Names in pcap-filter text, which libpcap looks up in the system's tables each time it compiles
//! the text.
//!
//! | Kind of name | libpcap calls |
//! |---|---|
//! | hosts (may ask slow name servers), ports | getaddrinfo(3) |
//! | networks | getnetbyname(3) |
//! | protocols | getprotobyname(3) |
//! | Ethernet hosts | ether_hostton(3) |
//!
//! nsswitch.conf(5) may direct any of these calls to another machine. So this module looks names up
//! once. Where the meaning stays the same, numbers and addresses replace the names of hosts, ports
//! and protocols. Text with other names is not compiled any more after [`crate::Template::seal`].
//!
//! To distinguish names from keywords, libpcap compiles `type WORD` for 802.11. After `type`
//! libpcap's parser accepts any name, rejects all but a few as unknown types, and looks nothing up.
//! For most keywords libpcap reports a syntax error.

use std::{
    ffi::CString,
    net::{IpAddr, ToSocketAddrs},
    ops::Range,
};

use retroscope_packet::LinkType;

use crate::{
    FilterMode, LinkContext,
    sys::{self, CompileHandle},
    words::{Word, WordKind, words},
};

/// `LINKTYPE_IEEE802_11`.
const IEEE802_11: LinkType = LinkType(105);

/// Types of 802.11 that have names in libpcap (`ieee80211_types` of `grammar.y`).
const TYPES: [&str; 5] = ["mgt", "management", "ctl", "control", "data"];

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) span: Range<usize>,
    pub(crate) meaning: NameMeaning,
    /// Whether the name is a port's or a protocol's.
    pub(crate) is_local: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NameMeaning {
    /// Replacements with the same meaning to libpcap: byte ranges and new texts, in order.
    Known(Vec<(Range<usize>, String)>),
    /// The name was not looked up, was not found, or cannot be replaced by a number.
    Unknown,
}

/// Qualifiers before a value.
#[derive(Debug, Clone, Copy)]
struct OperandQualifiers<'t> {
    start: usize,
    proto: Option<&'t str>,
    kind: NameKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Port,
    PortRange,
    Proto,
    /// Values of 802.11, LLC or pf, which libpcap finds in its own table, or compares as text.
    Literal,
    Host,
    Other,
}

/// The names in `piece`, a range of `text` with pcap-filter text, in order. Without `looks_up` no
/// name has a known replacement.
pub(crate) fn names(text: &str, piece: Range<usize>, looks_up: bool) -> Vec<Name> {
    let mut words = words(&text[piece.clone()]);
    for Word { span, .. } in &mut words {
        *span = span.start + piece.start..span.end + piece.start;
    }
    let mut libpcap = None;
    let mut names = Vec::new();
    let mut head: Option<OperandQualifiers<'_>> = None;
    let has_variable = words.iter().any(|word| word.kind == WordKind::Dollar);
    // `begins`: whether an operand begins. `is_own`: whether the qualifiers in `head` are the
    // operand's own.
    let (mut begins, mut is_own) = (true, false);
    for (index, word) in words.iter().enumerate() {
        if word.kind != WordKind::Other {
            begins |= word.kind != WordKind::Dollar;
            continue;
        }
        let shown = &text[word.span.clone()];
        let is_range = head.is_some_and(|head| head.kind == NameKind::PortRange);
        let known = qualifier(shown);
        let is_name = known.is_none()
            && !(is_range && is_range_of_numbers(shown))
            && is_identifier(shown, &mut libpcap);
        // An operand that begins with a keyword does not inherit qualifiers.
        let is_keyword = begins && !is_name && is_keyword(shown);
        if let Some(qualifier) = known.or(is_keyword.then_some(Qualifier::Proto)) {
            let head = match &mut head {
                Some(head) if !begins => head,
                _ => {
                    is_own = true;
                    head.insert(OperandQualifiers {
                        start: word.span.start,
                        proto: None,
                        kind: NameKind::Host,
                    })
                }
            };
            begins = false;
            match qualifier {
                Qualifier::Proto => head.proto = Some(shown),
                Qualifier::Kind(kind) => head.kind = kind,
                Qualifier::Direction => {}
            }
            continue;
        }
        is_own &= !begins;
        begins = false;
        if !is_name {
            continue;
        }
        let is_alone = is_own && !is_inherited(text, &words[index + 1..]);
        let is_first = index > 0 && words[index - 1].kind == WordKind::Open;
        // A host name next to a variable is an error anyway, so the resolver is not asked.
        let is_host = head.is_some_and(|head| head.kind == NameKind::Host);
        let looks_up = looks_up && !(is_host && has_variable);
        if let Some(meaning) = meaning(shown, word, head, looks_up, is_alone, is_first) {
            let is_local = |head: OperandQualifiers<'_>| {
                matches!(
                    head.kind,
                    NameKind::Port | NameKind::PortRange | NameKind::Proto
                )
            };
            names.push(Name {
                span: word.span.clone(),
                meaning,
                is_local: head.is_some_and(is_local),
            });
        }
    }
    names
}

/// Whether the operand in the words after a value may take the qualifiers of the value.
fn is_inherited(text: &str, behind: &[Word]) -> bool {
    let mut behind = behind
        .iter()
        .skip_while(|word| word.kind == WordKind::Close);
    let joined = behind.next();
    if !joined.is_some_and(|word| matches!(word.kind, WordKind::And | WordKind::Or)) {
        return false;
    }
    let value = behind.find(|word| !matches!(word.kind, WordKind::Not | WordKind::Open));
    value.is_some_and(|word| qualifier(&text[word.span.clone()]).is_none())
}

enum Qualifier {
    Proto,
    Direction,
    Kind(NameKind),
}

/// The qualifiers in libpcap's `scanner.l`.
fn qualifier(word: &str) -> Option<Qualifier> {
    Some(match word {
        "ip" | "ip6" | "arp" | "rarp" | "tcp" | "udp" | "sctp" | "ether" | "link" | "fddi"
        | "tr" | "ppp" | "slip" | "wlan" | "decnet" | "iso" | "isis" | "is-is" | "esis"
        | "es-is" | "clnp" | "l1" | "l2" | "iih" | "lsp" | "snp" | "csnp" | "psnp" | "icmp"
        | "icmp6" | "igmp" | "igrp" | "pim" | "vrrp" | "carp" | "ah" | "esp" | "atalk" | "aarp"
        | "lat" | "sca" | "moprc" | "mopdl" | "stp" | "ipx" | "netbeui" | "radio" => {
            Qualifier::Proto
        }
        "src" | "dst" | "ra" | "ta" | "addr1" | "address1" | "addr2" | "address2" | "addr3"
        | "address3" | "addr4" | "address4" | "or" | "and" | "||" | "&&" => Qualifier::Direction,
        "port" => Qualifier::Kind(NameKind::Port),
        "proto" | "protochain" => Qualifier::Kind(NameKind::Proto),
        "type" | "subtype" | "dir" | "direction" | "ifname" | "on" | "reason" | "action"
        | "rset" | "ruleset" | "llc" => Qualifier::Kind(NameKind::Literal),
        "portrange" => Qualifier::Kind(NameKind::PortRange),
        "host" => Qualifier::Kind(NameKind::Host),
        "net" | "gateway" => Qualifier::Kind(NameKind::Other),
        _ => return None,
    })
}

/// Whether a word that is no name is a keyword, and not a number, an address or an operator.
fn is_keyword(word: &str) -> bool {
    // The shortest Ethernet address without a colon or a dot is `a-b-c-d-e-f`.
    const ETHERNET_MIN: usize = 11;
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let is_address =
        word.contains([':', '.']) || word.len() >= ETHERNET_MIN && word.bytes().all(is_hex);
    word.starts_with(|first: char| first.is_ascii_alphabetic()) && !is_address
}

/// Whether a word consists of digits, hyphens and dots. libpcap takes `1-2` as two ports only after
/// `portrange`, and elsewhere as a name.
fn is_range_of_numbers(word: &str) -> bool {
    word.bytes()
        .all(|b| b.is_ascii_digit() || b == b'-' || b == b'.')
}

/// The meaning of a name. `None` if libpcap looks nothing up. `is_alone`: no other value shares the
/// qualifiers. `is_first`: the name follows an opening parenthesis, after which libpcap accepts no
/// second parenthesis.
fn meaning(
    name: &str,
    word: &Word,
    head: Option<OperandQualifiers<'_>>,
    looks_up: bool,
    is_alone: bool,
    is_first: bool,
) -> Option<NameMeaning> {
    let in_place = |number: String| NameMeaning::Known(vec![(word.span.clone(), number)]);
    let Some(head) = head else {
        return Some(NameMeaning::Unknown);
    };
    let known = match (head.kind, head.proto) {
        (NameKind::Literal, _) => return None,
        // EtherTypes and ISO protocols are in libpcap's own tables.
        (NameKind::Proto, Some(proto)) if !matches!(proto, "ip" | "ip6") => return None,
        _ if !looks_up => None,
        (NameKind::Proto, _) => {
            let name = name.strip_prefix('\\').unwrap_or(name);
            sys::protocol(name).map(|number| in_place(number.to_string()))
        }
        (NameKind::Port, proto) => match (sys::port(name), proto) {
            (Some((port, its)), proto) if its.is_none() || its == proto => {
                Some(in_place(port.to_string()))
            }
            (Some((port, Some(its))), None) if is_alone => {
                let its = (head.start..head.start, format!("{its} "));
                Some(NameMeaning::Known(vec![
                    its,
                    (word.span.clone(), port.to_string()),
                ]))
            }
            _ => None,
        },
        (NameKind::Host, proto @ (None | Some("ip" | "ip6" | "arp" | "rarp"))) => {
            addresses(name, proto, is_first).map(in_place)
        }
        _ => None,
    };
    Some(known.unwrap_or(NameMeaning::Unknown))
}

/// The resolver's addresses of a host, of only one IP version if `proto` is `ip` or `ip6`.
fn addresses(host: &str, proto: Option<&str>, is_first: bool) -> Option<String> {
    let all = (host, 0).to_socket_addrs().ok()?;
    let its = all.filter(|it| proto != Some(if it.is_ipv6() { "ip" } else { "ip6" }));
    let its: Vec<IpAddr> = its.map(|it| it.ip()).collect();
    any_of(&its, is_first)
}

/// Joins addresses with `or`, in parentheses if there are several. `is_first`: without parentheses.
fn any_of(addresses: &[IpAddr], is_first: bool) -> Option<String> {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let all = texts.join(" or ");
    match texts.len() {
        0 => None,
        2.. if !is_first => Some(format!("({all})")),
        _ => Some(all),
    }
}

/// Whether libpcap takes a word for a name, and not for a keyword, a number or an address.
fn is_identifier(word: &str, libpcap: &mut Option<CompileHandle>) -> bool {
    if !word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '\\') {
        return false;
    }
    let link = LinkContext::new(IEEE802_11, 0, FilterMode::Savefile);
    if libpcap.is_none() {
        *libpcap = CompileHandle::open(&link).ok();
    }
    // If libpcap does not work at all, the result does not matter: libpcap compiles no text either.
    let (Some(handle), Ok(text)) = (libpcap, CString::new(format!("type {word}"))) else {
        return false;
    };
    match handle.compile(&text, false) {
        // A word such as `icmptype` means a number, and some numbers are types.
        Ok(_) => TYPES.contains(&word),
        Err(message) => message.starts_with("unknown 802.11 type name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile;

    /// The unknown names of a text, and the text with numbers instead of all other names.
    fn resolved(text: &str) -> (Vec<&str>, String) {
        let names = names(text, 0..text.len(), true);
        let unknown = names
            .iter()
            .filter(|name| name.meaning == NameMeaning::Unknown);
        let unknown = unknown.map(|name| &text[name.span.clone()]).collect();
        let mut numbers = text.to_owned();
        for name in names.iter().rev() {
            if let NameMeaning::Known(texts) = &name.meaning {
                for (span, number) in texts.iter().rev() {
                    numbers.replace_range(span.clone(), number);
                }
            }
        }
        (unknown, numbers)
    }

    #[test]
    fn words_of_the_language_and_numbers_are_no_names() {
        for text in [
            "tcp[tcpflags] & (tcp-syn|tcp-ack) != 0 and icmp[icmptype] == icmp-echo",
            "host 10.0.0.1 or net 10.1 or src net 192.168.0.0 mask 255.255.0.0 or host fe80::1",
            "ether host aa:bb:cc:dd:ee:ff or ether host aabb.ccdd.eeff or ether broadcast",
            "port 80 or src net 10 or host 10.1 or net 10.1.2 and proto 6",
            "portrange 1-2 or 3-4 or udp portrange 5000-6000 or less 60 or greater 0x40 or len > 1",
            "wlan addr1 aa:bb:cc:dd:ee:ff and type mgt subtype beacon and dir nods",
            "ether proto \\ip or link proto \\arp or ether proto \\ip6",
            "inbound or outbound or ifindex 3 or vlan 5 or mpls 7 or pppoes or ip6 protochain 6",
            "llc u",
            "llc u and ether host $srcMAC",
            "not llc ui and (llc i or llc rnr)",
            "iso proto \\clnp or llc u or isis or lat or atalk or stp or ipx or netbeui",
        ] {
            assert_eq!(names(text, 0..text.len(), true), [], "{text}");
        }
    }

    #[test]
    fn what_is_not_found_or_has_no_number_of_its_own_stays_a_name() {
        for (text, expected) in [
            ("host www.example.com", &["www.example.com"][..]),
            ("src or dst host a-b and tcp", &["a-b"]),
            ("host foo or bar", &["foo", "bar"]),
            ("host (foo or bar) and not src baz", &["foo", "bar", "baz"]),
            ("net loopback and host 3com", &["loopback", "3com"]),
            ("gateway localhost", &["localhost"]),
            ("ether host box or gateway gate", &["box", "gate"]),
            ("host data", &["data"]),
            ("portrange ssh-http", &["ssh-http"]),
            ("host 1-2 or net 1.2.3.4.5", &["1-2", "1.2.3.4.5"]),
            ("port 1-2 or proto 1.2.3.4.5", &["1-2", "1.2.3.4.5"]),
            ("portrange 1-2 and host 1-2 and llc u", &["1-2"]),
            ("port no-such-port-anywhere", &["no-such-port-anywhere"]),
            // `tcp` of `tcp port 22` must not apply to the other value, nor replace `udp`.
            ("port ssh or 443", &["ssh"]),
            ("port 443 or ssh", &["ssh"]),
            ("udp port ssh", &["ssh"]),
        ] {
            let (unknown, numbers) = resolved(text);
            assert_eq!(unknown, expected, "{text}");
            assert_eq!(numbers, text);
        }
    }

    /// After each of these keywords `x.example` must count as a name, but not of a port or
    /// protocol.
    #[test]
    fn no_keyword_leaves_a_host_the_qualifiers_of_an_earlier_operand() {
        let protocols = "ip ip6 arp rarp tcp udp sctp ether link fddi tr ppp slip wlan decnet iso isis \
            is-is esis es-is clnp l1 l2 iih lsp snp csnp psnp \
            icmp icmp6 igmp igrp pim vrrp carp ah esp atalk aarp lat sca moprc mopdl stp ipx netbeui radio";
        let directions =
            "src dst ra ta addr1 addr2 addr3 addr4 address1 address2 address3 address4";
        // Keywords after which current libpcap accepts no name.
        let others = "less greater len length inbound outbound ifindex vlan mpls pppoed pppoes geneve \
            lane metac bcc oam oamf4 sc ilmic vpi vci \
            connectmsg rnr rulenum srnr subrulenum fisu lssu lsu msu sio opc dpc sls hsio hopc hdpc hsls byte broadcast multicast mask";
        let protocols = protocols
            .split_whitespace()
            .map(|word| format!("{word} src"));
        let others = directions
            .split_whitespace()
            .chain(others.split_whitespace());
        let heads: Vec<String> = protocols.chain(others.map(str::to_owned)).collect();
        for head in heads {
            for before in [
                "port 80 and ",
                "proto 6 or not ",
                "portrange 1-2 and (",
                "llc u and ",
                "type mgt or (not ",
            ] {
                let text = format!("{before}{head} x.example");
                let names = names(&text, 0..text.len(), false);
                let shown: Vec<_> = names
                    .iter()
                    .map(|name| (&text[name.span.clone()], name.is_local))
                    .collect();
                assert_eq!(shown, [("x.example", false)], "{text}");
            }
        }
    }

    #[test]
    fn numbers_and_addresses_leave_the_qualifiers_to_the_names_behind_them() {
        for text in [
            "ether host aabbccddeeff or gate",
            "ether host a-b-c-d-e-f or (ab.cd.ef.ab.cd.ef or gate)",
            "net fe80:: or 10.1 or loopback",
            "gateway fe80::1 or gate",
        ] {
            let (unknown, numbers) = resolved(text);
            assert_eq!((unknown.len(), numbers.as_str()), (1, text));
        }
        let (unknown, numbers) = resolved("udp port 53 or 0x35 or domain");
        assert_eq!(
            (unknown, numbers),
            (vec![], "udp port 53 or 0x35 or 53".to_owned())
        );
    }

    /// libpcap accepts the replacement wherever it accepts the name.
    #[test]
    fn a_host_with_several_addresses_is_any_of_them() {
        let link = LinkContext::new(LinkType::RAW, 0, FilterMode::Savefile);
        let addresses = ["10.0.0.1", "::1", "10.0.0.2"].map(|it| it.parse().unwrap());
        let length = |text: &str| {
            let compiled = compile(text, link).unwrap_or_else(|e| panic!("{text}: {e}"));
            compiled.instructions().len()
        };
        for text in [
            "host foo",
            "not src foo and udp",
            "host 10.9.9.9 or foo",
            "host (foo or 10.9.9.9)",
            "host (not foo or 10.9.9.9)",
            "host (10.9.9.9 or not foo)",
            "src or dst host foo and 10.9.9.9",
            "(dst host (foo) or tcp)",
        ] {
            let all = names(text, 0..text.len(), false);
            assert_eq!(all.len(), 1, "{text}");
            let span = all[0].span.clone();
            let is_first = text[..span.start].ends_with('(');
            let with = |addresses| {
                let mut written = text.to_owned();
                written.replace_range(span.clone(), &any_of(addresses, is_first).unwrap());
                length(&written)
            };
            assert!(with(&addresses) > with(&addresses[..1]), "{text}");
        }
        assert_eq!(any_of(&addresses[..1], false).as_deref(), Some("10.0.0.1"));
        assert_eq!(any_of(&[], false), None);
    }

    /// A name and its number give the same program.
    #[test]
    fn ports_and_protocols_become_numbers() {
        let link = LinkContext {
            link_type: LinkType::ETHERNET,
            snaplen: 0,
            mode: FilterMode::Savefile,
            optimize: true,
        };
        for (text, expected) in [
            ("port domain", "port 53"),
            ("src port domain or 80", "src port 53 or 80"),
            (
                "host 10.0.0.1 and port ssh",
                "host 10.0.0.1 and tcp port 22",
            ),
            ("not src or dst port ssh", "not tcp src or dst port 22"),
            (
                "tcp dst port ssh and port domain",
                "tcp dst port 22 and port 53",
            ),
            ("port (domain or 67)", "port (53 or 67)"),
            ("udp port tftp", "udp port 69"),
            (
                "port tftp and (dst port ssh)",
                "udp port 69 and (tcp dst port 22)",
            ),
            ("ip proto \\tcp or proto \\udp", "ip proto 6 or proto 17"),
            ("ip host localhost", "ip host 127.0.0.1"),
            (
                "ip src (10.0.0.1 or not localhost) and port domain",
                "ip src (10.0.0.1 or not 127.0.0.1) and port 53",
            ),
        ] {
            assert!(
                names(text, 0..text.len(), false)
                    .iter()
                    .all(|name| name.meaning == NameMeaning::Unknown)
            );
            let (unknown, numbers) = resolved(text);
            assert_eq!(
                (unknown, numbers.as_str()),
                (Vec::new(), expected),
                "{text}"
            );
            let [named, numbered] = [text, expected].map(|text| compile(text, link).unwrap());
            assert_eq!(named.instructions(), numbered.instructions(), "{text}");
        }
    }
}
