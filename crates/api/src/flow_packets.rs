//! A packet by its ID, and the other packets of its flow.

use std::num::NonZeroU32;

use retroscope_packet::{FlowKey, LinkType, Parsed, community_id, flow_of, fragment_of, parse};
use retroscope_recorder::{Cancel, PacketId, QueriedPacket, Query, QueryReport, RecorderHandle};

use crate::{caller::Caller, problem::Problem};

#[derive(Debug, Clone)]
pub(crate) struct KeptPacket {
    pub(crate) id: Option<PacketId>,
    pub(crate) stamp_ns: i64,
    pub(crate) interface: String,
    pub(crate) link_type: LinkType,
    /// Length on the wire, bytes.
    pub(crate) wire_len: u32,
    /// The captured bytes, or the bytes that the token may see.
    pub(crate) data: Vec<u8>,
}

impl From<&QueriedPacket<'_>> for KeptPacket {
    fn from(seen: &QueriedPacket<'_>) -> Self {
        Self {
            id: seen.id,
            stamp_ns: seen.stamp_ns,
            interface: seen.interface.to_owned(),
            link_type: seen.link_type,
            wire_len: seen.wire_len,
            data: seen.data.to_vec(),
        }
    }
}

/// The time range and the limits of a query for the packets of a flow.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlowRange {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    /// Maximum number of packets and of captured bytes; `None`: no limit.
    pub(crate) limits: Option<(u64, u64)>,
    /// Whether `limits` keeps the last packets of the time range instead of the first.
    pub(crate) newest: bool,
}

/// Reads packets that a caller may see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowPackets<'a> {
    pub(crate) handle: &'a RecorderHandle,
    pub(crate) caller: &'a Caller,
    pub(crate) cancel: &'a Cancel,
}

impl FlowPackets<'_> {
    /// Finds a packet in the ring.
    ///
    /// # Errors
    /// For example 404: the packet was overwritten, or the token's filter excludes the packet; and
    /// 422: the recording never had this packet.
    pub(crate) fn packet(self, id: PacketId) -> Result<KeptPacket, Problem> {
        let stamp_ns = self.handle.stamp_of(id)?.ok_or_else(|| {
            Problem::not_found(format!(
                "packet {id} was overwritten: it is no longer in the ring"
            ))
        })?;
        let query = Query {
            from_ns: Some(stamp_ns),
            to_ns: Some(stamp_ns),
            ..self.query()
        };
        let mut found = None;
        self.read(&query, |seen| {
            if seen.id == Some(id) {
                found = Some(KeptPacket::from(seen));
            }
            found.is_none()
        })?;
        found.ok_or_else(|| {
            let why = format!("packet {id} is not among the packets that you may see");
            Problem::not_found(why)
        })
    }

    /// Gives the packets of the flow of `packet` to `look`, in order, until `look` returns false.
    /// For a fragment, `look` also gets fragments of other flows between the two hosts. `None`: the
    /// visible bytes of the packet have no IP header.
    pub(crate) fn flow(
        self,
        packet: &KeptPacket,
        range: &FlowRange,
        mut look: impl FnMut(&QueriedPacket<'_>) -> bool,
    ) -> Result<Option<(QueryReport, Query)>, Problem> {
        let parsed = parse(packet.link_type, &packet.data);
        let flow = flow_of(&parsed);
        let fragments = fragment_of(&parsed).is_some();
        let id = community_id(&parsed, 0).filter(|_| !fragments);
        let hosts = between_hosts(&parsed).filter(|_| id.is_none());
        if id.is_none() && hosts.is_none() {
            return Ok(None);
        }
        let query = Query {
            expression: hosts.unwrap_or_default(),
            community_id: id,
            from_ns: Some(range.from_ns),
            to_ns: Some(range.to_ns),
            limit_packets: range.limits.map(|(packets, _)| packets),
            limit_bytes: range.limits.map(|(_, bytes)| bytes),
            newest: range.newest,
            ..self.query()
        };
        let report = self.read(&query, |seen| {
            !belongs(seen, flow.as_ref(), fragments) || look(seen)
        })?;
        Ok(Some((report, query)))
    }

    /// A query for the packets that the caller may see.
    fn query(self) -> Query {
        let own = self.caller.snaplen.and_then(NonZeroU32::new);
        Query {
            within: self.caller.filter.as_deref().unwrap_or_default().to_owned(),
            tried_bytes: own,
            headers: own,
            ..Query::default()
        }
    }

    fn read(
        self,
        query: &Query,
        look: impl FnMut(&QueriedPacket<'_>) -> bool,
    ) -> Result<QueryReport, Problem> {
        let answer = self.handle.query(query)?.until(self.cancel);
        Ok(answer.each(look)?)
    }
}

/// Whether a packet belongs to the flow. If `fragments` is true, every fragment belongs.
fn belongs(seen: &QueriedPacket<'_>, flow: Option<&FlowKey>, fragments: bool) -> bool {
    let parsed = parse(seen.link_type, seen.data);
    let is_same = flow.is_some() && flow_of(&parsed).as_ref() == flow;
    is_same || fragments && fragment_of(&parsed).is_some()
}

/// The filter for packets between the hosts of a packet, with as many VLAN tags as the packet has,
/// but at most two.
fn between_hosts(parsed: &Parsed) -> Option<String> {
    let ip = parsed.network?;
    let hosts = format!("(host {} and host {})", ip.src, ip.dst);
    Some(match parsed.vlan.tags().len() {
        0 => hosts,
        1 => format!("vlan and {hosts}"),
        _ => format!("vlan and vlan and {hosts}"),
    })
}
