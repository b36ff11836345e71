//! Rule sets as the recorder changes them: rules in and out, link types as they turn up, machine code for what look-ups do not
//! decide. The data path reads them through a [`RuleReader`].

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use retroscope_filter::{
    Filter, FilterError, FilterMode, InsertedRule, RuleId, RuleReader, RuleSet,
};
use retroscope_packet::LinkType;

use crate::analysis::native::NativeCode;

/// See the module.
#[derive(Debug)]
pub(crate) struct Rules {
    set: RuleSet,
    ids: BTreeSet<u64>,
    link_types: BTreeSet<LinkType>,
    native: Arc<NativeCode>,
}

impl Rules {
    pub(crate) fn new(mode: FilterMode, native: Arc<NativeCode>) -> Self {
        Self {
            set: RuleSet::new(mode),
            ids: BTreeSet::new(),
            link_types: BTreeSet::new(),
            native,
        }
    }

    /// A reader of the rules, for a thread of the data path.
    pub(crate) fn reader(&self) -> RuleReader {
        self.set.reader()
    }

    /// Adds a rule under a number of its own, for the link types that are known. The error is libpcap's, if it refuses the
    /// rule for all of them.
    pub(crate) fn insert(&mut self, id: u64, filter: &Filter) -> Result<InsertedRule, FilterError> {
        let placed = self.set.insert(RuleId(id), filter)?;
        self.ids.insert(id);
        self.compile(id);
        Ok(placed)
    }

    /// Link types for which adding a rule, or asking it, would wait for libpcap longer than a moment.
    pub(crate) fn slow_link_types(
        &self,
        filter: &Filter,
        link_types: &[LinkType],
    ) -> Vec<LinkType> {
        self.set.slow_link_types(filter, link_types)
    }

    /// Sees to it that rules which see the same packets run together. To be called when a number of rules is in.
    pub(crate) fn join(&mut self) {
        for joint in self.set.take_fused() {
            self.native.submit_fused(&joint);
        }
    }

    /// Takes a rule out, if it is there.
    pub(crate) fn remove(&mut self, id: u64) {
        self.remove_all(&HashSet::from([id]));
    }

    /// Takes out those of these rules that are there.
    pub(crate) fn remove_all(&mut self, ids: &HashSet<u64>) {
        let before = self.ids.len();
        for id in ids {
            if self.ids.remove(id) {
                self.set.remove(RuleId(*id));
            }
        }
        if self.ids.len() < before {
            // The rules that are left may have been put together anew.
            self.join();
        }
    }

    /// How many rules there are.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether [`Self::add_link_type`] was called for it.
    pub(crate) fn knows(&self, link_type: LinkType) -> bool {
        self.link_types.contains(&link_type)
    }

    /// The link types that it was called for.
    pub(crate) fn link_types(&self) -> impl Iterator<Item = LinkType> {
        self.link_types.iter().copied()
    }

    /// Makes the rules ready for packets of a link type, if they are not. Gives the rules that match none of them, and why.
    pub(crate) fn add_link_type(&mut self, link_type: LinkType) -> Vec<(u64, FilterError)> {
        if !self.link_types.insert(link_type) {
            return Vec::new();
        }
        let refused = self.set.add_link_type(link_type);
        self.ids.iter().for_each(|id| self.compile(*id));
        self.join();
        refused
            .into_iter()
            .map(|(RuleId(id), error)| (id, error))
            .collect()
    }

    fn compile(&self, id: u64) {
        for program in self.set.programs(RuleId(id)) {
            self.native.submit(program);
        }
    }
}
