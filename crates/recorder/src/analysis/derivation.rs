//! What a hit would dump: the template filled in with what its packet says, or what the dump script makes of it.

use std::sync::Arc;

use retroscope_filter::Template;
use retroscope_packet::LinkType;
use retroscope_ring::Packet;

use crate::{
    analysis::{
        dump_script::DumpFunction,
        fragments::FirstFragments,
        predicate::Expression,
        prepared::{context, mode},
    },
    control::{hits::Refusal, ring_time::Stamps},
    intake::interfaces::Interface,
};

/// See the module. Its answers depend on the packets that it is shown, and their order.
#[derive(Debug)]
pub(crate) struct Derivation {
    live: bool,
    template: Arc<Template>,
    /// Used in place of the template.
    script: Option<DumpFunction>,
    stamps: Stamps,
    pub(crate) fragments: FirstFragments,
}

impl Derivation {
    pub(crate) fn new(
        template: Arc<Template>,
        script: Option<DumpFunction>,
        stamps: Stamps,
        live: bool,
    ) -> Self {
        Self {
            live,
            fragments: FirstFragments::new(&template),
            template,
            script,
            stamps,
        }
    }

    /// What a packet, the record of a producer, would dump; `None`: the script wants nothing of it.
    pub(crate) fn expression(
        &mut self,
        interface: &Interface,
        (producer, record): (usize, u64),
        packet: &Packet<'_>,
    ) -> Option<Result<Expression, Refusal>> {
        let Some(script) = &mut self.script else {
            let filled = Expression::new(&self.template, interface, packet, &self.fragments);
            return Some(filled.map_err(Refusal::Variable));
        };
        let live = self.live;
        // What libpcap is slow at is compiled beside the dumps; why it refuses it, their reports say.
        let check = |template: &Template, link_type: LinkType| {
            let link = context(link_type, mode(!live));
            if live && !template.checks_at_once(link) {
                return Ok(());
            }
            template.check(link)
        };
        let offset_ns = self.stamps.offset_ns(producer, interface.source, record);
        let stamp_ns = packet.time_ns.wrapping_add(offset_ns);
        script.expression(interface, packet, stamp_ns, &self.fragments, check)
    }

    /// Whether a script is used.
    pub(crate) fn is_scripted(&self) -> bool {
        self.script.is_some()
    }

    /// What the script has to say.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        let notices = self.script.iter_mut().flat_map(DumpFunction::take_notices);
        notices.collect()
    }
}
