//! Expressions compiled for the link types of the sources.
//!
//! An expression that compiles for no link type is an error of the user. If it compiles only for
//! some link types, packets of the other link types do not match.

use std::sync::Arc;

use retroscope_filter::{
    Filter, FilterError, FilterFrame, FilterMode, LinkContext, PacketView, Program, Template,
};
use retroscope_packet::{Direction, LinkType};
use retroscope_ring::Packet;

use crate::analysis::native::NativeCode;

/// Snap length for libpcap. It has no effect on matches.
const SNAPLEN: u32 = 262_144;

pub(crate) fn context(link_type: LinkType, mode: FilterMode) -> LinkContext {
    LinkContext::new(link_type, SNAPLEN, mode)
}

pub(crate) fn view<'p>(
    link_type: LinkType,
    packet: &Packet<'p>,
    mode: FilterMode,
) -> PacketView<'p> {
    PacketView {
        link_type,
        mode,
        interface: packet.interface,
        aux: Direction::from_bits(packet.direction).into(),
        data: packet.data,
        wire_len: packet.wire_len,
    }
}

pub(crate) fn mode(offline: bool) -> FilterMode {
    if offline {
        FilterMode::Savefile
    } else {
        FilterMode::Live
    }
}

/// The link types of the sources.
pub(crate) struct LinkTypes<'a> {
    pub(crate) known: &'a [LinkType],
    /// Finds more link types. This may be expensive.
    pub(crate) more: &'a dyn Fn() -> Vec<LinkType>,
}

impl<'a> LinkTypes<'a> {
    /// If no link type is known, Ethernet is assumed.
    pub(crate) fn new(known: &'a [LinkType], more: &'a dyn Fn() -> Vec<LinkType>) -> Self {
        const ETHERNET: [LinkType; 1] = [LinkType::ETHERNET];
        let known = if known.is_empty() { &ETHERNET } else { known };
        Self { known, more }
    }

    /// Succeeds if `compile` succeeds for any known link type, or else for any of [`Self::more`].
    /// Otherwise returns the first error.
    pub(crate) fn first_or_any(
        &self,
        mut compile: impl FnMut(LinkType) -> Result<(), FilterError>,
    ) -> Result<(), FilterError> {
        let mut first = None;
        let mut succeeded = false;
        for link_type in self.known {
            match compile(*link_type) {
                Ok(()) => succeeded = true,
                Err(error) => _ = first.get_or_insert(error),
            }
        }
        match first {
            Some(error)
                if !succeeded
                    && !(self.more)()
                        .into_iter()
                        .any(|link_type| compile(link_type).is_ok()) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

/// Makes a dump template, and compiles it with sample values of its variables. Fails if that
/// succeeds for no link type. Names are looked up here for the last time.
pub(crate) fn template(
    text: &str,
    link_types: &LinkTypes<'_>,
    mode: FilterMode,
) -> Result<Arc<Template>, FilterError> {
    let template = Template::parse(text)?.resolve()?;
    link_types.first_or_any(|link_type| template.check(context(link_type, mode)))?;
    if template.has_names() {
        let more = (link_types.more)().into_iter();
        more.for_each(|link_type| template.prepare(context(link_type, mode)));
    }
    template.seal();
    Ok(Arc::new(template))
}

/// A filter that is compiled for new link types when their packets arrive.
#[derive(Debug, Clone)]
pub(crate) struct PreparedFilter {
    pub(crate) filter: Filter,
    pub(crate) mode: FilterMode,
    tried: Vec<LinkType>,
    /// Link types for which libpcap refused the filter, with reasons, until [`Self::take_notices`].
    pub(crate) refused: Vec<(LinkType, String)>,
}

impl PreparedFilter {
    pub(crate) fn new(filter: Filter, mode: FilterMode) -> Self {
        Self {
            filter,
            mode,
            tried: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Compiles the filter for a link type. Returns whether this was the first attempt.
    pub(crate) fn prepare(&mut self, link_type: LinkType) -> bool {
        if self.knows(link_type) {
            return false;
        }
        self.tried.push(link_type);
        if let Err(error) = self.filter.prepare(context(link_type, self.mode)) {
            self.refused.push((link_type, error.to_string()));
        }
        true
    }

    /// Whether [`Self::prepare`] or [`Self::refuse`] was called for a link type.
    pub(crate) fn knows(&self, link_type: LinkType) -> bool {
        self.tried.contains(&link_type)
    }

    /// Notes that packets of a link type do not match, because libpcap refuses the filter.
    pub(crate) fn refuse(&mut self, link_type: LinkType, error: &FilterError) {
        if !self.knows(link_type) {
            self.tried.push(link_type);
            self.refused.push((link_type, error.to_string()));
        }
    }

    /// Replaces the list of refused link types by those of `link_types`, in this order, for which
    /// the filter does not compile.
    pub(crate) fn tell_refused(&mut self, link_types: &[LinkType]) {
        self.refused.clear();
        for link_type in link_types {
            if let Err(error) = self.filter.prepare(context(*link_type, self.mode)) {
                self.refused.push((*link_type, error.to_string()));
            }
        }
    }

    /// Takes messages about link types of which the filter matches nothing, each message once.
    /// `what`: the role of the filter.
    pub(crate) fn take_notices(&mut self, what: &str) -> Vec<String> {
        let text = self.filter.filled().as_str();
        let refused = self.refused.drain(..);
        let said = refused.map(|(LinkType(number), error)| {
            format!("{what} '{text}' matches nothing of link type {number}: {error}")
        });
        said.collect()
    }

    /// Compiles for the known link types, or if all fail, for [`LinkTypes::more`] until one
    /// succeeds. Fails if none succeeds.
    pub(crate) fn check(&mut self, link_types: &LinkTypes<'_>) -> Result<(), FilterError> {
        link_types.first_or_any(|link_type| {
            self.prepare(link_type);
            self.filter.prepare(context(link_type, self.mode))
        })
    }

    /// Whether the filter reads only headers, for all link types that it was compiled for.
    pub(crate) fn reads_headers_only(&self) -> bool {
        let mut tried = self.tried.iter();
        tried.all(|link_type| self.filter.reads_headers_only(*link_type, self.mode))
    }

    /// Looks names up for the last time, for the known link types and [`LinkTypes::more`].
    pub(crate) fn seal(&self, link_types: &LinkTypes<'_>) {
        if self.filter.has_names() {
            let mut filter = self.filter.clone();
            for link_type in link_types.known.iter().copied().chain((link_types.more)()) {
                // A refusal is remembered, and reported when packets of the link type arrive.
                let _ = filter.prepare(context(link_type, self.mode));
            }
        }
        self.filter.seal();
    }

    /// Submits the filter's programs for compilation to machine code.
    pub(crate) fn compile(&self, native: &NativeCode) {
        let of = |link_type: &LinkType| self.filter.programs(*link_type, self.mode);
        let programs = self.tried.iter().filter_map(of).flatten();
        programs.for_each(|program| native.submit(program));
    }

    /// The program that alone decides about packets of a link type, if there is such a program.
    pub(crate) fn program(&self, link_type: LinkType) -> Option<&Program> {
        self.filter.program(link_type, self.mode)
    }

    /// The matching packets among these frames of an interface: bit `n` is for frame `n`. Earlier
    /// packets have no influence. Returns 0 if the filter is not prepared for the link type.
    pub(crate) fn matches_many(
        &self,
        link_type: LinkType,
        interface: u16,
        frames: &[FilterFrame<'_>],
    ) -> u64 {
        let link = (link_type, self.mode);
        self.filter.matches_many(link, interface, frames)
    }
}
