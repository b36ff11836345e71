//! Suricata's alerts: EVE JSON of versions 6 to 8.

use std::{borrow::Cow, net::IpAddr, sync::Arc};

use retroscope_eve::proto_number;
use retroscope_packet::Icmp;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{Alert, AlertIdentity, ParsedLine, Tuple, time::micros};

#[derive(Deserialize)]
struct EveLine<'a> {
    #[serde(borrow, default)]
    event_type: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    timestamp: Option<Cow<'a, str>>,
    #[serde(default)]
    flow_id: Option<u64>,
    #[serde(borrow, default)]
    in_iface: Option<Cow<'a, str>>,
    #[serde(default)]
    vlan: Option<Value>,
    #[serde(borrow, flatten)]
    ends: EveEndpoints<'a>,
    #[serde(default)]
    icmp_type: Option<u8>,
    #[serde(default)]
    icmp_code: Option<u8>,
    #[serde(borrow, default)]
    pkt_src: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    community_id: Option<Cow<'a, str>>,
    #[serde(default)]
    tx_id: Option<u64>,
    #[serde(borrow, default)]
    host: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    alert: Option<Signature<'a>>,
    #[serde(borrow, default)]
    flow: Option<EveFlow<'a>>,
    #[serde(borrow, default)]
    tunnel: Option<EveEndpoints<'a>>,
}

#[derive(Deserialize)]
struct EveEndpoints<'a> {
    #[serde(borrow, default)]
    src_ip: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    dest_ip: Option<Cow<'a, str>>,
    #[serde(default)]
    src_port: Option<u16>,
    #[serde(default)]
    dest_port: Option<u16>,
    #[serde(borrow, default)]
    proto: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Signature<'a> {
    #[serde(default)]
    gid: Option<u64>,
    #[serde(default)]
    signature_id: Option<u64>,
    #[serde(default)]
    rev: Option<u64>,
    #[serde(borrow, default)]
    signature: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct EveFlow<'a> {
    #[serde(borrow, default)]
    start: Option<Cow<'a, str>>,
}

impl EveEndpoints<'_> {
    /// The tuple of these fields. `None` if an address is missing. An error if an address is
    /// invalid, the protocol is missing or unknown, or the IP versions differ.
    fn tuple(&self) -> Result<Option<Tuple>, &'static str> {
        let (Some(src), Some(dst)) = (&self.src_ip, &self.dest_ip) else {
            return Ok(None);
        };
        let address = |text: &str| text.parse::<IpAddr>().ok();
        let proto = self.proto.as_deref().and_then(proto_number);
        match (address(src), address(dst), proto) {
            (Some(src), Some(dst), Some(proto)) if src.is_ipv4() == dst.is_ipv4() => {
                let tuple = Tuple {
                    proto,
                    src,
                    dst,
                    ports: None,
                };
                Ok(Some(tuple.with_ports(self.src_port, self.dest_port)))
            }
            _ => Err("its addresses or protocol are none"),
        }
    }
}

/// Parses a line. `None` if the line is not JSON, or does not have the form of [`EveLine`].
pub(crate) fn read(line: &[u8]) -> Option<ParsedLine> {
    let parsed: EveLine<'_> = serde_json::from_slice(line).ok()?;
    if parsed.event_type.as_deref() != Some("alert") {
        return Some(ParsedLine::Ignored);
    }
    Some(match alert(parsed, line) {
        Ok(alert) => ParsedLine::Alert {
            alert: Box::new(alert),
            after_torn: false,
        },
        Err(why) => ParsedLine::Wrong(why),
    })
}

fn alert(line: EveLine<'_>, bytes: &[u8]) -> Result<Alert, &'static str> {
    let timestamp = line.timestamp.ok_or("it has no timestamp")?;
    let time_ns = micros(&timestamp).ok_or("its timestamp is none")?;
    let tuple = line.ends.tuple()?;
    let source = line.pkt_src.as_deref();
    // For a packet that Suricata reassembled, `tunnel` describes the fragments, with depth 0, and
    // not a tunnel.
    let tunnel = line.tunnel.filter(|_| source != Some("defrag"));
    let tunnel = tunnel.map(|outer| outer.tuple()).transpose()?.flatten();
    let start = line.flow.and_then(|flow| flow.start);
    let start_ns = start.as_deref().and_then(micros);
    let owned = |text: Option<Cow<'_, str>>| text.map(Cow::into_owned);
    let signature = line.alert;
    let of_signature =
        |number: fn(&Signature<'_>) -> Option<u64>| signature.as_ref().and_then(number);
    let identity = AlertIdentity {
        flow_id: line.flow_id,
        gid: of_signature(|it| it.gid),
        signature_id: of_signature(|it| it.signature_id),
        rev: of_signature(|it| it.rev),
        tx_id: line.tx_id,
        host: owned(line.host),
        uid: None,
        sha256: sha256(bytes),
        timestamp: timestamp.into_owned(),
        signature: owned(signature.and_then(|it| it.signature)),
    };
    Ok(Alert {
        time_ns,
        // If the start is after the packet, for example because the clock was set back, the start
        // is unknown.
        start_ns: start_ns.filter(|start_ns| *start_ns <= time_ns),
        tuple,
        hosts: Vec::new(),
        tunnel,
        vlan: line.vlan.as_ref().and_then(vlan),
        in_iface: owned(line.in_iface),
        icmp: line.icmp_type.map(|kind| Icmp {
            kind,
            code: line.icmp_code.unwrap_or(0),
        }),
        community_id: owned(line.community_id),
        is_on_wire: source.is_none_or(is_on_wire),
        identity: Arc::new(identity),
    })
}

/// Whether packets of this source were on the wire, alone or inside another packet.
///
/// `true`, for example, for `wire/pcap`, `gre tunnel` and `vxlan encapsulation`. `false`, for
/// example, for `defrag`, `stream (flow timeout)` and `capture timeout flush`.
fn is_on_wire(source: &str) -> bool {
    source.starts_with("wire") || source.ends_with("tunnel") || source.ends_with("encapsulation")
}

/// One VLAN identifier, or a list of identifiers.
fn vlan(value: &Value) -> Option<Vec<u16>> {
    let id = |value: &Value| u16::try_from(value.as_u64()?).ok();
    match value {
        Value::Array(all) => all.iter().map(id).collect(),
        one => Some(vec![id(one)?]),
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
