//! Turns pcap-filter(7) text into primitives, as far as libpcap's meaning is certain.
//!
//! The parser accepts lists of primitives such as `tcp`, `host 10.0.0.1`, `dst net 10.0.0.0/8`,
//! `udp src port 53`, `ether host 0:1:2:3:4:5`. Lists may have `and`, `or`, `not`, parentheses, and
//! values without qualifiers (`port 80 or 443`). `vlan` may only be the first of primitives that
//! `and` joins. Numbers must be decimal and addresses complete.
//!
//! Everything else becomes [`Atom::Opaque`], for example names and offsets into headers. Only
//! libpcap decides whether a text with opaque parts is an expression.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use crate::{
    structure::{Clause, Joiner, Structure},
    words::words,
};

use super::{
    atom::{Atom, EndQualifier, Expr},
    key::{TagView, frame_flags, kind},
};

pub(super) fn parse(text: &str) -> (Expr, TagView) {
    let opaque = (Expr::Atom(Atom::Opaque), TagView::Plain);
    let words = words(text);
    let Ok(structure) = Structure::parse(text, &words) else {
        return opaque;
    };
    let parser = PrimitiveParser(&structure);
    let expr = match structure.last_shift() {
        None => parser
            .chain(&structure.clauses)
            .map(|expr| (expr, TagView::Plain)),
        Some(0) if structure.word(0) == Some("vlan") => parser.after_tag(),
        Some(_) => None,
    };
    expr.unwrap_or(opaque)
}

/// The qualifiers of a primitive, which the next primitives may omit.
#[derive(Debug, Clone, Copy)]
struct PrimitiveQualifiers<'t> {
    proto: Option<&'t str>,
    ends: Option<EndQualifier>,
    kind: ValueKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueKind {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
    Mac,
}

struct PrimitiveParser<'t>(&'t Structure<'t>);

