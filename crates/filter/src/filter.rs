//! What the recorder evaluates: an expression, compiled for each link type of the sources.

use std::sync::Arc;

use retroscope_packet::{FragmentKey, LinkType, fragment_of};

use crate::{
    Aux, FilledExpression, FilterError, FilterFrame, FilterMode, FlowState, LinkContext, Program,
    Template,
    evaluation::{Evaluation, KleeneSets},
    header_reads::reads_headers_only,
    plan::EvaluationPlan,
};

/// An expression ready to be evaluated.
///
/// It is compiled for one link type at a time, by [`Filter::prepare`], since a link type may come up late or have no
/// filtering in libpcap; packets of a link type that is not prepared do not match. Evaluation allocates nothing, except
/// for `$communityId` of packets without ports.
///
/// ```
/// use retroscope_filter::{Aux, Filter, LinkContext, FilterMode, PacketView};
/// use retroscope_packet::LinkType;
///
/// let mut filter = Filter::plain("ip6")?;
/// filter.prepare(LinkContext { link_type: LinkType::RAW, snaplen: 65_535, mode: FilterMode::Savefile, optimize: true })?;
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
    /// The programs for each link type and mode: one for each piece of the expression.
    prepared: Vec<((LinkType, FilterMode), Vec<Program>)>,
}

impl Clone for Filter {
    /// The clone remembers the searches of its patterns for itself: clones on several threads do not wait for each other.
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

/// A packet as a filter sees it.
#[derive(Debug, Clone, Copy)]
pub struct PacketView<'p> {
    /// Link-layer header type.
    pub link_type: LinkType,
    /// Whether it came from a file or an interface.
    pub mode: FilterMode,
    /// The ring-wide number of its interface, for `$iface`.
    pub interface: u16,
    /// Facts beside the bytes, for live filters.
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

/// What to do with a packet, and with packets kept aside before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct FilterAnswer {
    /// What to do with this packet.
    pub decision: Decision,
    /// Set when this packet decided about a fragmented datagram: evaluate the packets that were kept aside under this
    /// key again, each gets [`Decision::Take`] or [`Decision::Skip`] now.
    pub resolves: Option<FragmentKey>,
}

/// What to do with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The packet matches.
    Take,
    /// The packet does not match.
    Skip,
    /// A later fragment whose first one was not seen yet: keep it aside under this key until a verdict resolves it.
    /// One that is never resolved does not match.
    Maybe(FragmentKey),
}

impl Filter {
    /// A filter from a text that asks for no trigger packet.
    ///
    /// # Errors
    /// Those of [`Template::parse`], and [`FilterProblem::NeedsTrigger`](crate::FilterProblem::NeedsTrigger) for a text with variables.
    pub fn plain(text: &str) -> Result<Self, FilterError> {
        Ok(Self::new(Template::parse(text)?.into_plain()?))
    }

    /// As [`Filter::plain`], with names looked up once: see [`Template::resolve`].
    ///
    /// # Errors
    /// As [`Filter::plain`].
    pub fn resolved(text: &str) -> Result<Self, FilterError> {
        let template = Template::parse(text)?.resolve()?;
        Ok(Self::new(template.into_plain()?))
    }

    /// Whether [`Filter::prepare`] is done within a millisecond: all that libpcap is slow at is compiled already, by this filter or
    /// another one of the same expression.
    #[must_use]
    pub fn prepares_at_once(&self, link: LinkContext) -> bool {
        self.is_prepared(link.link_type, link.mode) || self.filled.compiles_at_once(link)
    }

