//! Alerts of an IDS: parses Suricata's EVE JSON and Zeek's notices into facts about packets.
//!
//! Pure: bytes go in, facts come out. No files, no sockets, no threads, no clock. [`LineSplitter`]
//! splits a stream into lines. [`read`] parses a line into an [`Alert`], usually also after a torn
//! line. An optional fact that the line does not contain is `None`.
//!
//! Suricata can be configured to add the frame to an alert (`packet`). The frame is ignored.
//! [`LabelTemplate`] is for alerts that consist of labels, such as those of Prometheus.
#![forbid(unsafe_code)]

mod eve;
mod labels;
mod lines;
mod time;
mod zeek;

use std::{net::IpAddr, sync::Arc};

use memchr::memmem;
use retroscope_packet::{FlowEndpoint, FlowKey, Icmp, community_id_of, proto};
use serde::Serialize;

pub use labels::{LabelFilled, LabelTemplate};
pub use lines::{LINE_BYTES_MAX, LineSplitter};
pub use time::time_ns;

/// The facts of an alert about packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// Time of the alert, ns since the epoch. For an alert about a packet: the stamp of the packet,
    /// in whole microseconds.
    pub time_ns: i64,
    /// Stamp of the first packet of the flow, ns since the epoch, in whole microseconds. `None` if
    /// the line has no valid stamp of this packet, or if this stamp is after `time_ns`.
    pub start_ns: Option<i64>,
    /// The ends of the packet, or of a Zeek notice. `None` if an address is missing, for example
    /// because the packet is not IP, or if a Zeek notice has no known protocol.
    pub tuple: Option<Tuple>,
    /// If a Zeek notice has no tuple: its hosts, at most two. Otherwise empty.
    pub hosts: Vec<IpAddr>,
    /// If the packet is in a tunnel: the ends of the packet on the wire.
    pub tunnel: Option<Tuple>,
    /// VLAN identifiers, outer to inner. In a tunnel the identifiers of the outer packet come
    /// before those of the inner packet. `None` if the line has no valid `vlan`.
    pub vlan: Option<Vec<u16>>,
    /// The IDS's name of the interface that received the packet.
    pub in_iface: Option<String>,
    /// Type and code of the ICMP packet. The code is 0 if the line has only a type.
    pub icmp: Option<Icmp>,
    /// The Community ID of the flow, with any seed.
    pub community_id: Option<String>,
    /// A packet with the stamp `time_ns` was on the wire, or Suricata's line does not say. `false`
    /// for packets from reassembly or a flow's time-out, and for Zeek notices.
    pub is_on_wire: bool,
    /// The fields that identify the alert.
    pub identity: Arc<AlertIdentity>,
}

/// The ends of a packet, in the direction of the packet. For a Zeek notice about a connection: the
/// ends of the connection, its originator first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Upper-layer protocol.
    pub proto: u8,
    /// The sender.
    pub src: IpAddr,
    /// The receiver.
    pub dst: IpAddr,
    /// Source and destination port of TCP, UDP and SCTP. `None` for other protocols, and if the
    /// line lacks a port or has only zeros, for example for fragments.
    pub ports: Option<(u16, u16)>,
}

/// The fields that identify an alert. Reports about the alert repeat these fields of the line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AlertIdentity {
    /// The time as the line writes it.
    pub timestamp: String,
    /// Suricata's number of the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<u64>,
    /// Generator of the signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u64>,
    /// Number of the signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature_id: Option<u64>,
    /// Revision of the signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rev: Option<u64>,
    /// Text of the signature, or the type of a Zeek notice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Number of the transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_id: Option<u64>,
    /// Name of the sensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Zeek's identifier of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// SHA-256 of the line without white space around it, in hexadecimal digits.
    pub sha256: String,
}

impl AlertIdentity {
    /// The name for people: `1:2019401:3 "ET POLICY …"`.
    #[must_use]
    pub fn name(&self) -> String {
        let number = |number: Option<u64>| number.map_or_else(String::new, |it| it.to_string());
        let text = self.signature.as_deref().unwrap_or_default();
        match self.signature_id {
            Some(id) => format!("{}:{id}:{} {text:?}", number(self.gid), number(self.rev)),
            None => format!("{text:?}"),
        }
    }
}

/// The content of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedLine {
    /// An alert.
    Alert {
        /// The facts of the alert.
        alert: Box<Alert>,
        /// The line began with the first part of another line, which is lost.
        after_torn: bool,
    },
    /// An empty line, or text in braces without an alert.
    Ignored,
    /// A part of a line, or text that is not a line of an IDS.
    Torn,
    /// An invalid alert, with the reason.
    Wrong(&'static str),
}

