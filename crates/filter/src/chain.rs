//! The boolean structure of an expression that holds terms of our own.
//!
//! Text between terms of our own is not understood here: it is cut into the longest pieces that can be compiled by
//! themselves and still mean the same.

use std::ops::Range;

use crate::{
    FilterError, Place, Variable,
    structure::{Clause, Joiner, Structure},
    words::{Word, WordKind},
};

/// Levels of an expression, at most: parentheses inside each other, and changes between `and` and `or`, each of which
/// puts everything on its left one level down.
const LEVELS_MAX: usize = 100;
/// Most terms of our own.
const TERMS_MAX: usize = 10_000;
/// Most pieces of pcap-filter text: each is compiled by itself.
const PIECES_MAX: usize = 1000;

/// Operands from left to right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    /// At least one. The joiner of the first has no meaning.
    pub(crate) operands: Vec<Operand>,
}

/// One operand with what joins it to everything on its left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) joiner: Joiner,
    pub(crate) negated: bool,
    pub(crate) node: Node,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// pcap-filter text; index into the pieces.
    Piece(usize),
    /// A term of our own about the trigger packet.
    Term(Variable),
    /// A payload term; index into the tests.
    Payload(usize),
    /// Parentheses that hold a term of our own.
    Group(Chain),
}

impl Chain {
    /// A chain of one piece of text.
    pub(crate) fn piece() -> Self {
        let operand = Operand {
            joiner: Joiner::And,
            negated: false,
            node: Node::Piece(0),
        };
        Self {
            operands: vec![operand],
        }
    }

    /// Parses `text`, cut into `words`, which hold at least one term of our own. Also gives the bytes of each piece of
    /// pcap-filter text.
    ///
    /// # Errors
    /// [`FilterError::Syntax`] and [`FilterError::Misplaced`] for the structure, [`FilterError::TooManyTerms`]; what the
    /// pieces say is not looked at.
    pub(crate) fn parse(
        text: &str,
        words: &[Word],
    ) -> Result<(Self, Vec<Range<usize>>), FilterError> {
        let structure = Structure::parse(text, words).map_err(|index| {
            let end = text.trim_end().len();
            let span = words.get(index).map(|word| word.span.clone());
            FilterError::Syntax {
                place: Place::new(text, span.unwrap_or(end..end)),
            }
        })?;
        let mut parser = Parser {
            own_before: own_before(text, words)?,
            structure: &structure,
            pieces: Vec::new(),
        };
        let (chain, _) = parser.chain(&structure.clauses)?;
        Ok((chain, parser.pieces))
    }
}

/// The term of our own that a word is.
fn own_term(text: &str, word: &Word) -> Option<Node> {
    match word.kind {
        WordKind::Payload(index) => Some(Node::Payload(index)),
        WordKind::Dollar => Variable::from_name(&text[word.span.clone()])
            .filter(|variable| variable.is_term())
            .map(Node::Term),
        _ => None,
    }
}

/// For each word, and for the end, how many terms of our own come before it.
fn own_before(text: &str, words: &[Word]) -> Result<Vec<usize>, FilterError> {
    let mut before = Vec::with_capacity(words.len() + 1);
    let mut count = 0;
    for word in words {
        before.push(count);
        count += usize::from(own_term(text, word).is_some());
        if count > TERMS_MAX {
            let (what, limit) = ("terms of our own", TERMS_MAX);
            let place = Place::new(text, word.span.clone());
            return Err(FilterError::TooManyTerms { place, what, limit });
        }
    }
    before.push(count);
    Ok(before)
}

/// An operand before neighbouring text is joined into pieces.
enum Part {
    /// Bytes of pcap-filter text.
    Text(Range<usize>),
    Own {
        negated: bool,
        node: Node,
        /// Levels in the node.
        levels: usize,
    },
}

struct Parser<'t> {
    structure: &'t Structure<'t>,
    own_before: Vec<usize>,
    pieces: Vec<Range<usize>>,
}

