//! Decides which packets match a query.

use std::collections::HashMap;

use retroscope_capture::TimeDomain;
use retroscope_filter::{Filter, FilterMode, NeededHosts};
use retroscope_packet::{
    FlowKey, LinkType, community_id, community_id_of, flow_of, is_community_id, may_be_fragment,
    parse,
};
use retroscope_ring::{InterfaceEntry, Packet};

use super::{
    Query, QueryError,
    contents::RegionContents,
    index::{AskedFilter, IndexQuestion},
};
use crate::analysis::prepared::{LinkTypes, PreparedFilter, mode, view};

/// Limit on notes about link types: a damaged region may name thousands of link types.
const REFUSALS_TOLD: usize = 8;
/// Maximum number of flows in [`CommunityMatcher::known`].
const FLOWS_KNOWN: usize = 65_536;
/// Most instructions of a program that is compiled to machine code. Compiling a longer program
/// would delay the answer.
const INSTRUCTIONS_MAX: usize = 2048;

#[derive(Debug)]
pub(super) struct PacketMatcher {
    /// The filter of [`Query::expression`], or of a rule. `None`: every packet.
    filter: Option<PreparedFilter>,
    /// The filter of [`Query::within`]. `None`: every packet.
    within: Option<PreparedFilter>,
    tried_bytes: usize,
    tried_headers: bool,
    community: Option<CommunityMatcher>,
    /// Whether all fragments match too.
    with_fragments: bool,
    names: Vec<String>,
    /// By number of an interface: whether its packets may match.
    interfaces: Vec<bool>,
}

#[derive(Debug)]
struct CommunityMatcher {
    id: String,
    /// Known flows, and whether they have the ID.
    known: HashMap<FlowKey, bool>,
}

impl PacketMatcher {
    /// Compiles a query for the interfaces of a region.
    pub(super) fn new(query: &Query, contents: &RegionContents) -> Result<Self, QueryError> {
        let compile = |text: &str| match text.trim() {
            "" => Ok(None),
            expression => {
                let interfaces = contents.interfaces.iter();
                let known: Vec<_> = interfaces
                    .clone()
                    .map(|entry| LinkType(entry.link_type))
                    .collect();
                let is_offline = interfaces
                    .clone()
                    .any(|entry| entry.time_domain == TimeDomain::File as u8);
                let mut filter =
                    PreparedFilter::new(Filter::resolved(expression)?, mode(is_offline));
                filter.check(&LinkTypes::new(&known, &Vec::new))?;
                Ok::<_, QueryError>(Some(filter))
            }
        };
        let (filter, within) = (compile(&query.expression)?, compile(&query.within)?);
        let community = query.community_id.as_deref().map(CommunityMatcher::new);
        let mut matching = Self {
            filter,
            within,
            tried_bytes: query
                .tried_bytes
                .map_or(usize::MAX, |bytes| bytes.get() as usize),
            tried_headers: query.tried_headers,
            community: community.transpose()?,
            with_fragments: false,
            names: query.interfaces.clone(),
            interfaces: Vec::new(),
        };
        matching.learn(&contents.interfaces);
        Ok(matching)
    }

    /// Matches the filter of a rule, and with `fragments` all fragments.
    pub(super) fn set_rule(
        &mut self,
        filter: &PreparedFilter,
        entries: &[InterfaceEntry],
        fragments: bool,
    ) {
        (self.filter, self.with_fragments) = (Some(filter.clone()), fragments);
        for entry in entries {
            self.prepare(LinkType(entry.link_type));
        }
    }

    pub(super) fn learn(&mut self, entries: &[InterfaceEntry]) {
        for entry in entries.iter().skip(self.interfaces.len()) {
            let is_asked = self.names.is_empty() || self.names.contains(&entry.name);
            self.interfaces.push(is_asked);
            self.prepare(LinkType(entry.link_type));
        }
    }

    /// Adds an interface that the ring does not have. Returns whether its packets may match.
    pub(super) fn learn_other(&mut self, entry: &InterfaceEntry) -> bool {
        self.prepare(LinkType(entry.link_type));
        self.names.is_empty() || self.names.contains(&entry.name)
    }