/// The first bytes of known lines. After a torn line, another line may begin at these bytes.
const STARTS: [&[u8]; 2] = [br#"{"timestamp""#, br#"{"ts""#];
/// Bytes that an alert may keep of its line, because thousands of alerts may wait in memory.
/// Suricata allows the same number of bytes for a whole rule, which includes its `msg`
/// (`DETECT_MAX_RULE_SIZE`).
const KEPT_BYTES_MAX: usize = 8192;
/// Each line of an alert contains one of these words.
const WORDS: [&[u8]; 2] = [br#""alert""#, br#""note""#];

/// Parses a line without its line feed. A line that contains neither `"alert"` nor `"note"` is not
/// parsed as JSON, because most lines of an IDS are not alerts.
#[must_use]
pub fn read(line: &[u8]) -> ParsedLine {
    let line = line.trim_ascii();
    if line.is_empty() {
        return ParsedLine::Ignored;
    }
    let is_whole = line.starts_with(b"{") && line.ends_with(b"}");
    let is_alert = WORDS.iter().any(|word| memmem::find(line, word).is_some());
    match (is_whole, is_alert) {
        (true, false) => return ParsedLine::Ignored,
        (false, false) => return ParsedLine::Torn,
        (true, true) => {
            if let Some(read) = whole(line) {
                return read;
            }
        }
        (false, true) => {}
    }
    // A torn line: its first part may be followed by the next line, which is whole.
    let starts = STARTS
        .iter()
        .filter_map(|start| memmem::rfind(&line[1..], start));
    let rest = starts.max().map(|at| &line[at + 1..]);
    match rest.and_then(whole) {
        Some(ParsedLine::Alert { alert, .. }) => ParsedLine::Alert {
            alert,
            after_torn: true,
        },
        _ => ParsedLine::Torn,
    }
}

/// Parses a whole line. `None` if the line is not a JSON object of the expected form.
fn whole(line: &[u8]) -> Option<ParsedLine> {
    let read = if memmem::find(line, br#""event_type""#).is_some() {
        eve::read(line)
    } else {
        zeek::read(line)
    };
    read.map(|read| match read {
        ParsedLine::Alert { alert, .. } if alert.kept_bytes() > KEPT_BYTES_MAX => {
            ParsedLine::Wrong("its texts are longer than 8 KiB")
        }
        read => read,
    })
}

impl Alert {
    /// Bytes of the texts of any length and of the VLAN identifiers.
    fn kept_bytes(&self) -> usize {
        let AlertIdentity {
            timestamp,
            signature,
            host,
            uid,
            ..
        } = &*self.identity;
        let texts = [signature, host, uid, &self.in_iface, &self.community_id];
        let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
        let vlan = self.vlan.as_ref().map_or(0, |ids| size_of_val(&ids[..]));
        timestamp.len() + texts + vlan
    }
}

impl Tuple {
    /// The flow, in either direction. If the ports are unknown: all packets of the protocol between
    /// the two addresses.
    #[must_use]
    pub fn flow(&self) -> FlowKey {
        let end = |addr, port| FlowEndpoint { addr, port };
        match self.ports {
            Some((src, dst)) => {
                FlowKey::between(self.proto, end(self.src, src), end(self.dst, dst))
            }
            None => FlowKey::Ip {
                proto: self.proto,
                low: self.src.min(self.dst),
                high: self.src.max(self.dst),
            },
        }
    }

    /// Adds the ports of a line if the protocol is TCP, UDP or SCTP. Two zeros count as no ports:
    /// lines about fragments have zeros instead of ports.
    fn with_ports(mut self, src: Option<u16>, dst: Option<u16>) -> Self {
        let has_ports = matches!(self.proto, proto::TCP | proto::UDP | proto::SCTP);
        let ports = src.zip(dst).filter(|ports| has_ports && *ports != (0, 0));
        self.ports = ports;
        self
    }
}

impl Alert {
    /// Whether the Community ID of the line is the ID of the tuple with seed 0. `None` if the line
    /// has no ID or no tuple, or if the tuple has no ports. So ICMP is not compared: an alert about
    /// an ICMP error may have the ID of the flow that the error reports.
    #[must_use]
    pub fn has_community_id_of_tuple(&self) -> Option<bool> {
        let (tuple, id) = (self.tuple?, self.community_id.as_ref()?);
        Some(community_id_of(&tuple.flow(), 0)? == *id)
    }
}
