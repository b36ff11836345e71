//! A rule set whose rules and link types can change while the recorder runs. The data path reads
//! the set through a [`RuleReader`].

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use retroscope_filter::{
    Filter, FilterError, FilterMode, InsertedRule, RuleId, RuleReader, RuleSet,
};
use retroscope_packet::LinkType;

use crate::analysis::native::NativeCode;

/// A rule set, which submits the programs of its rules to the compiler.
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

    /// Adds a rule under a new number. Fails as [`RuleSet::insert`] does.
    pub(crate) fn insert(&mut self, id: u64, filter: &Filter) -> Result<InsertedRule, FilterError> {
        let placed = self.set.insert(RuleId(id), filter)?;
        self.ids.insert(id);
        self.compile(id);
        Ok(placed)
    }

    /// Link types for which adding or evaluating the rule would wait noticeably for libpcap.
    pub(crate) fn slow_link_types(
        &self,
        filter: &Filter,
        link_types: &[LinkType],
    ) -> Vec<LinkType> {
        self.set.slow_link_types(filter, link_types)
    }

    /// Submits functions, each joined from the programs of rules that see the same packets, for
    /// compilation. Call this after adding rules.
    pub(crate) fn join(&mut self) {
        for joint in self.set.take_fused() {
            self.native.submit_fused(&joint);
        }
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.remove_all(&HashSet::from([id]));
    }

    /// Numbers without a rule have no effect.
    pub(crate) fn remove_all(&mut self, ids: &HashSet<u64>) {
        let before = self.ids.len();
        for id in ids {
            if self.ids.remove(id) {
                self.set.remove(RuleId(*id));
            }
        }
        if self.ids.len() < before {
            // The set may have regrouped the remaining rules into new functions.
            self.join();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether [`Self::add_link_type`] was called for this link type.
    pub(crate) fn knows(&self, link_type: LinkType) -> bool {
        self.link_types.contains(&link_type)
    }

    pub(crate) fn link_types(&self) -> impl Iterator<Item = LinkType> {
        self.link_types.iter().copied()
    }

    /// Makes the rules ready for packets of a link type. Returns the rules that libpcap refuses for
    /// this link type, and the reasons; nothing if the link type was added before.
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
