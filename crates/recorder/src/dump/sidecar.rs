//! The JSON file next to a dump: its report, its origin and its files.

use std::io;

use retroscope_packet::{LinkType, community_id, parse, summary};
use serde::{Serialize, Serializer};

use super::{dump_alerts::AlertEntry, report::DumpReport, store::StoredFile};
use crate::control::{hits::Suppressions, packet_id::Recording, time::rfc3339};

/// The contents of a sidecar, without the dump's directory and the list of files.
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
    /// The program that wrote the dump.
    pub(crate) program: &'static str,
    /// The time when the recorder wrote the dump's first sidecar, or first tried to. Absent in
    /// reproducible runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
}

#[derive(Serialize)]
struct SidecarDocument<'a> {
    #[serde(flatten)]
    sidecar: &'a Sidecar,
    /// The dump's directory, below the directory of the dumps.
    #[serde(skip_serializing_if = "Option::is_none")]
    into: Option<&'a str>,
    files: &'a [StoredFile],
}

impl Sidecar {
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

/// The common origin of all dumps of a recorder.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Origin {
    /// The name of this system. Absent in reproducible runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// The UUID of the recording, within which packet IDs are valid. Absent in reproducible runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recording: Option<Recording>,
    /// The filter for all packets that are recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) capture_filter: Option<String>,
}

/// Facts for a sidecar that are not in the report, and no longer change.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SidecarFacts {
    /// The filled-in dump filter; empty: every packet. Earlier versions of the recorder named this
    /// field `expression`.
    #[serde(rename = "filter")]
    pub(crate) expression: String,
    /// The packet that triggered the dump. `None`: triggered by a command or an alert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trigger_packet: Option<TriggerPacket>,
    /// Alerts that belong to the dump, earliest stamps first. Absent if no alert belongs to the
    /// dump.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) alerts: Vec<AlertEntry>,
    /// Further hits of the same rule, expression and window length in the window of the open dump.
    pub(crate) suppressed: u64,
    /// Stamps of the first suppressed hits, ns; written as RFC 3339.
    #[serde(serialize_with = "times")]
    pub(crate) suppressed_hits: Vec<i64>,
    /// Other hits of the same rule that started no dump, since the rule's previous dump.
    pub(crate) suppressed_before: Suppressions,
}

/// The packet that triggered a dump.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TriggerPacket {
    /// The interface that received the packet.
    interface: String,
    /// A summary of the packet in one line. Absent if the dump does not have the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    /// The Community ID of the packet's flow, if the flow has an ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    community_id: Option<String>,
}

impl TriggerPacket {
    pub(super) fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            summary: None,
            community_id: None,
        }
    }

    pub(super) fn see(&mut self, link_type: LinkType, data: &[u8], wire_len: u32) {
        self.summary = Some(summary(link_type, data, wire_len).to_string());
        self.community_id = community_id(&parse(link_type, data), 0);
    }
}

/// An interface in a sidecar.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SidecarInterface {
    pub(crate) name: String,
    /// LINKTYPE_ value of the interface.
    pub(crate) link_type: u16,
    /// Packets of this interface in the dump. The files of a failed dump may have fewer.
    pub(crate) packets: u64,
    /// Resolution of the interface's time stamps, ns.
    pub(crate) time_resolution_ns: u64,
    /// The clock of the time stamps: `kernel-software`, `fetch`, `nic`, `file`, `generator`,
    /// `foreign`.
    pub(crate) time_source: &'static str,
}

fn times<S: Serializer>(times_ns: &[i64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(times_ns.iter().map(|time_ns| rfc3339(*time_ns)))
}

impl Origin {
    /// The end of a file's first comment: capture filter and host.
    pub(super) fn description(&self) -> String {
        let filter = self.capture_filter.as_ref();
        let filter = filter.map(|filter| format!(", of packets that {filter:?} takes"));
        let host = self.host.as_ref().map(|host| format!(", on {host}"));
        format!("{}{}", filter.unwrap_or_default(), host.unwrap_or_default())
    }
}
