//! Filters: expressions compiled for the link types of the sources.

use std::sync::Arc;

use retroscope_packet::{FragmentKey, LinkType, fragment_of};

use crate::{
    Aux, FilledExpression, FilterError, FilterFrame, FilterMode, FlowState, LinkContext, Program,
    Template,
    evaluation::{Evaluation, KleeneSets},
    header_reads::reads_headers_only,
    plan::EvaluationPlan,
};

/// An expression that can be evaluated.
///
/// [`Filter::prepare`] compiles the expression for one link type at a time, because a link type may
/// appear late or may have no filtering in libpcap. Packets of other link types do not match.
///
/// ```
/// use retroscope_filter::{Aux, Filter, LinkContext, FilterMode, PacketView};
/// use retroscope_packet::LinkType;
///
/// let mut filter = Filter::plain("ip6")?;
/// filter.prepare(LinkContext::new(LinkType::RAW, 65_535, FilterMode::Savefile))?;
/// let mut packet = [0; 40];
/// packet[0] = 0x60;
/// let view = PacketView {
///     link_type: LinkType::RAW,
///     mode: FilterMode::Savefile,
///     interface: 0,
///     aux: Aux::default(),
///     data: &packet,
///     wire_len: 40,
/// };
/// assert!(filter.matches(&view));
/// # Ok::<(), retroscope_filter::FilterError>(())
/// ```
#[derive(Debug)]
pub struct Filter {
    filled: FilledExpression,
    /// For each link type and mode, the programs of the pieces.
    prepared: Vec<((LinkType, FilterMode), Vec<Program>)>,
}

impl Clone for Filter {
    /// The clone gets its own search caches for patterns, so that threads with clones do not wait
    /// for each other.
    fn clone(&self) -> Self {
        let mut filled = self.filled.clone();
        if filled.plan.has_patterns() {
            filled.plan = Arc::new(EvaluationPlan::clone(&filled.plan));
        }
        Self {
            filled,
            prepared: self.prepared.clone(),
        }
    }
}

/// A packet as the input of a filter.
#[derive(Debug, Clone, Copy)]
pub struct PacketView<'p> {
    /// Link-layer header type.
    pub link_type: LinkType,
    /// Whether the packet comes from a file or an interface.
    pub mode: FilterMode,
    /// Ring-wide number of the packet's interface, for `$iface`.
    pub interface: u16,
    /// Facts that live filters may query.
    pub aux: Aux,
    /// Captured bytes.
    pub data: &'p [u8],
    /// Bytes on the wire.
    pub wire_len: u32,
}

impl<'p> PacketView<'p> {
    fn frame(&self) -> FilterFrame<'p> {
        FilterFrame::new(self.data, self.wire_len, self.aux)
    }
}

/// Answer of a filter about one packet, and about packets that were set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct FilterAnswer {
    /// Decision about this packet.
    pub decision: Decision,
    /// Key of a datagram, if this packet is the first fragment and decides about the later
    /// fragments. The caller must evaluate again the packets that it set aside under this key.
    pub resolves: Option<FragmentKey>,
}

/// Decision of a filter about one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The packet matches.
    Take,
    /// The packet does not match.
    Skip,
    /// A later fragment whose first fragment has not been seen, or is forgotten. The caller sets
    /// the packet aside under this key until an answer resolves the key. Without such an answer the
    /// packet does not match.
    Maybe(FragmentKey),
}

impl Filter {
    /// A filter from a text without variables.
    ///
    /// # Errors
    /// Errors of [`Template::parse`], and
    /// [`FilterProblem::NeedsTrigger`](crate::FilterProblem::NeedsTrigger) for a text with
    /// variables.
    pub fn plain(text: &str) -> Result<Self, FilterError> {
        Ok(Self::new(Template::parse(text)?.into_plain()?))
    }

    /// Like [`Filter::plain`], but looks up names once: see [`Template::resolve`].
    ///
    /// # Errors
    /// Errors of [`Filter::plain`] and of [`Template::resolve`].
    pub fn resolved(text: &str) -> Result<Self, FilterError> {
        let template = Template::parse(text)?.resolve()?;
        Ok(Self::new(template.into_plain()?))
    }

    /// Whether [`Filter::prepare`] is quick, apart from name look-ups. If not, libpcap may take
    /// more than a millisecond.
    #[must_use]
    pub fn prepares_quickly(&self, link: LinkContext) -> bool {
        self.is_prepared(link.link_type, link.mode) || self.filled.compiles_quickly(link)
    }

