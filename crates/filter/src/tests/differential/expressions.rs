//! Programs that libpcap makes from random expressions, most of which no user would write.

use retroscope_packet::LinkType;

use super::{Judges, Libpcap, Trials, packets::packets};
use crate::{FilterMode, LinkContext, compile};

const PRIMITIVES: [&str; 40] = [
    "tcp",
    "udp",
    "icmp",
    "arp",
    "ip",
    "ip6",
    "host 10.0.0.1",
    "src host 192.168.1.1",
    "dst net 10.0.0.0/8",
    "net 192.168.1.0/24",
    "ip6 host fe00::1",
    "port 80",
    "udp port 60000",
    "src port 53",
    "dst portrange 50-90",
    "tcp portrange 1-100",
    "vlan",
    "vlan 10",
    "mpls",
    "pppoes",
    "ether host ff:ff:ff:ff:ff:ff",
    "ether src 02:00:00:00:00:01",
    "broadcast",
    "multicast",
    "ip multicast",
    "greater 60",
    "less 50",
    "ip proto 17",
    "ip6 proto 6",
    "proto 1",
    "ip protochain 6",
    "ip6 protochain 17",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "ip[6:2] & 0x1fff != 0",
    "ip[0] & 0xf != 5",
    "udp[4:2] > 20",
    "ether[12:2] = 0x0800",
    "len % 3 = 1",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 20",
    "icmp[icmptype] = icmp-echo",
];

/// One primitive or several joined primitives. A larger `depth` allows longer expressions.
pub(super) fn expression(random: &mut fastrand::Rng, depth: u32) -> String {
    if depth == 0 || random.u8(..4) == 0 {
        return PRIMITIVES[random.usize(..PRIMITIVES.len())].to_owned();
    }
    let left = expression(random, depth - 1);
    match random.u8(..5) {
        0 => format!("not ({left})"),
        1 | 2 => format!("({left}) and ({})", expression(random, depth - 1)),
        _ => format!("({left}) or ({})", expression(random, depth - 1)),
    }
}

#[test]
fn random_expressions_mean_the_same_to_all() {
    let mut judges = Judges::new();
    let mut refused = 0;
    for seed in Trials::new(400) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let text = expression(random, 3);
        let link = LinkContext {
            link_type: LinkType::ETHERNET,
            snaplen: 65_535,
            mode: FilterMode::Savefile,
            optimize: random.bool(),
        };
        // libpcap rejects some combinations, such as `pppoes` inside `pppoes`.
        let Ok(program) = compile(&text, link) else {
            refused += 1;
            continue;
        };
        let packets = packets(random, 64);
        judges.compare(seed, &program, Libpcap::Asked, &packets);
    }
    judges.must_have_seen_both();
    assert!(refused < judges.programs, "{refused} refused: {judges:?}");
}
