//! Filters on packets of capture files, cut at various places.

use retroscope_packet::LinkType;

use super::{Judges, Libpcap, packets::Packet};
use crate::{FilterMode, LinkContext, Program, compile};

/// Filters for which libpcap emits many kinds of instructions.
const FILTERS: [&str; 15] = [
    "tcp port 80 and host 10.0.0.1",
    "udp portrange 1000-2000 or icmp",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 100 or ip[8] * 3 % 7 = 2 or ip[9] / 2 ^ 3 = 1 or len | 3 > 700",
    "ip6 protochain 17",
    "ip protochain 6",
    "vlan and (ip or ip6) and not port 53",
    "mpls 100 and ip",
    "geneve and ip",
    "ether host 00:00:00:00:00:00 or ether multicast",
    "greater 100 and less 1000",
    "ip[ip[0] & 0x0f * 4] << ip[1] >= -ip[3] + len",
    "icmp6 and ip6[40] = 128",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "host 192.168.1.1 or net 10.0.0.0/8",
];

#[test]
fn real_packets_give_what_libpcap_gives() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let files = [
        "apps/ix-mixed.pcap",
        "encap/nd-ip_fragmented_garbage.pcap",
        "large/mix-a.pcap",
    ];
    if !root.exists() {
        eprintln!("SKIP: {} is not there; nothing was tested", root.display());
        return;
    }
    let mut judges = Judges::new();
    for file in files {
        let mut reader =
            retroscope_pcapfile::CaptureReader::open(&root.join(file)).expect("the capture opens");
        let link_type = LinkType::ETHERNET;
        let programs: Vec<Program> = FILTERS
            .iter()
            .flat_map(|filter| [true, false].map(|optimize| (filter, optimize)))
            .map(|(filter, optimize)| {
                let link = LinkContext {
                    link_type,
                    snaplen: 65_535,
                    mode: FilterMode::Savefile,
                    optimize,
                };
                compile(filter, link).unwrap_or_else(|error| panic!("{}", error.render()))
            })
            .collect();
        // Every eighth packet of the large capture is enough.
        let step = if file.starts_with("large/") { 8 } else { 1 };
        let mut index = 0;
        while let Ok(Some(record)) = reader.next() {
            index += 1;
            if index % step != 0 {
                continue;
            }
            let len = record.data.len();
            let cuts = [len, len / 2, 54, 33, 13, index % 80].map(|cut| cut.min(len));
            let packets = cuts.map(|cut| Packet {
                wire_len: record.meta.wire_len,
                ..Packet::new(record.data[..cut].to_vec())
            });
            for program in &programs {
                judges.compare(0, program, Libpcap::Asked, &packets);
            }
        }
    }
    assert!(
        judges.rejected > 400_000 && judges.kept > 50_000,
        "{judges:?}"
    );
}