impl<'t> PrimitiveParser<'t> {
    fn word(&self, index: usize) -> Option<&'t str> {
        self.0.word(index)
    }

    /// Parses `vlan`, an optional identifier, and the primitives that follow with `and`. `None`
    /// with `or`: libpcap would then also test frames without a tag, at the offsets after a tag.
    fn after_tag(&self) -> Option<(Expr, TagView)> {
        let (tag, rest) = self.0.clauses.split_first()?;
        let id = match tag.words.len() {
            1 => None,
            2 => Some(number(self.word(1)?, 0x0fff)?),
            _ => return None,
        };
        if rest.iter().any(|clause| clause.joiner == Joiner::Or) {
            return None;
        }
        let tag = Expr::Atom(Atom::Vlan(id));
        let expr = match self.chain(rest) {
            Some(rest) => tag.joined(Joiner::And, rest),
            None => tag,
        };
        Some((expr, TagView::Tagged))
    }

    /// Joins clauses from left to right.
    fn chain(&self, clauses: &[Clause]) -> Option<Expr> {
        let mut head = None;
        join(clauses, |clause| {
            let (expr, its_head) = match &clause.group {
                Some(group) => (self.chain(group)?, None),
                None => self
                    .primitive(clause.first..clause.words.end, head)
                    .unwrap_or((Expr::Atom(Atom::Opaque), None)),
            };
            head = its_head;
            Some(expr.negated_if(clause.negated))
        })
    }

    /// Also returns the qualifiers that the next primitives may inherit.
    fn primitive(
        &self,
        range: Range<usize>,
        before: Option<PrimitiveQualifiers<'t>>,
    ) -> Option<(Expr, Option<PrimitiveQualifiers<'t>>)> {
        if range.len() == 1
            && let Some(atom) = protocol(self.word(range.start)?)
        {
            return Some((Expr::Atom(atom), None));
        }
        let mut at = range.start;
        let first = self.word(at)?;
        if first.starts_with(|c: char| c.is_ascii_digit() || c == ':') {
            let head = before?;
            return Some((Expr::Atom(self.value(range, head)?), Some(head)));
        }
        let proto = matches!(
            first,
            "ip" | "ip6" | "arp" | "rarp" | "tcp" | "udp" | "sctp" | "ether"
        )
        .then_some(first);
        at += usize::from(proto.is_some());
        let ends = self.ends(&mut at);
        let kind = match self.word(at) {
            Some("host") if proto == Some("ether") => Some(ValueKind::Mac),
            Some("host") => Some(ValueKind::Host),
            Some("net") => Some(ValueKind::Net),
            Some("port") => Some(ValueKind::Port),
            Some("portrange") => Some(ValueKind::PortRange),
            Some("proto") => Some(ValueKind::Proto),
            _ => None,
        };
        at += usize::from(kind.is_some());
        let kind = match (kind, proto, ends) {
            (Some(kind), ..) => kind,
            (None, None, Some(_)) => ValueKind::Host,
            (None, Some("ether"), Some(_)) => ValueKind::Mac,
            _ => return None,
        };
        if at >= range.end {
            return None;
        }
        let head = PrimitiveQualifiers { proto, ends, kind };
        if self.0.is_in_parentheses(at..range.end) {
            return Some((self.values(at + 1..range.end - 1, head)?, None));
        }
        Some((Expr::Atom(self.value(at..range.end, head)?), Some(head)))
    }

    /// Parses `src`, `dst`, `src or dst` or `src and dst` at the word `at`, and moves `at` to the
    /// next word.
    fn ends(&self, at: &mut usize) -> Option<EndQualifier> {
        let side = |index| {
            self.word(index)
                .filter(|word| matches!(*word, "src" | "dst"))
        };
        let first = side(*at)?;
        let joined = side(*at + 2).filter(|second| *second != first);
        let ends = match (first, self.word(*at + 1), joined) {
            (_, Some("or" | "||"), Some(_)) => Some(EndQualifier::Either),
            (_, Some("and" | "&&"), Some(_)) => Some(EndQualifier::Both),
            _ => None,
        };
        *at += if ends.is_some() { 3 } else { 1 };
        ends.or(Some(if first == "src" {
            EndQualifier::Src
        } else {
            EndQualifier::Dst
        }))
    }

    /// Parses values in parentheses.
    fn values(&self, range: Range<usize>, head: PrimitiveQualifiers<'t>) -> Option<Expr> {
        let values = self.0.clauses_in(range, 0).ok()?;
        join(&values, |value| {
            self.value(value.words.clone(), head).map(Expr::Atom)
        })
    }

    /// Parses a value with the qualifiers `head`.
    fn value(&self, range: Range<usize>, head: PrimitiveQualifiers<'t>) -> Option<Atom> {
        let first = self.word(range.start).filter(|_| !range.is_empty())?;
        let ends = head.ends.unwrap_or(EndQualifier::Either);
        let is_alone = range.len() == 1;
        match head.kind {
            ValueKind::Host | ValueKind::Net if is_alone => address(head.proto, ends, first, None),
            ValueKind::Net if range.len() == 3 && self.word(range.start + 1) == Some("/") => {
                let bits = number(self.word(range.start + 2)?, 128)?;
                address(head.proto, ends, first, Some(bits))
            }
            ValueKind::Port if is_alone => ports(head.proto, ends, (first, first)),
            ValueKind::PortRange if is_alone => ports(head.proto, ends, first.split_once('-')?),
            ValueKind::Proto if is_alone && head.ends.is_none() => {
                let kinds = match head.proto {
                    None => kind::V4 | kind::V6,
                    Some("ip") => kind::V4,
                    Some("ip6") => kind::V6,
                    _ => return None,
                };
                let number = u8::try_from(number(first, 255)?).ok()?;
                Some(Atom::Proto { number, kinds })
            }
            ValueKind::Mac if is_alone => Some(Atom::Mac {
                ends,
                addr: mac(first)?,
            }),
            _ => None,
        }
    }
}

/// `None` if there are no clauses, or if a clause has no expression.
fn join(clauses: &[Clause], mut expr: impl FnMut(&Clause) -> Option<Expr>) -> Option<Expr> {
    let (first, rest) = clauses.split_first()?;
    rest.iter().try_fold(expr(first)?, |left, clause| {
        Some(left.joined(clause.joiner, expr(clause)?))
    })
}