impl Parser<'_> {
    /// Makes a chain of clauses, at least one. Also gives its levels.
    fn chain(&mut self, clauses: &[Clause]) -> Result<(Chain, usize), FilterError> {
        let mut parts = Vec::with_capacity(clauses.len());
        for clause in clauses {
            parts.push((clause.joiner, self.part(clause)?));
        }
        let (chain, levels) = self.join(parts)?;
        if levels > LEVELS_MAX {
            return Err(self.too_deep(clauses[0].words.start));
        }
        Ok((chain, levels))
    }

    fn part(&mut self, clause: &Clause) -> Result<Part, FilterError> {
        let Clause { negated, first, .. } = *clause;
        if !self.own_in(clause.words.clone()) {
            return self.pcap_text(clause);
        }
        let (node, levels) = match own_term(self.structure.text, &self.structure.words[first]) {
            Some(node) if clause.words.end == first + 1 => (node, 0),
            Some(_) => return Err(self.not_joined(first + 1)),
            None => match &clause.group {
                Some(group) => {
                    let (chain, levels) = self.chain(group)?;
                    (Node::Group(chain), levels)
                }
                None => return Err(self.no_term(first..clause.words.end)),
            },
        };
        Ok(Part::Own {
            negated,
            node,
            levels,
        })
    }

    /// A clause of pcap-filter text.
    fn pcap_text(&self, clause: &Clause) -> Result<Part, FilterError> {
        let words = clause.words.clone();
        if words.end - clause.first == 1 && self.lost_its_qualifiers(words.start) {
            return Err(self.misplaced(
                clause.first,
                "qualifiers do not reach across a term of our own: write them again, as in 'port 443'",
            ));
        }
        Ok(Part::Text(self.structure.bytes(words)))
    }

    /// Words with a term of our own among them that is no clause.
    fn no_term(&self, words: Range<usize>) -> FilterError {
        let is_group = |at: usize| {
            let close = self.structure.partner(at);
            close.is_some_and(|close| self.own_in(at..close))
        };
        match self.structure.partner(words.start) {
            Some(close) if close + 1 == words.end => return self.too_deep(words.start),
            Some(close) if is_group(words.start) => return self.not_joined(close + 1),
            _ => {}
        }
        let at = words
            .clone()
            .find(|&at| self.own_in(at..at + 1) || is_group(at));
        self.misplaced(
            at.unwrap_or(words.start),
            "$flow, $iface, $communityId and payload terms stand alone: \
             join them with 'and', 'or', 'not'",
        )
    }

    /// Joins neighbouring text into pieces where grouping from the left allows it: at the start of the chain always,
    /// later as long as the same word joins them. So a piece keeps what libpcap carries from one primitive to the
    /// next, such as the qualifiers in `tcp port 80 or 443`.
    fn join(&mut self, parts: Vec<(Joiner, Part)>) -> Result<(Chain, usize), FilterError> {
        let mut operands: Vec<Operand> = Vec::new();
        let mut levels = 0;
        // Joiner of the piece that is last in `operands`, if the last operand is a piece.
        let mut open: Option<Joiner> = None;
        for (joiner, part) in parts {
            let (negated, node, inside) = match part {
                Part::Own {
                    negated,
                    node,
                    levels,
                } => {
                    open = None;
                    (negated, node, levels)
                }
                Part::Text(bytes) => {
                    let at_start = operands.len() == 1;
                    if let Some(piece) = self.pieces.last_mut()
                        && open.is_some_and(|opened| at_start || opened == joiner)
                    {
                        piece.end = bytes.end;
                        continue;
                    }
                    open = Some(joiner);
                    self.push_piece(bytes)?;
                    (false, Node::Piece(self.pieces.len() - 1), 0)
                }
            };
            let changes =
                operands.len() > 1 && operands.last().is_some_and(|last| last.joiner != joiner);
            levels = (levels + usize::from(changes)).max(inside + 1);
            operands.push(Operand {
                joiner,
                negated,
                node,
            });
        }
        Ok((Chain { operands }, levels))
    }

    fn push_piece(&mut self, bytes: Range<usize>) -> Result<(), FilterError> {
        if self.pieces.len() == PIECES_MAX {
            let (what, limit) = ("pieces of pcap-filter text between them", PIECES_MAX);
            let place = Place::new(self.structure.text, bytes);
            return Err(FilterError::TooManyTerms { place, what, limit });
        }
        self.pieces.push(bytes);
        Ok(())
    }

    /// Whether these words hold a term of our own.
    fn own_in(&self, words: Range<usize>) -> bool {
        self.own_before[words.start] < self.own_before[words.end]
    }

    /// Whether the operand at `start` is a number or address right behind a term of our own.
    fn lost_its_qualifiers(&self, start: usize) -> bool {
        let word = self.structure.word(start);
        let is_bare = word.is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        let before = start.checked_sub(2);
        is_bare && before.is_some_and(|before| self.own_in(before..before + 1))
    }

    fn not_joined(&self, index: usize) -> FilterError {
        self.misplaced(index, "join terms with 'and' or 'or'")
    }

    fn too_deep(&self, index: usize) -> FilterError {
        self.misplaced(
            index,
            "too many parentheses, or changes between 'and' and 'or', inside each other",
        )
    }

    fn misplaced(&self, index: usize, message: &str) -> FilterError {
        FilterError::Misplaced {
            place: Place::new(
                self.structure.text,
                self.structure.words[index].span.clone(),
            ),
            message: message.to_owned(),
        }
    }
}
