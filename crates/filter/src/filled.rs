//! Expressions in which all variables have values.

use std::{
    fmt,
    hash::{Hash, Hasher},
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use retroscope_packet::{FlowKey, FragmentKey, community_id_of};

use crate::{
    FilterError, FilterProblem, LinkContext, Program, Variable,
    compile::{self, compile},
    plan::EvaluationPlan,
};

/// A template with values for its variables, or a plain expression.
///
/// Two values are equal if their texts, with the values filled in, are equal. [`fmt::Display`]
/// shows this text, for example `$flow[udp 10.0.0.1:1 10.0.0.2:2] and not port 53`.
#[derive(Debug, Clone)]
pub struct FilledExpression {
    pub(crate) display: String,
    pub(crate) plan: Arc<EvaluationPlan>,
    pub(crate) pieces: Vec<Arc<FilterPiece>>,
    pub(crate) terms: TermValues,
}

impl FilledExpression {
    /// The text with the values filled in.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.display
    }

    pub(crate) fn of_piece(piece: Arc<FilterPiece>) -> Self {
        Self {
            display: piece.text.clone(),
            plan: Arc::new(EvaluationPlan::Piece(0)),
            pieces: vec![piece],
            terms: TermValues::default(),
        }
    }

    /// Whether the expression is empty or only `$iface`, and so selects no particular flow.
    #[must_use]
    pub fn selects_no_flow(&self) -> bool {
        match &*self.plan {
            EvaluationPlan::Piece(_) => self.display.trim().is_empty(),
            EvaluationPlan::Term(variable) => *variable == Variable::Iface,
            _ => false,
        }
    }

    /// Whether the expression is a single piece of pcap-filter text.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(*self.plan, EvaluationPlan::Piece(_))
    }

    /// Compiles the pieces, or takes stored programs. Returns the program of each piece.
    pub(crate) fn compile(&self, link: LinkContext) -> Result<Vec<Program>, FilterError> {
        let pieces = self.pieces.iter();
        pieces.map(|piece| piece.compile(link)).collect()
    }

    pub(crate) fn compiles_quickly(&self, link: LinkContext) -> bool {
        self.pieces.iter().all(|piece| piece.compiles_quickly(link))
    }
}

impl PartialEq for FilledExpression {
    fn eq(&self, other: &Self) -> bool {
        self.display == other.display
    }
}

impl Eq for FilledExpression {}

impl Hash for FilledExpression {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.display.hash(state);
    }
}

impl fmt::Display for FilledExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.display)
    }
}

/// Values of the own terms. `None` for a term that the expression does not contain.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct TermValues {
    pub(crate) flow: Option<FlowTerm>,
    pub(crate) interface: Option<u16>,
    pub(crate) community: Option<CommunityTerm>,
}

/// Value of `$communityId`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum CommunityTerm {
    /// TCP, UDP and SCTP. Comparing flow keys is cheaper than hashing every packet, and keys also
    /// recognise later fragments.
    Flow(FlowTerm),
    /// The identifier as text: of another protocol, or known without a packet
    /// ([`KnownFlow::CommunityId`](crate::KnownFlow::CommunityId)).
    Id(String),
}

impl TermValues {
    /// The flow that `$communityId` means, if known.
    pub(crate) fn community_flow(&self) -> Option<FlowTerm> {
        match self.community {
            Some(CommunityTerm::Flow(flow)) => Some(flow),
            _ => None,
        }
    }

    /// The flow whose fragments are followed. If both are known, `$flow` and `$communityId` name
    /// the same flow.
    pub(crate) fn followed_flow(&self) -> Option<FlowTerm> {
        self.flow.or_else(|| self.community_flow())
    }

    /// The datagram of which the trigger packet is a fragment, if the flow is followed.
    pub(crate) fn datagram(&self) -> Option<FragmentKey> {
        match self.followed_flow()? {
            FlowTerm::Key { trigger, .. } => trigger,
            FlowTerm::Datagram(datagram) => Some(datagram),
        }
    }
}

/// Value of `$flow`. Two values are equal if their flow keys, or their datagrams, are equal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowTerm {
    /// The flow is known.
    Key {
        key: FlowKey,
        /// Datagram of the trigger packet, if the packet is a fragment.
        trigger: Option<FragmentKey>,
    },
    /// The trigger packet is a fragment of an unknown flow. The term means its datagram and, once
    /// the first fragment is seen, the flow.
    Datagram(FragmentKey),
}

impl FlowTerm {
    /// The value by which two terms are compared.
    fn named(&self) -> Result<&FlowKey, &FragmentKey> {
        match self {
            Self::Key { key, .. } => Ok(key),
            Self::Datagram(datagram) => Err(datagram),
        }
    }
}

impl PartialEq for FlowTerm {
    fn eq(&self, other: &Self) -> bool {
        self.named() == other.named()
    }
}

impl Eq for FlowTerm {}

impl Hash for FlowTerm {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.named().hash(state);
    }
}

impl fmt::Display for FlowTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { key, .. } => write!(f, "{key}"),
            Self::Datagram(datagram) => write!(f, "fragments of {datagram}"),
        }
    }
}