    fn prepare(&mut self, link_type: LinkType) {
        for filter in self.filter.iter_mut().chain(&mut self.within) {
            filter.prepare(link_type);
            let programs = filter.filter.programs(link_type, filter.mode);
            let short = |program: &&retroscope_filter::Program| {
                program.instructions().len() <= INSTRUCTIONS_MAX
            };
            for program in programs.unwrap_or_default().iter().filter(short) {
                let _ = program.make_native();
            }
        }
    }

    /// Whether an expression has names that are looked up, such as host names.
    pub(super) fn has_names(&self) -> bool {
        let mut filters = self.filter.iter().chain(&self.within);
        filters.any(|filter| filter.filter.has_names())
    }

    /// Whether packets of an interface may match.
    pub(super) fn asks(&self, interface: u16) -> bool {
        self.interfaces.get(usize::from(interface)) == Some(&true)
    }

    /// Whether the query names interfaces, and the ring has none of these.
    pub(super) fn lacks_interfaces(&self) -> bool {
        !self.names.is_empty() && !self.interfaces.contains(&true)
    }

    /// Whether a packet matches. The caller has checked the interface.
    pub(super) fn takes(&mut self, entry: &InterfaceEntry, packet: &Packet<'_>) -> bool {
        let link_type = LinkType(entry.link_type);
        let is_within = self
            .within
            .as_ref()
            .is_none_or(|filter| filter.filter.matches(&view(link_type, packet, filter.mode)));
        let filtered = is_within
            && self.filter.as_ref().is_none_or(|filter| {
                let mut view = view(link_type, packet, filter.mode);
                let mut bytes = self.tried_bytes.min(view.data.len());
                if self.tried_headers {
                    bytes = bytes.min(parse(link_type, view.data).headers_end());
                }
                view.data = &view.data[..bytes];
                filter.filter.matches(&view)
            });
        if self.with_fragments && may_be_fragment(link_type, packet.data) {
            return true;
        }
        let community = self.community.as_mut().filter(|_| filtered);
        filtered && community.is_none_or(|community| community.takes(link_type, packet.data))
    }

    /// A question for the index: a property that every matching packet has, except fragments that
    /// match only as fragments. `None`: the index does not help.
    pub(super) fn needed(&self, entries: &[InterfaceEntry]) -> Option<IndexQuestion> {
        if !self.names.is_empty() {
            // The report counts the inspected packets of these interfaces, which the index does not
            // know.
            return None;
        }
        let is_ethernet = |entry: &InterfaceEntry| entry.link_type == LinkType::ETHERNET.0;
        let hosts = || {
            let needed = NeededHosts::of(self.filter.as_ref()?.filter.filled())?;
            let is_certain = !needed.is_of_ethernet || entries.iter().all(is_ethernet);
            is_certain.then_some(AskedFilter::Hosts(needed))
        };
        let part = match &self.community {
            Some(community) => AskedFilter::Id(community.id.clone()),
            None => hosts()?,
        };
        let filter = self.filter.as_ref();
        let mode = filter.map_or(FilterMode::Live, |filter| filter.mode);
        Some(IndexQuestion { part, mode })
    }

    /// Notes about link types for which the filter matches nothing.
    pub(super) fn notes(&self) -> Vec<String> {
        let refused = self.filter.iter().flat_map(|filter| &filter.refused);
        let note = |(link_type, error): &(LinkType, String)| {
            format!("no packet of link type {} matches: {error}", link_type.0)
        };
        refused.take(REFUSALS_TOLD).map(note).collect()
    }
}

impl CommunityMatcher {
    fn new(id: &str) -> Result<Self, QueryError> {
        if !is_community_id(id) {
            return Err(QueryError::Usage(format!(
                "{id:?} is no Community ID of version 1: it is 1: and 28 characters of base64"
            )));
        }
        Ok(Self {
            id: id.to_owned(),
            known: HashMap::new(),
        })
    }

    fn takes(&mut self, link_type: LinkType, data: &[u8]) -> bool {
        let parsed = parse(link_type, data);
        match flow_of(&parsed) {
            Some(flow @ FlowKey::Ports { .. }) => {
                if let Some(known) = self.known.get(&flow) {
                    return *known;
                }
                let is_it = community_id_of(&flow, 0).as_ref() == Some(&self.id);
                if self.known.len() >= FLOWS_KNOWN {
                    self.known.clear();
                }
                self.known.insert(flow, is_it);
                is_it
            }
            Some(_) => community_id(&parsed, 0).as_ref() == Some(&self.id),
            None => false,
        }
    }
}