    /// Whether it holds names that the system is asked for when it is prepared.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.filled.pieces.iter().any(|piece| piece.name.is_some())
    }

    /// From now on the system is asked for no name, by no filter of the same expression: see [`Template::seal`].
    pub fn seal(&self) {
        self.filled.pieces.iter().for_each(|piece| piece.seal());
    }

    /// A filter from an expression; prepared for no link type yet.
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

    /// Compiles the expression for a link type and mode. Cheap if that was done before, whatever the snap length then:
    /// it makes no difference to what matches.
    ///
    /// # Errors
    /// [`FilterError`] of the first piece that libpcap refuses for this link type; its packets do not match then.
    pub fn prepare(&mut self, link: LinkContext) -> Result<(), FilterError> {
        if self.is_prepared(link.link_type, link.mode) {
            return Ok(());
        }
        let programs = self.filled.compile(link)?;
        self.prepared.push(((link.link_type, link.mode), programs));
        Ok(())
    }

    /// Whether packets of this link type and mode can match.
    #[must_use]
    pub fn is_prepared(&self, link_type: LinkType, mode: FilterMode) -> bool {
        self.programs(link_type, mode).is_some()
    }

    /// The program that alone decides about packets of this link type and mode. `None` where they cannot match, and for
    /// an expression with terms of our own, which no program decides alone.
    #[must_use]
    pub fn program(&self, link_type: LinkType, mode: FilterMode) -> Option<&Program> {
        match self.programs(link_type, mode) {
            Some([program]) if self.filled.is_plain() => Some(program),
            _ => None,
        }
    }

    /// What is known about fragments before the first packet: what the trigger packet tells.
    #[must_use]
    pub fn state(&self) -> FlowState {
        FlowState::new(&self.filled.terms)
    }

    /// Whether the answer to a packet may depend on earlier ones, which told what datagrams belong to a flow.
    #[must_use]
    pub fn follows_fragments(&self) -> bool {
        self.filled.terms.followed().is_some()
    }

    /// Whether a packet matches. For an expression without terms of our own this is one run of one program. With such
    /// terms nothing but the trigger packet's own datagram is known about fragments: see [`Filter::evaluate`].
    #[must_use]
    pub fn matches(&self, packet: &PacketView<'_>) -> bool {
        match self.program(packet.link_type, packet.mode) {
            Some(program) => program.keeps(&packet.frame()),
            None => self.evaluate(&mut self.state(), packet).decision == Decision::Take,
        }
    }

    /// [`Filter::matches`] for at most [`Program::MANY`] packets of one link type, mode and interface: bit `n` of the result
    /// is that of packet `n`. Programs run on all together, and only what they leave undecided is looked at more closely.
    ///
    /// # Panics
    /// If there are more than [`Program::MANY`].
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
        evaluation.find(plan, evaluation.all(), &self.state()).taken
    }

    /// Decides about a packet, in the order of the packets, with what earlier ones told.
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
        let resolves = match terms.followed() {
            Some(term) => state.observe(term, evaluation.parsed(0)),
            None => None,
        };
        let decision = match evaluation.find(plan, evaluation.all(), state) {
            KleeneSets { taken: 1, .. } => Decision::Take,
            KleeneSets { possible: 0, .. } => Decision::Skip,
            _ => match fragment_of(evaluation.parsed(0)) {
                Some(datagram) => Decision::Maybe(datagram),
                None => Decision::Skip,
            },
        };
        FilterAnswer { decision, resolves }
    }

    /// Whether the filter reads no byte after the headers of packets of a link type and mode. The
    /// end of the headers is [`Parsed::headers_end`](retroscope_packet::Parsed::headers_end).
    ///
    /// `false` if that is not certain, and for an expression with `payload` or `$flow`. `true` if
    /// the filter is not prepared for the link type.
    #[must_use]
    pub fn reads_headers_only(&self, link_type: LinkType, mode: FilterMode) -> bool {
        let programs = self.programs(link_type, mode).unwrap_or_default();
        let mut programs = programs.iter();
        self.filled.is_plain() && programs.all(|it| reads_headers_only(it, link_type))
    }

    /// The programs of its pieces for packets of a link type and mode, for example to compile them to machine code. `None`
    /// where they cannot match.
    #[must_use]
    pub fn programs(&self, link_type: LinkType, mode: FilterMode) -> Option<&[Program]> {
        let mut prepared = self.prepared.iter();
        let found = prepared.find(|(of, _)| *of == (link_type, mode));
        found.map(|(_, programs)| programs.as_slice())
    }
}
