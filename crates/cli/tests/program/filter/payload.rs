//! Payload terms on real captures, compared with counts that tshark 4.0 gave.

use super::support::run_on;
use crate::support::shared;

/// Capture, expression, and expected number of matching packets. The comment after a number is a
/// display filter that matches as many packets of the capture in tshark, without reassembly.
const COUNTS: [(&str, &str, usize); 11] = [
    (
        "apps/nd-sip.pcap",
        r#"payload contains "sip:" and not payload startswith "SIP/2.0""#,
        47, // (udp.payload contains "sip:") and not (udp.payload[0:7] == "SIP/2.0")
    ),
    (
        "apps/nd-ftp.pcap",
        "payload matches /^(user|pass) /i",
        2, // tcp.payload matches "(?i)^(user|pass) "
    ),
    (
        "apps/zk-web.pcap",
        r#"tcp port 80 and (payload startswith "GET " or payload startswith "HTTP/1.")"#,
        2, // tcp.port==80 and (tcp.payload[0:4]=="GET " or tcp.payload[0:7]=="HTTP/1.")
    ),
    (
        "apps/zk-workshop_2011_browse.pcap",
        r#"payload contains "Host: ""#,
        17, // tcp.payload contains "Host: "
    ),
    (
        "apps/nd-snapchat.pcap",
        r#"tcp and payload startswith "\x16\x03""#,
        6, // tcp.payload[0:2]==16:03
    ),
    (
        "apps/zk-wikipedia.pcap",
        r#"payload contains "image/" or payload contains "text/css" or payload contains "wiki""#,
        57, // tcp.payload contains "image/" or tcp.payload contains "text/css"
            // or tcp.payload contains "wiki" or udp.payload contains "wiki"
    ),
    (
        "apps/nd-icmp-tunnel.pcap",
        r#"payload contains "ssh" && icmp"#,
        3, // icmp and data.data contains "ssh"
    ),
    (
        "encap/zk-mixed-vlan-mpls.pcap",
        r#"payload contains "HTTP/1.1""#,
        1, // tcp.payload contains "HTTP/1.1"
    ),
    (
        "encap/zk-http-qinq-0.pcap",
        r#"payload startswith "GET ""#,
        1, // tcp.payload[0:4]=="GET "
    ),
    // The capture has the first 128 bytes of each packet. No payload in these bytes contains HTTP.
    (
        "apps/sn-sanitized4k_truncated128.pcap",
        r#"payload contains "HTTP""#,
        0, // tcp.payload contains "HTTP" or udp.payload contains "HTTP"
    ),
    // libpcap knows this link type, but our parser does not. So no packet has a payload, and the
    // term matches nothing.
    ("linktypes/lp-http_PPI.pcap", "payload matches /(?s)./", 0),
];

#[test]
fn real_captures_agree_with_another_dissector() {
    let Some(traces) = shared("traces") else {
        return;
    };
    for (capture, expression, expected) in COUNTS {
        let (code, out, err) = run_on(&traces.join(capture), &["--count", expression]);
        assert_eq!(
            (code, out),
            (Some(0), format!("{expected}\n")),
            "{capture} {expression}: {err}"
        );
    }
}