/// The primitive that consists of a protocol name alone.
fn protocol(word: &str) -> Option<Atom> {
    let both = kind::V4 | kind::V6;
    let (number, kinds) = match word {
        "ip" => return Some(Atom::Kinds(kind::V4)),
        "ip6" => return Some(Atom::Kinds(kind::V6)),
        "arp" => return Some(Atom::Kinds(kind::ARP)),
        "rarp" => return Some(Atom::Kinds(kind::RARP)),
        "tcp" => (6, both),
        "udp" => (17, both),
        "sctp" => (132, both),
        "icmp" => (1, kind::V4),
        "icmp6" => (58, kind::V6),
        "igmp" => (2, kind::V4),
        "ah" => (51, both),
        "esp" => (50, both),
        "pim" => (103, both),
        _ => return None,
    };
    Some(Atom::Proto { number, kinds })
}

/// A primitive that compares an address. `bits` is the prefix length, if written. `None` if the
/// address does not fit `proto`.
fn address(proto: Option<&str>, ends: EndQualifier, word: &str, bits: Option<u16>) -> Option<Atom> {
    if let Ok(addr) = word.parse::<Ipv4Addr>() {
        let kinds = match proto {
            None => kind::V4 | kind::ARP | kind::RARP,
            Some("ip") => kind::V4,
            Some("arp") => kind::ARP,
            Some("rarp") => kind::RARP,
            _ => return None,
        };
        let addr = addr.to_bits();
        let bits = prefix_len(bits, u128::from(addr) << 96, 32)?;
        return Some(Atom::V4 {
            ends,
            addr,
            bits,
            kinds,
        });
    }
    let is_plain_v6 = word.contains(':') && !word.contains('.');
    if !is_plain_v6 || !matches!(proto, None | Some("ip6")) {
        return None;
    }
    let addr = word.parse::<Ipv6Addr>().ok()?.to_bits();
    let bits = prefix_len(bits, addr, 128)?;
    Some(Atom::V6 { ends, addr, bits })
}

/// The prefix length; without a length, the width of the address. `addr` begins at the highest bit.
/// libpcap decides (`None`) if `addr` has bits set after the prefix, or if the length is invalid.
fn prefix_len(bits: Option<u16>, addr: u128, width: u8) -> Option<u8> {
    let bits = u8::try_from(bits.unwrap_or(width.into())).ok()?;
    let behind = addr.checked_shl(bits.into()).unwrap_or(0);
    ((1..=width).contains(&bits) && behind == 0).then_some(bits)
}

fn ports(proto: Option<&str>, ends: EndQualifier, (low, high): (&str, &str)) -> Option<Atom> {
    let (low, high) = (number(low, u16::MAX)?, number(high, u16::MAX)?);
    let protos = match proto {
        None => frame_flags::ANY_PORTS,
        Some("tcp") => frame_flags::TCP,
        Some("udp") => frame_flags::UDP,
        Some("sctp") => frame_flags::SCTP,
        _ => return None,
    };
    (low <= high).then_some(Atom::Ports {
        ends,
        low,
        high,
        protos,
    })
}

/// A decimal number without leading zeros, `<= max`.
fn number(word: &str, max: u16) -> Option<u16> {
    let is_decimal = word.bytes().all(|byte| byte.is_ascii_digit())
        && (word.len() == 1 || !word.starts_with('0'));
    let number = word.parse().ok().filter(|_| is_decimal)?;
    (number <= max).then_some(number)
}

fn mac(word: &str) -> Option<u64> {
    let mut addr = 0;
    let mut count = 0;
    for byte in word.split(':') {
        let is_byte =
            matches!(byte.len(), 1 | 2) && byte.bytes().all(|digit| digit.is_ascii_hexdigit());
        addr = addr << 8 | u64::from_str_radix(byte, 16).ok().filter(|_| is_byte)?;
        count += 1;
    }
    (count == 6).then_some(addr)
}
