//! Derives the dump expression of a hit: fills in a template from the packet, or calls the dump
//! script.

use std::{collections::HashMap, sync::Arc};

use retroscope_filter::Template;
use retroscope_ring::Packet;

use crate::{
    analysis::{
        dump_script::{DumpFunction, TextTemplates},
        fragments::{FirstFragments, asks_for_flows},
        predicate::DumpExpression,
        triggers::RuleChange,
    },
    control::{hits::HitRefusal, ring_time::StampRestorer},
    intake::interfaces::RecordedInterface,
};

/// The dump templates of rules and trigger scripts.
#[derive(Debug, Clone)]
pub(crate) struct Templates {
    /// The template of rules without a separate template.
    pub(crate) default: Arc<Template>,
    /// The separate templates, by rule number.
    pub(crate) own: HashMap<usize, Arc<Template>>,
}

impl Templates {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Template>> {
        self.own.values().chain([&self.default])
    }

    /// The number of templates that use flows. If it is not 0, first fragments must be remembered.
    pub(crate) fn asking_for_flows(&self) -> usize {
        let asking = self.iter().filter(|template| asks_for_flows(template));
        asking.count()
    }
}

#[derive(Debug)]
pub(crate) struct Derivation {
    templates: Templates,
    /// Number of templates that use flows; plus 1 if there are modules, whose texts may use flows.
    asking: usize,
    texts: TextTemplates,
    /// The dump script, which replaces the default template.
    script: Option<DumpFunction>,
    stamps: StampRestorer,
    pub(crate) fragments: FirstFragments,
}

impl Derivation {
    pub(crate) fn new(
        templates: Templates,
        script: Option<DumpFunction>,
        stamps: StampRestorer,
        (live, has_modules): (bool, bool),
    ) -> Self {
        let asking = templates.asking_for_flows() + usize::from(has_modules);
        Self {
            texts: TextTemplates::new(live),
            fragments: FirstFragments::new(asking > 0),
            templates,
            asking,
            script,
            stamps,
        }
    }

    /// Applies a change of the rules. The caller must call [`Self::changed`] afterwards. Returns
    /// the template that the change replaces or removes.
    pub(crate) fn change(&mut self, change: &RuleChange) -> Option<Arc<Template>> {
        let (number, template) = match change {
            RuleChange::Add(rule, template) => (rule.number, template.as_ref()),
            RuleChange::Remove(number) => (*number, None),
            RuleChange::Enable(..) => return None,
            RuleChange::Default(template) => {
                let before = std::mem::replace(&mut self.templates.default, Arc::clone(template));
                let asking = |it: &Template| usize::from(asks_for_flows(it));
                self.asking = self.asking + asking(template) - asking(&before);
                return Some(before);
            }
        };
        let own = &mut self.templates.own;
        if template.is_none() && own.is_empty() {
            return None;
        }
        let before = match template {
            Some(template) => own.insert(number, Arc::clone(template)),
            None => own.remove(&number),
        };
        let asking =
            |it: Option<&Arc<Template>>| usize::from(it.is_some_and(|it| asks_for_flows(it)));
        self.asking = self.asking + asking(template) - asking(before.as_ref());
        before
    }

    /// Call this after all changes that arrived together, not after each: if one rule that uses
    /// flows replaces another, the remembered first fragments must stay.
    pub(crate) fn changed(&mut self) {
        self.fragments.want(self.asking > 0);
    }

    /// The dump expression of a rule's hit on a producer's record; `None`: the dump script wants no
    /// dump.
    pub(crate) fn expression(
        &mut self,
        rule: usize,
        interface: &RecordedInterface,
        (producer, record): (usize, u64),
        packet: &Packet<'_>,
    ) -> Option<Result<DumpExpression, HitRefusal>> {
        let Templates { default, own } = &self.templates;
        let (template, script) = match own.get(&rule) {
            Some(template) => (template, None),
            None => (default, self.script.as_mut()),
        };
        let Some(script) = script else {
            let filled = DumpExpression::new(template, interface, packet, &self.fragments);
            return Some(filled.map_err(HitRefusal::Variable));
        };
        let offset_ns = self.stamps.offset_ns(producer, interface.source, record);
        let stamp_ns = packet.time_ns.wrapping_add(offset_ns);
        script.expression(
            interface,
            packet,
            stamp_ns,
            &self.fragments,
            &mut self.texts,
        )
    }

    /// The dump expression of a packet, made from the text of a module.
    pub(crate) fn of_text(
        &mut self,
        text: String,
        interface: &RecordedInterface,
        packet: &Packet<'_>,
    ) -> Result<DumpExpression, HitRefusal> {
        match self.texts.get(text, interface.link_type) {
            Ok(template) => {
                let mut expression =
                    DumpExpression::new(template, interface, packet, &self.fragments)
                        .map_err(HitRefusal::Variable)?;
                expression.made_for = Some(interface.link_type);
                Ok(expression)
            }
            Err(error) => Err(HitRefusal::Script(error.clone())),
        }
    }

    pub(crate) fn is_scripted(&self) -> bool {
        self.script.is_some()
    }

    /// Takes the messages of the dump script.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let notices = self.script.iter_mut().flat_map(DumpFunction::take_notices);
        notices.collect()
    }
}
