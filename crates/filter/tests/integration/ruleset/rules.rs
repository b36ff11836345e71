//! Random expressions, mostly of primitives that look-ups understand.

use super::packets::{HOSTS, HOSTS6, PORTS};

fn one<T: Copy>(random: &mut fastrand::Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

fn direction(random: &mut fastrand::Rng) -> &'static str {
    one(
        random,
        &[
            "",
            "",
            "",
            "src ",
            "dst ",
            "src or dst ",
            "src and dst ",
            "dst or src ",
        ],
    )
}

fn host(random: &mut fastrand::Rng) -> String {
    let [a, b, c, d] = one(random, &HOSTS);
    format!("{a}.{b}.{c}.{d}")
}

fn port(random: &mut fastrand::Rng) -> u16 {
    one(random, &PORTS)
}

/// One or two primitives that look-ups understand.
fn primitive(random: &mut fastrand::Rng) -> String {
    let way = direction(random);
    match random.u8(..14) {
        0 | 1 => format!(
            "{}{way}host {}",
            one(random, &["", "", "", "ip ", "arp ", "rarp "]),
            host(random)
        ),
        2 => format!(
            "{}{way}host {}",
            one(random, &["", "ip6 "]),
            one(random, &HOSTS6)
        ),
        3 => {
            let [a, b, c, _] = one(random, &HOSTS);
            let net = one(
                random,
                &[
                    "8.0.0.0/5".to_owned(),
                    "10.0.0.0/8".to_owned(),
                    "10.0.0.0/15".to_owned(),
                    format!("{a}.{b}.0.0/16"),
                    format!("{a}.{b}.{c}.0/24"),
                    format!("{a}.{b}.{c}.0/30"),
                    format!("{a}.{b}.{c}.1"),
                    "128.0.0.0/1".to_owned(),
                ]
                .each_ref()
                .map(String::as_str),
            )
            .to_owned();
            format!("{}{way}net {net}", one(random, &["", "ip ", "arp "]))
        }
        4 => format!(
            "{}{way}net {}",
            one(random, &["", "ip6 "]),
            one(
                random,
                &[
                    "2001:db8::/32",
                    "2001:db8::/64",
                    "fe80::/10",
                    "2000::/3",
                    "2001:db8::1/128"
                ]
            )
        ),
        5..8 => format!(
            "{}{way}port {}",
            one(random, &["", "tcp ", "udp ", "sctp "]),
            port(random)
        ),
        8 => format!(
            "{}{way}portrange {}",
            one(random, &["", "tcp ", "udp "]),
            one(
                random,
                &[
                    "0-65535",
                    "53-80",
                    "1000-1001",
                    "80-60000",
                    "0-0",
                    "65535-65535",
                    "1-52"
                ]
            )
        ),
        9 => one(
            random,
            &[
                "tcp", "udp", "sctp", "icmp", "icmp6", "igmp", "ah", "esp", "pim", "ip", "ip6",
                "arp", "rarp",
            ],
        )
        .to_owned(),
        10 => format!(
            "{}proto {}",
            one(random, &["", "ip ", "ip6 "]),
            one(random, &[1, 6, 17, 44, 47, 58, 132, 0])
        ),
        11 => format!(
            "ether {}host 2:0:0:0:0:{}",
            direction(random),
            random.u8(1..4)
        ),
        12 => format!("{way}host ({} or {})", host(random), host(random)),
        _ => format!(
            "{}{way}port {} or {}",
            one(random, &["", "tcp "]),
            port(random),
            port(random)
        ),
    }
}

/// A primitive that needs a program.
fn opaque(random: &mut fastrand::Rng) -> String {
    one(
        random,
        &[
            "tcp[13] & 2 != 0",
            "ip[8] < 5",
            "(ip[0] & 0xf) > 5",
            "greater 60",
            "len < 80",
            "ip proto \\tcp",
            "port domain",
            "net 10",
            "host 10.1",
            "port 0x50",
            "port 080",
            "ip6 protochain 17",
            "ip multicast",
            "ether multicast",
            "net 10.0.0.0 mask 255.0.0.0",
        ],
    )
    .to_owned()
}

/// An expression that requires a flow if its hosts and its ports differ.
fn flow(random: &mut fastrand::Rng) -> String {
    let proto = one(random, &["tcp", "udp", "sctp"]);
    let ([a, b], [p, q]) = ([host(random), host(random)], [port(random), port(random)]);
    match random.u8(..7) {
        0 => format!("{proto} and host {a} and host {b} and port {p} and port {q}"),
        1 => format!("{proto} and src host {a} and src port {p} and dst host {b} and dst port {q}"),
        2 => format!(
            "{proto} and ((src {a} and src port {p} and dst {b} and dst port {q}) or (src {b} and src port {q} and dst {a} and dst port {p}))"
        ),
        3 => format!("src host {a} and host {b} and {proto} port {p} and {proto} port {q}"),
        4 => {
            let [a, b] = [one(random, &HOSTS6), one(random, &HOSTS6)];
            format!("{proto} and host {a} and host {b} and port {p} and port {q}")
        }
        5 => format!("vlan 10 and {proto} and host {a} and host {b} and port {p} and port {q}"),
        _ => format!(
            "ip host {a} and host {b} and {proto} src port {p} and dst port {q} and not port 80"
        ),
    }
}

fn chain(random: &mut fastrand::Rng, depth: u32, opaques: bool) -> String {
    let mut text = String::new();
    for index in 0..random.usize(1..4) {
        if index > 0 {
            text.push_str(one(random, &[" and ", " and ", " or ", " && ", " || "]));
        }
        if random.u8(..6) == 0 {
            text.push_str(one(random, &["not ", "! "]));
        }
        match random.u8(..8) {
            0 if depth > 0 => text.push_str(&format!("({})", chain(random, depth - 1, opaques))),
            1 if opaques => text.push_str(&opaque(random)),
            _ => text.push_str(&primitive(random)),
        }
    }
    text
}

/// A random expression.
pub(crate) fn rule(random: &mut fastrand::Rng) -> String {
    match random.u8(..10) {
        0..3 => flow(random),
        3..6 => primitive(random),
        6 => format!("vlan{} and {}", one(random, &["", " 9", " 10"]), {
            let inner = chain(random, 1, true);
            if inner.contains(" or ") || inner.contains("||") {
                format!("({inner})")
            } else {
                inner
            }
        }),
        7 => format!("vlan {}", random.u8(9..12)),
        _ => {
            let opaques = random.bool();
            chain(random, 2, opaques)
        }
    }
}
