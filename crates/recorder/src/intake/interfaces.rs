//! The table of the interfaces of all sources.

use std::sync::{Arc, Mutex};

use retroscope_capture::{InterfaceInfo, TimeDomain};
use retroscope_filter::FilterMode;
use retroscope_packet::LinkType;
use retroscope_ring::{InterfaceEntry, Ring, RingError};

use crate::{
    analysis::{
        derivation::Templates,
        prepared::{PreparedFilter, context},
        triggers::SharedRules,
    },
    control::{lock, ring_time::clock_of},
};

/// One interface of one source, under its ring-wide identifier.
#[derive(Debug, Clone)]
pub(crate) struct RecordedInterface {
    pub(crate) source: usize,
    pub(crate) name: String,
    pub(crate) link_type: LinkType,
    /// Unit of its time stamps, ns.
    pub(crate) time_resolution_ns: u64,
    /// The clock that stamps the packets.
    pub(crate) time_domain: TimeDomain,
}

/// The trigger rules, the dump templates, and the mode in which both are compiled.
type RulesAndTemplates = (SharedRules, Templates, FilterMode);

/// An append-only table; the index is the ring's interface identifier.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    /// The trigger rules and dump templates, which are compiled for new link types.
    expressions: Option<RulesAndTemplates>,
    /// The capture filter, to report link types of which it matches nothing.
    filter: Mutex<Option<PreparedFilter>>,
    table: Mutex<Vec<Arc<RecordedInterface>>>,
}

impl Interfaces {
    /// The table compiles the expressions for a link type before any packet of this type is stored.
    pub(crate) fn new(expressions: RulesAndTemplates, filter: Option<PreparedFilter>) -> Self {
        Self {
            expressions: Some(expressions),
            filter: Mutex::new(filter),
            table: Mutex::default(),
        }
    }

    /// Appends an interface to the ring's table and to this table, under one lock, so that both
    /// tables use the same number.
    pub(crate) fn register(
        &self,
        ring: &Ring,
        source: usize,
        info: &InterfaceInfo,
    ) -> Result<u16, RingError> {
        if let Some((rules, templates, mode)) = &self.expressions {
            rules.add_link_type(info.link_type);
            for template in templates.iter() {
                template.prepare(context(info.link_type, *mode));
            }
        }
        if let Some(filter) = &mut *lock(&self.filter) {
            filter.prepare(info.link_type);
        }
        let mut table = lock(&self.table);
        let id = ring.add_interface(InterfaceEntry {
            name: info.name.clone(),
            link_type: info.link_type.0,
            snaplen: info.snaplen,
            time_domain: info.time_domain as u8,
            clock: clock_of(source),
        })?;
        table.push(Arc::new(RecordedInterface {
            source,
            name: info.name.clone(),
            link_type: info.link_type,
            time_resolution_ns: info.time_resolution_ns,
            time_domain: info.time_domain,
        }));
        assert_eq!(
            usize::from(id) + 1,
            table.len(),
            "the ring and the recorder number interfaces alike"
        );
        Ok(id)
    }

    /// Takes messages about link types of which the capture filter matches nothing.
    pub(crate) fn take_notices(&self) -> Vec<String> {
        let mut filter = lock(&self.filter);
        let notices = filter.iter_mut().map(|it| it.take_notices("filter"));
        notices.flatten().collect()
    }

    /// The index of the source of an interface.
    pub(crate) fn source(&self, id: u16) -> Option<usize> {
        let table = lock(&self.table);
        Some(table.get(usize::from(id))?.source)
    }

    fn learn(&self, known: &mut Vec<Arc<RecordedInterface>>) {
        let table = lock(&self.table);
        known.extend_from_slice(table.get(known.len()..).unwrap_or_default());
    }
}

/// A thread's own copy of the table.
#[derive(Debug)]
pub(crate) struct InterfaceCache {
    shared: Arc<Interfaces>,
    known: Vec<Arc<RecordedInterface>>,
    /// Number of interfaces whose link types were collected, and these link types, each once.
    link_types: (usize, Vec<LinkType>),
}

impl InterfaceCache {
    pub(crate) fn new(shared: Arc<Interfaces>) -> Self {
        let mut known = Vec::new();
        shared.learn(&mut known);
        Self {
            shared,
            known,
            link_types: (0, Vec::new()),
        }
    }

    /// The link types of all registered interfaces.
    pub(crate) fn link_types(&mut self) -> &[LinkType] {
        self.shared.learn(&mut self.known);
        let (seen, link_types) = &mut self.link_types;
        for interface in &self.known[*seen..] {
            if !link_types.contains(&interface.link_type) {
                link_types.push(interface.link_type);
            }
        }
        *seen = self.known.len();
        link_types
    }

    /// The link types of the interfaces with received packets. `received`: packets by interface.
    pub(crate) fn link_types_of(&mut self, received: &[u64]) -> Vec<LinkType> {
        let mut link_types = Vec::new();
        for (id, _) in (0..).zip(received).filter(|(_, packets)| **packets > 0) {
            let link_type = self.interface(id).map(|interface| interface.link_type);
            link_types.extend(link_type.filter(|it| !link_types.contains(it)));
        }
        link_types
    }

    pub(crate) fn interface(&mut self, id: u16) -> Option<&Arc<RecordedInterface>> {
        if usize::from(id) >= self.known.len() {
            self.shared.learn(&mut self.known);
        }
        self.known.get(usize::from(id))
    }
}

#[cfg(test)]
mod tests {
    use retroscope_filter::Filter;
    use retroscope_ring::RingConfig;

    use super::*;

    #[test]
    fn link_types_that_the_capture_filter_takes_nothing_of_are_told_once() {
        let ring = Ring::new(&RingConfig::new(16 << 20, 1, 1), None).unwrap();
        let filter = Filter::plain("ether src 00:00:00:00:00:01 or ip").unwrap();
        let interfaces = Interfaces {
            filter: Mutex::new(Some(PreparedFilter::new(filter, FilterMode::Live))),
            ..Interfaces::default()
        };
        let told = [LinkType::ETHERNET, LinkType::RAW, LinkType::RAW].map(|link_type| {
            let info = InterfaceInfo {
                name: "eth0".to_owned(),
                link_type,
                snaplen: 0,
                time_domain: TimeDomain::KernelSoftware,
                time_resolution_ns: 1,
            };
            interfaces.register(&ring, 0, &info).unwrap();
            interfaces.take_notices()
        });
        assert_eq!(told.each_ref().map(Vec::len), [0, 1, 0], "{told:?}");
        assert!(told[1][0].contains("link type 101"), "{told:?}");
    }
}