impl fmt::Display for CommunityTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flow(FlowTerm::Key { key, .. }) => {
                f.write_str(&community_id_of(key, 0).unwrap_or_default())
            }
            Self::Flow(FlowTerm::Datagram(_)) => Ok(()),
            Self::Id(id) => f.write_str(id),
        }
    }
}

/// A piece of pcap-filter text, its origin, and its programs. All expressions of a template share a
/// piece without variables.
#[derive(Debug, Default)]
pub(crate) struct FilterPiece {
    pub(crate) text: String,
    /// Text of the template, into which errors point.
    source: Arc<str>,
    segments: Vec<Segment>,
    /// Bytes in `source` of the first name that libpcap looks up each time it compiles the text.
    /// `None` also without [`Template::resolve`](crate::Template::resolve).
    pub(crate) name: Option<Range<usize>>,
    /// Set when no name may be looked up any more.
    is_sealed: AtomicBool,
    made: Mutex<Vec<CompiledPiece>>,
}

type CompiledPiece = (LinkContext, Result<Program, FilterError>);

/// A range of a piece, and the template text that it comes from.
#[derive(Debug, Clone)]
struct Segment {
    /// End of the range in the piece.
    end: usize,
    /// Bytes of the template.
    source: Range<usize>,
    /// Whether the piece repeats these bytes, instead of replacing a variable or a name.
    verbatim: bool,
}

impl FilterPiece {
    /// Whether [`Self::compile`] is quick, apart from name look-ups.
    pub(crate) fn compiles_quickly(&self, link: LinkContext) -> bool {
        compile::is_quick(&self.text) || of(&self.lock(), link).is_some()
    }

    pub(crate) fn of(source: Arc<str>) -> Self {
        Self {
            source,
            ..Self::default()
        }
    }

    /// Appends the text for `source`, a range of the template: the same text, or `value` instead of
    /// a variable or a name.
    pub(crate) fn push(&mut self, source: Range<usize>, value: Option<&str>) {
        let text = value.unwrap_or(&self.source[source.clone()]);
        self.text.push_str(text);
        self.segments.push(Segment {
            end: self.text.len(),
            source,
            verbatim: value.is_none(),
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CompiledPiece>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles the piece unless it is compiled already. Errors point into the template.
    pub(crate) fn compile(&self, link: LinkContext) -> Result<Program, FilterError> {
        if let Some(made) = of(&self.lock(), link) {
            return made.clone();
        }
        // Relaxed: callers should seal a piece before they pass the piece to other threads.
        if self.is_sealed.load(Relaxed)
            && let Some(name) = &self.name
        {
            return Err(name_too_late(&self.source, name.clone()));
        }
        // Without the lock, so that threads with other link types do not wait.
        let made = compile(&self.text, link)
            .map_err(|error| error.relocated(&self.source, |span| self.source_of(span)));
        let mut all = self.lock();
        if let Some(first) = of(&all, link) {
            return first.clone();
        }
        all.push((link, made.clone()));
        made
    }

    /// Makes [`Self::compile`] reject a piece with a [`Self::name`] for new link contexts.
    pub(crate) fn seal(&self) {
        self.is_sealed.store(true, Relaxed);
    }

    /// Maps bytes of the piece to bytes of the template. Inside a value, the result is the whole
    /// variable or name.
    fn source_of(&self, span: Range<usize>) -> Range<usize> {
        let start = self.place_of(span.start, span.is_empty(), |source| source.start);
        let end = self.place_of(span.end, true, |source| source.end);
        start.min(end)..end
    }

    /// Maps the offset `at` in the piece to an offset in the template. With `ending`, `at` is the
    /// end of a range and may belong to the segment that ends at `at`. Inside a value the result is
    /// the `edge` of the variable or name.
    fn place_of(&self, at: usize, ending: bool, edge: fn(&Range<usize>) -> usize) -> usize {
        let mut start = 0;
        for segment in &self.segments {
            if at < segment.end || (ending && at == segment.end && start < segment.end) {
                return if segment.verbatim {
                    segment.source.start + at - start
                } else {
                    edge(&segment.source)
                };
            }
            start = segment.end;
        }
        self.segments.last().map_or(0, |last| last.source.end)
    }
}

pub(crate) fn name_too_late(text: &str, name: Range<usize>) -> FilterError {
    let problem = FilterProblem::NameTooLate(text[name.clone()].to_owned());
    FilterError::new(problem, text, name)
}

/// The stored result for a link context.
fn of(made: &[CompiledPiece], link: LinkContext) -> Option<&Result<Program, FilterError>> {
    made.iter()
        .find(|(of, _)| *of == link)
        .map(|(_, made)| made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_go_back_to_the_template() {
        let template = "host $srcIP and port 9";
        let mut piece = FilterPiece::of(template.into());
        piece.push(0..5, None);
        piece.push(5..11, Some("10.0.0.1"));
        piece.push(11..template.len(), None);
        assert_eq!(piece.text, "host 10.0.0.1 and port 9");
        assert_eq!(&template[piece.source_of(0..4)], "host");
        assert_eq!(&template[piece.source_of(5..13)], "$srcIP");
        assert_eq!(&template[piece.source_of(8..9)], "$srcIP");
        assert_eq!(&template[piece.source_of(14..17)], "and");
        assert_eq!(&template[piece.source_of(23..24)], "9");
        assert_eq!(piece.source_of(24..24), 22..22);
    }
}
