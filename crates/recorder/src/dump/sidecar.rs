//! The JSON file beside a dump: its report, where it comes from, and its files.

use std::io;

use retroscope_packet::{LinkType, community_id, parse, summary};
use serde::{Serialize, Serializer};

use super::{dump_alerts::AlertEntry, report::DumpReport, store::StoredFile};
use crate::control::{hits::Suppressions, packet_id::Recording, time::rfc3339};

/// See the module.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sidecar {
    #[serde(flatten)]
    pub(crate) report: DumpReport,
    #[serde(flatten)]
    pub(crate) facts: SidecarFacts,
    /// Interfaces in the file.
    pub(crate) interfaces: Vec<SidecarInterface>,
    #[serde(flatten)]
    pub(crate) origin: Origin,
    /// The program that wrote it.
    pub(crate) program: &'static str,
    /// When the file was completed; absent from reproducible runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
}

#[derive(Serialize)]
struct SidecarDocument<'a> {
    #[serde(flatten)]
    sidecar: &'a Sidecar,
    /// The directory that it lies in, below that of the dumps.
    #[serde(skip_serializing_if = "Option::is_none")]
    into: Option<&'a str>,
    files: &'a [StoredFile],
}

impl Sidecar {
    /// What the file holds.
    pub(super) fn json(&self, files: &[StoredFile], into: Option<&str>) -> io::Result<Vec<u8>> {
        let whole = SidecarDocument {
            sidecar: self,
            into,
            files,
        };
        let mut json = serde_json::to_vec_pretty(&whole)?;
        json.push(b'\n');
        Ok(json)
    }
}

/// What all dumps of a recorder come from.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Origin {
    /// This system's name; absent from reproducible runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// The UUID with which IDs of packets are valid; absent from reproducible runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recording: Option<Recording>,
    /// What is recorded at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capture_filter: Option<String>,
}

/// What a sidecar has beyond the report; it does not change any more.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SidecarFacts {
    /// The filled-in dump expression; empty: everything.
    pub(crate) expression: String,
    /// `None`: triggered by hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trigger_packet: Option<TriggerPacket>,
    /// The first of the alerts that it is of; absent where it is of none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) alerts: Vec<AlertEntry>,
    /// Further hits of the same rule and expression while the dump was open.
    pub(crate) suppressed: u64,
    /// Times of the first of them, ns; written as RFC 3339.
    #[serde(serialize_with = "times")]
    pub(crate) suppressed_hits: Vec<i64>,
    /// Other hits of the same rule that started no dump, since the rule's dump before.
    pub(crate) suppressed_before: Suppressions,
}

/// The packet that triggered a dump.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TriggerPacket {
    /// Where it came.
    interface: String,
    /// What it is, in a line; absent where the dump does not hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    /// The Community ID of its flow, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    community_id: Option<String>,
}

impl TriggerPacket {
    /// One of which nothing else is known yet.
    pub(super) fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            summary: None,
            community_id: None,
        }
    }

    /// It is found.
    pub(super) fn see(&mut self, link_type: LinkType, data: &[u8], wire_len: u32) {
        self.summary = Some(summary(link_type, data, wire_len).to_string());
        self.community_id = community_id(&parse(link_type, data), 0);
    }
}

/// An interface as the sidecar lists it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SidecarInterface {
    pub(crate) name: String,
    /// LINKTYPE_ value.
    pub(crate) link_type: u16,
    /// Packets of this interface in the file.
    pub(crate) packets: u64,
    /// Unit of its time stamps in ns.
    pub(crate) time_resolution_ns: u64,
    /// Whose clock stamped them: `kernel-software`, `file`, `generator`, `foreign`.
    pub(crate) time_source: &'static str,
}

fn times<S: Serializer>(times_ns: &[i64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(times_ns.iter().map(|time_ns| rfc3339(*time_ns)))
}

impl Origin {
    /// What the first comment of a file says of it, in its end.
    pub(super) fn description(&self) -> String {
        let filter = self.capture_filter.as_ref();
        let filter = filter.map(|filter| format!(", of packets that {filter:?} takes"));
        let host = self.host.as_ref().map(|host| format!(", on {host}"));
        format!("{}{}", filter.unwrap_or_default(), host.unwrap_or_default())
    }
}
