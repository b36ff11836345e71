//! Alerts of an IDS: Suricata's lines of EVE JSON and Zeek's notices, as what they say about packets.
//!
//! Pure: bytes in, facts out. No files, no sockets, no threads, no clock. [`Lines`] cuts a stream into lines, and goes on behind one that was torn;
//! [`read`] makes an [`Alert`] of a line. What is not in a line is `None`, never a guess. The frame that Suricata can add to an alert (`packet`)
//! is not read: it is there only where somebody turned it on. [`LabelTemplate`] is for alerts that are labels, as those of Prometheus.
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
pub use lines::{LINE_BYTES_MAX, Lines};
pub use time::time_ns;

/// What an alert says about packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// When: of one about a packet its stamp, in whole microseconds. ns since the epoch.
    pub time_ns: i64,
    /// The stamp of the first packet of its flow, in whole microseconds, where that is told. ns since the epoch.
    pub start_ns: Option<i64>,
    /// Between whom; `None`: that is not told, as for what is no IP packet.
    pub tuple: Option<Tuple>,
    /// Where no protocol is told: one host, or two between which it was.
    pub hosts: Vec<IpAddr>,
    /// Of packets in a tunnel: between whom the packets on the wire are.
    pub tunnel: Option<Tuple>,
    /// Identifiers of the VLAN tags, outer to inner, in a tunnel those of the outer packet before those of the inner one; `None`: they are not told.
    pub vlan: Option<Vec<u16>>,
    /// The interface where the packet was seen, as the IDS calls it.
    pub in_iface: Option<String>,
    /// Type and code of the ICMP packet.
    pub icmp: Option<Icmp>,
    /// The Community ID of its flow, of whatever seed.
    pub community_id: Option<String>,
    /// Whether a packet with this stamp was on the wire: what an IDS puts together itself (of fragments, of a stream, when a flow times out) was not.
    pub is_on_wire: bool,
    /// What identifies it.
    pub identity: Arc<Identity>,
}

/// Between whom a packet is, in its direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Upper-layer protocol.
    pub proto: u8,
    /// Who sent it.
    pub src: IpAddr,
    /// Who was to get it.
    pub dst: IpAddr,
    /// Of TCP, UDP and SCTP, source and destination; `None`: they are not told, as of fragments.
    pub ports: Option<(u16, u16)>,
}

/// What identifies an alert: what its line says, repeated where we tell of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Its time as the line has it.
    pub timestamp: String,
    /// Suricata's number of the flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<u64>,
    /// Generator of the signature, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u64>,
    /// … its number, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature_id: Option<u64>,
    /// … its revision, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rev: Option<u64>,
    /// … and its text; of a notice its type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_id: Option<u64>,
    /// The sensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Zeek's name of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// SHA-256 of the line without its end, in hexadecimal digits.
    pub sha256: String,
}

impl Identity {
    /// How people call it: `1:2019401:3 "ET POLICY …"`.
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

/// What a line is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// An alert. `after_torn`: what stood before it in the line was the beginning of another, which is lost.
    Alert {
        /// What it says.
        alert: Box<Alert>,
        /// See above.
        after_torn: bool,
    },
    /// A whole line that is no alert.
    Ignored,
    /// No line, but a piece of one.
    Torn,
    /// An alert that cannot be understood: why.
    Wrong(&'static str),
}

/// What lines of the kinds that are known begin with: where another line may begin in one that was torn.
const STARTS: [&[u8]; 2] = [br#"{"timestamp""#, br#"{"ts""#];
/// Bytes that an alert may keep of its line, because thousands of alerts wait in memory. Suricata
/// lets a whole rule, and so its `msg`, have as many (`DETECT_MAX_RULE_SIZE`).
const KEPT_BYTES_MAX: usize = 8192;
/// One of these is in each that counts.
const WORDS: [&[u8]; 2] = [br#""alert""#, br#""note""#];

/// What a line, without its end, is. Most lines of an IDS are no alerts, and are not parsed.
#[must_use]
pub fn read(line: &[u8]) -> Read {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Read::Ignored;
    }
    let is_whole = line.starts_with(b"{") && line.ends_with(b"}");
    let is_alert = WORDS.iter().any(|word| memmem::find(line, word).is_some());
    match (is_whole, is_alert) {
        (true, false) => return Read::Ignored,
        (false, false) => return Read::Torn,
        (true, true) => {
            if let Some(read) = whole(line) {
                return read;
            }
        }
        (false, true) => {}
    }
    // The start of a line that was not sent to its end, and the next one behind it.
    let starts = STARTS
        .iter()
        .filter_map(|start| memmem::rfind(&line[1..], start));
    let rest = starts.max().map(|at| &line[at + 1..]);
    match rest.and_then(whole) {
        Some(Read::Alert { alert, .. }) => Read::Alert {
            alert,
            after_torn: true,
        },
        _ => Read::Torn,
    }
}

/// `None`: that is no JSON object.
fn whole(line: &[u8]) -> Option<Read> {
    let read = if memmem::find(line, br#""event_type""#).is_some() {
        eve::read(line)
    } else {
        zeek::read(line)
    };
    read.map(|read| match read {
        Read::Alert { alert, .. } if alert.kept_bytes() > KEPT_BYTES_MAX => {
            Read::Wrong("its texts are longer than 8 KiB")
        }
        read => read,
    })
}

impl Alert {
    /// Bytes of texts and lists.
    fn kept_bytes(&self) -> usize {
        let Identity {
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
    /// The flow, in either direction. Where there should be ports and they are not told, of all packets between the two of that protocol.
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

    /// Ports as a line tells them: only these protocols have any, and fragments are told with zeros.
    fn with_ports(mut self, src: Option<u16>, dst: Option<u16>) -> Self {
        let has_ports = matches!(self.proto, proto::TCP | proto::UDP | proto::SCTP);
        let ports = src.zip(dst).filter(|ports| has_ports && *ports != (0, 0));
        self.ports = ports;
        self
    }
}

impl Alert {
    /// Whether the Community ID is that of the tuple with seed 0; `None`: one of both is not told, or there are no ports (an ICMP error is of the flow
    /// that it is about).
    #[must_use]
    pub fn has_community_id_of_tuple(&self) -> Option<bool> {
        let (tuple, id) = (self.tuple?, self.community_id.as_ref()?);
        Some(community_id_of(&tuple.flow(), 0)? == *id)
    }
}
