//! Suricata's names of IP protocols, mostly the keywords of IANA's registry "Assigned Internet
//! Protocol Numbers".

use crate::text::{put, put_number};

/// Names by number, 0 to 143. A number in this range without a name has `Any`.
#[rustfmt::skip]
const NAMES: [&str; 144] = [
    "HOPOPT", "ICMP", "IGMP", "GGP", "IP-in-IP", "ST", "TCP", "CBT", "EGP", "IGP",
    "BBN-RCC-MON", "NVP-II", "PUP", "ARGUS", "EMCON", "XNET", "CHAOS", "UDP", "MUX", "DCN-MEAS",
    "HMP", "PRM", "XNS-IDP", "TRUNK-1", "TRUNK-2", "LEAF-1", "LEAF-2", "RDP", "IRTP", "ISO-TP4",
    "NETBLT", "MFE-NSP", "MERIT-INP", "DCCP", "3PC", "IDPR", "XTP", "DDP", "IDPR-CMTP", "TP++",
    "IL", "IPv6", "SDRP", "IPv6-Route", "IPv6-Frag", "IDRP", "RSVP", "GRE", "DSR", "BNA",
    "ESP", "AH", "I-NLSP", "SwIPe", "NARP", "MOBILE", "TLSP", "SKIP", "IPv6-ICMP", "IPv6-NoNxt",
    "IPv6-Opts", "Any", "CFTP", "Any", "SAT-EXPAK", "KRYPTOLAN", "RVD", "IPPC", "Any", "SAT-MON",
    "VISA", "IPCU", "CPNX", "CPHB", "WSN", "PVP", "BR-SAT-MON", "SUN-ND", "WB-MON", "WB-EXPAK",
    "ISO-IP", "VMTP", "SECURE-VMTP", "VINES", "TTP", "NSFNET-IGP", "DGP", "TCF", "EIGRP", "OSPF",
    "Sprite-RPC", "LARP", "MTP", "AX.25", "OS", "MICP", "SCC-SP", "ETHERIP", "ENCAP", "Any",
    "GMTP", "IFMP", "PNNI", "PIM", "ARIS", "SCPS", "QNX", "A/N", "IPComp", "SNP",
    "Compaq-Peer", "IPX-in-IP", "VRRP", "PGM", "Any", "L2TP", "DDX", "IATP", "STP", "SRP",
    "UTI", "SMP", "SM", "PTP", "IS-IS", "FIRE", "CRTP", "CRUDP", "SSCOPMCE", "IPLT",
    "SPS", "PIPE", "SCTP", "FC", "RSVP-E2E-IGNORE", "Mobility", "UDPLite", "MPLS-in-IP", "manet", "HIP",
    "Shim6", "WESP", "ROHC", "Ethernet",
];

/// The name of a protocol by its number. `None` for numbers from 144 on.
#[must_use]
pub fn proto_name(proto: u8) -> Option<&'static str> {
    NAMES.get(usize::from(proto)).copied()
}

/// The number of a protocol, from its name in any case, or from the number as text. The inverse of
/// [`proto_name`], except that the name `Any` gives `None`.
#[must_use]
pub fn proto_number(name: &str) -> Option<u8> {
    let known = NAMES
        .iter()
        .position(|known| *known != "Any" && known.eq_ignore_ascii_case(name));
    known.map_or_else(|| name.parse().ok(), |number| u8::try_from(number).ok())
}

/// Writes the name of a protocol up to number 143, and the number of any other protocol, which has
/// three digits.
pub(crate) fn put_proto(out: &mut Vec<u8>, proto: u8) {
    match proto_name(proto) {
        Some(name) => put(out, name),
        None => put_number(out, proto),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for number in 0..=u8::MAX {
            let name = proto_name(number).filter(|name| *name != "Any");
            let text = name.map_or_else(|| format!("{number:03}"), str::to_owned);
            assert_eq!(proto_number(&text), Some(number), "{text}");
            assert_eq!(proto_number(&text.to_lowercase()), Some(number));
        }
        assert_eq!(proto_number("Any").or(proto_number("no such")), None);
    }

    #[test]
    fn protocols_have_names_or_three_digits() {
        let name = |proto| {
            let mut out = Vec::new();
            put_proto(&mut out, proto);
            String::from_utf8(out).unwrap()
        };
        let known = [
            (0, "HOPOPT"),
            (1, "ICMP"),
            (6, "TCP"),
            (17, "UDP"),
            (41, "IPv6"),
            (47, "GRE"),
            (50, "ESP"),
            (58, "IPv6-ICMP"),
            (89, "OSPF"),
            (132, "SCTP"),
            (143, "Ethernet"),
            (144, "144"),
            (255, "255"),
        ];
        for (proto, expected) in known {
            assert_eq!(name(proto), expected);
        }
    }
}