    /// Whether libpcap must look up names to compile the expression. `false` for an expression that
    /// does not come from [`Template::resolve`].
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.filled.pieces.iter().any(|piece| piece.name.is_some())
    }

    /// Seals the pieces of the expression: see [`Template::seal`].
    pub fn seal(&self) {
        self.filled.pieces.iter().for_each(|piece| piece.seal());
    }

    /// A filter from an expression, not yet prepared for any link type.
    #[must_use]
    pub fn new(filled: FilledExpression) -> Self {
        Self {
            filled,
            prepared: Vec::new(),
        }
    }

    /// The expression.
    #[must_use]
    pub fn filled(&self) -> &FilledExpression {
        &self.filled
    }

    /// Compiles the expression for a link type and mode. Does nothing if the filter is prepared for
    /// both, even with another snap length, which does not change the set of matching packets.
    ///
    /// # Errors
    /// [`FilterError`] of the first piece that cannot be compiled for this link type. Packets of
    /// the link type then do not match.
    pub fn prepare(&mut self, link: LinkContext) -> Result<(), FilterError> {
        if self.is_prepared(link.link_type, link.mode) {
            return Ok(());
        }
        let programs = self.filled.compile(link)?;
        self.prepared.push(((link.link_type, link.mode), programs));
        Ok(())
    }

    /// Whether the filter is prepared for this link type and mode.
    #[must_use]
    pub fn is_prepared(&self, link_type: LinkType, mode: FilterMode) -> bool {
        self.programs(link_type, mode).is_some()
    }

    /// The program that alone decides about packets of this link type and mode. `None` if the
    /// filter is not prepared for this pair, or has own terms such as `$flow`.
    #[must_use]
    pub fn program(&self, link_type: LinkType, mode: FilterMode) -> Option<&Program> {
        match self.programs(link_type, mode) {
            Some([program]) if self.filled.is_plain() => Some(program),
            _ => None,
        }
    }

    /// The initial state: the fragments that are known from the trigger packet.
    #[must_use]
    pub fn state(&self) -> FlowState {
        FlowState::new(&self.filled.terms)
    }

    /// Whether the answer for a packet may depend on earlier packets.
    #[must_use]
    pub fn follows_fragments(&self) -> bool {
        self.filled.terms.followed_flow().is_some()
    }

    /// Whether a packet matches. Here the filter knows no fragmented datagram except the trigger
    /// packet's: see [`Filter::evaluate`].
    #[must_use]
    pub fn matches(&self, packet: &PacketView<'_>) -> bool {
        match self.program(packet.link_type, packet.mode) {
            Some(program) => program.keeps(&packet.frame()),
            None => self.evaluate(&mut self.state(), packet).decision == Decision::Take,
        }
    }

    /// [`Filter::matches`] for at most [`Program::MANY`] packets of one link type, mode and
    /// interface. Bit `n` of the result belongs to packet `n`.
    ///
    /// # Panics
    /// If the filter is prepared and there are more than [`Program::MANY`] packets.
    #[must_use]
    pub fn matches_many(
        &self,
        (link_type, mode): (LinkType, FilterMode),
        interface: u16,
        frames: &[FilterFrame<'_>],
    ) -> u64 {
        let Some(programs) = self.programs(link_type, mode) else {
            return 0;
        };
        if self.filled.is_plain() {
            return programs
                .first()
                .map_or(0, |program| program.run_many(frames));
        }
        let FilledExpression { plan, terms, .. } = &self.filled;
        let evaluation: Evaluation<'_, '_, { Program::MANY }> =
            Evaluation::new((link_type, interface), terms, programs, frames);
        evaluation
            .find(plan, evaluation.all(), &self.state())
            .matching
    }

    /// Decides about a packet. Packets must come in order: `state` holds what earlier packets
    /// showed.
    pub fn evaluate(&self, state: &mut FlowState, packet: &PacketView<'_>) -> FilterAnswer {
        let Some(programs) = self.programs(packet.link_type, packet.mode) else {
            return FilterAnswer {
                decision: Decision::Skip,
                resolves: None,
            };
        };
        let FilledExpression { plan, terms, .. } = &self.filled;
        let at = (packet.link_type, packet.interface);
        let frames = [packet.frame()];
        let evaluation: Evaluation<'_, '_, 1> = Evaluation::new(at, terms, programs, &frames);
        let resolves = match terms.followed_flow() {
            Some(term) => state.observe(term, evaluation.parsed(0)),
            None => None,
        };
        let decision = match evaluation.find(plan, evaluation.all(), state) {
            KleeneSets { matching: 1, .. } => Decision::Take,
            KleeneSets { possible: 0, .. } => Decision::Skip,
            _ => match fragment_of(evaluation.parsed(0)) {
                Some(datagram) => Decision::Maybe(datagram),
                None => Decision::Skip,
            },
        };
        FilterAnswer { decision, resolves }
    }

    /// Whether the filter reads no byte after the headers of packets of a link type and mode. The
    /// headers end at [`Parsed::headers_end`](retroscope_packet::Parsed::headers_end).
    ///
    /// `false` if that is not certain, and for every expression with own terms, such as `$flow`.
    /// `true` for a plain expression that is not prepared for the link type.
    #[must_use]
    pub fn reads_headers_only(&self, link_type: LinkType, mode: FilterMode) -> bool {
        let programs = self.programs(link_type, mode).unwrap_or_default();
        let mut programs = programs.iter();
        self.filled.is_plain() && programs.all(|it| reads_headers_only(it, link_type))
    }

    /// Programs of the pieces for packets of a link type and mode. `None` if the filter is not
    /// prepared for this pair.
    #[must_use]
    pub fn programs(&self, link_type: LinkType, mode: FilterMode) -> Option<&[Program]> {
        let mut prepared = self.prepared.iter();
        let found = prepared.find(|(of, _)| *of == (link_type, mode));
        found.map(|(_, programs)| programs.as_slice())
    }
}
