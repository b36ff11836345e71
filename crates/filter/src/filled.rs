//! An expression with nothing left to fill in.

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
    FilterError, FilterProblem, LinkContext, Program,
    compile::{self, compile},
    plan::EvaluationPlan,
};

/// A template with a trigger packet's values in it, or a plain expression.
///
/// Two are equal if they say the same: the text with the values in it is compared, so all packets of a flow, in both
/// directions, fill `$flow` in equally. That text is also what [`fmt::Display`] shows, for example
/// `$flow[udp 10.0.0.1:1 10.0.0.2:2] and not port 53`.
#[derive(Debug, Clone)]
pub struct FilledExpression {
    pub(crate) display: String,
    /// All that one template becomes have it in common.
    pub(crate) plan: Arc<EvaluationPlan>,
    pub(crate) pieces: Vec<Arc<FilterPiece>>,
    pub(crate) terms: TermValues,
}

impl FilledExpression {
    /// The text with the values in it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.display
    }

    /// An expression of one piece and nothing else.
    pub(crate) fn of_piece(piece: Arc<FilterPiece>) -> Self {
        Self {
            display: piece.text.clone(),
            plan: Arc::new(EvaluationPlan::Piece(0)),
            pieces: vec![piece],
            terms: TermValues::default(),
        }
    }

    /// Whether it is one piece of pcap-filter text and nothing else.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(*self.plan, EvaluationPlan::Piece(_))
    }

    /// Compiles every piece of pcap-filter text that was not compiled before.
    pub(crate) fn compile(&self, link: LinkContext) -> Result<Vec<Program>, FilterError> {
        let pieces = self.pieces.iter();
        pieces.map(|piece| piece.compile(link)).collect()
    }

    /// Whether [`Self::compile`] is quick: libpcap knows the pieces already, or they are short.
    pub(crate) fn compiles_at_once(&self, link: LinkContext) -> bool {
        self.pieces.iter().all(|piece| piece.compiles_at_once(link))
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

/// What the terms of our own compare with. `None`: the expression does not hold that term.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct TermValues {
    pub(crate) flow: Option<FlowTerm>,
    pub(crate) interface: Option<u16>,
    pub(crate) community: Option<CommunityTerm>,
}

/// What `$communityId` stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum CommunityTerm {
    /// TCP, UDP and SCTP, where the same identifier means the same flow: comparing keys is cheaper than hashing
    /// every packet, and later fragments are recognised.
    Flow(FlowTerm),
    /// An identifier of anything else, as text.
    Id(String),
}

impl TermValues {
    /// The flow that `$communityId` stands for.
    pub(crate) fn community_flow(&self) -> Option<FlowTerm> {
        match self.community {
            Some(CommunityTerm::Flow(flow)) => Some(flow),
            _ => None,
        }
    }

    /// The flow whose fragments are followed. Both terms name the same one: that of the trigger packet.
    pub(crate) fn followed(&self) -> Option<FlowTerm> {
        self.flow.or_else(|| self.community_flow())
    }

    /// The datagram that the trigger packet is a fragment of, if one is followed.
    pub(crate) fn datagram(&self) -> Option<FragmentKey> {
        match self.followed()? {
            FlowTerm::Key { trigger, .. } => trigger,
            FlowTerm::Datagram(datagram) => Some(datagram),
        }
    }
}

/// What `$flow` stands for. Two are equal if they name the same flow.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FlowTerm {
    /// The trigger packet told its flow, or the first fragment of its datagram did.
    Key {
        key: FlowKey,
        /// The trigger packet's own datagram, if it was a fragment of one.
        trigger: Option<FragmentKey>,
    },
    /// The trigger packet was a later fragment, of unknown flow: its datagram, and its flow once the first fragment
    /// tells it.
    Datagram(FragmentKey),
}

impl FlowTerm {
    /// What it is compared by.
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

/// A piece of pcap-filter text, where it came from, and what libpcap made of it. All expressions that hold it share it, so that it is
/// compiled once for each link type, by whichever thread comes first.
#[derive(Debug, Default)]
pub(crate) struct FilterPiece {
    pub(crate) text: String,
    /// The template as it was typed, for errors to point into.
    source: Arc<str>,
    segments: Vec<Segment>,
    /// Where the first name stands in `source` that the system is asked for whenever libpcap compiles the text.
    pub(crate) name: Option<Range<usize>>,
    /// Names are looked up no more.
    is_sealed: AtomicBool,
    made: Mutex<Vec<CompiledPiece>>,
}

/// What libpcap made of a piece.
type CompiledPiece = (LinkContext, Result<Program, FilterError>);

/// A stretch of a piece.
#[derive(Debug, Clone)]
struct Segment {
    /// Where it ends in the piece.
    end: usize,
    /// The bytes of the template that it stands for.
    source: Range<usize>,
    /// Whether those bytes are the same, or a variable's name.
    verbatim: bool,
}

impl FilterPiece {
    /// Whether [`Self::compile`] is quick.
    pub(crate) fn compiles_at_once(&self, link: LinkContext) -> bool {
        compile::is_quick(&self.text) || of(&self.lock(), link).is_some()
    }

    /// Nothing yet, of a template.
    pub(crate) fn of(source: Arc<str>) -> Self {
        Self {
            source,
            ..Self::default()
        }
    }

    /// Appends what stands for bytes of the template: these themselves, or a `value` of a variable, a number of a name.
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

    /// Compiles the piece, unless that was done; errors point into the template that it came from.
    pub(crate) fn compile(&self, link: LinkContext) -> Result<Program, FilterError> {
        if let Some(made) = of(&self.lock(), link) {
            return made.clone();
        }
        // Relaxed: it is set before the threads start that must see it.
        if self.is_sealed.load(Relaxed)
            && let Some(name) = &self.name
        {
            return Err(name_too_late(&self.source, name.clone()));
        }
        // Not under the lock: whoever needs it for another link type need not wait.
        let made = compile(&self.text, link)
            .map_err(|error| error.relocated(&self.source, |span| self.source_of(span)));
        let mut all = self.lock();
        if let Some(first) = of(&all, link) {
            return first.clone();
        }
        all.push((link, made.clone()));
        made
    }

    /// The system is asked for no name any more.
    pub(crate) fn seal(&self) {
        self.is_sealed.store(true, Relaxed);
    }

    /// Bytes of the template that bytes of the piece stand for. A value stands for its variable's whole name.
    fn source_of(&self, span: Range<usize>) -> Range<usize> {
        let start = self.place_of(span.start, span.is_empty(), |source| source.start);
        let end = self.place_of(span.end, true, |source| source.end);
        start.min(end)..end
    }

    /// Where the byte at `at` stands in the template, or the one that ends there; of a value the `edge` of its variable's name.
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

/// The error of a name in a text that is compiled when names were looked up already.
pub(crate) fn name_too_late(text: &str, name: Range<usize>) -> FilterError {
    let problem = FilterProblem::NameTooLate(text[name.clone()].to_owned());
    FilterError::new(problem, text, name)
}

/// What was made for a link type.
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
