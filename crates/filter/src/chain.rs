//! The boolean structure of an expression that holds terms of our own.
//!
//! pcap-filter(7): `and` and `or` have the same precedence and group from left to right, `not` binds tighter. Text
//! between terms of our own is not understood here: it is cut into the longest pieces that can be compiled by
//! themselves and still mean the same.

use std::ops::Range;

use crate::{
    FilterError, Place, Variable,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joiner {
    And,
    Or,
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
        let mut parser = Parser {
            text,
            words,
            partners: partners(text, words)?,
            own_before: own_before(text, words)?,
            pieces: Vec::new(),
        };
        let (chain, _) = parser.chain(0..words.len(), 0)?;
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

/// For each opening parenthesis the index of the closing one.
fn partners(text: &str, words: &[Word]) -> Result<Vec<usize>, FilterError> {
    let mut partners = vec![0; words.len()];
    let mut open = Vec::new();
    for (index, word) in words.iter().enumerate() {
        match word.kind {
            WordKind::Open => open.push(index),
            WordKind::Close => match open.pop() {
                Some(start) => partners[start] = index,
                None => return Err(syntax(text, word.span.clone())),
            },
            _ => {}
        }
    }
    match open.pop() {
        Some(_) => Err(syntax(text, end_of(text))),
        None => Ok(partners),
    }
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
    text: &'t str,
    words: &'t [Word],
    partners: Vec<usize>,
    own_before: Vec<usize>,
    pieces: Vec<Range<usize>>,
}

impl Parser<'_> {
    /// Parses the words of `range`, which stand at one depth of parentheses or deeper. Also gives the levels of the chain.
    fn chain(&mut self, range: Range<usize>, depth: usize) -> Result<(Chain, usize), FilterError> {
        let mut parts = Vec::new();
        let mut joiner = Joiner::And;
        let mut at = range.start;
        loop {
            let (part, next) = self.operand(at..range.end, depth)?;
            parts.push((joiner, part));
            if next == range.end {
                let (chain, levels) = self.join(parts)?;
                if levels > LEVELS_MAX {
                    return Err(self.too_deep(range.start));
                }
                return Ok((chain, levels));
            }
            joiner = match self.words[next].kind {
                WordKind::And => Joiner::And,
                WordKind::Or => Joiner::Or,
                _ => return Err(self.misplaced(next, "join terms with 'and' or 'or'")),
            };
            at = next + 1;
        }
    }

    /// Parses one operand at the start of `range`; also gives the index of the word behind it.
    fn operand(&mut self, range: Range<usize>, depth: usize) -> Result<(Part, usize), FilterError> {
        let is_not = |index: &usize| self.words[*index].kind == WordKind::Not;
        let nots = range.clone().take_while(is_not).count();
        let first = range.start + nots;
        if first == range.end {
            return Err(self.syntax_at(first));
        }
        let negated = nots % 2 == 1;
        match self.words[first].kind {
            WordKind::And | WordKind::Or | WordKind::Close => Err(self.syntax_at(first)),
            _ => match own_term(self.text, &self.words[first]) {
                Some(node) => {
                    let own = Part::Own {
                        negated,
                        node,
                        levels: 0,
                    };
                    Ok((own, first + 1))
                }
                None if self.is_own_group(first) => {
                    if depth == LEVELS_MAX {
                        return Err(self.too_deep(first));
                    }
                    let close = self.partners[first];
                    let (chain, levels) = self.chain(first + 1..close, depth + 1)?;
                    let node = Node::Group(chain);
                    let own = Part::Own {
                        negated,
                        node,
                        levels,
                    };
                    Ok((own, close + 1))
                }
                None => self.pcap_text(range, first),
            },
        }
    }

    /// Parses an operand of pcap-filter text: everything up to the next `and` or `or` outside parentheses.
    fn pcap_text(&self, range: Range<usize>, first: usize) -> Result<(Part, usize), FilterError> {
        let mut at = first;
        while at < range.end {
            match self.words[at].kind {
                WordKind::And | WordKind::Or => break,
                WordKind::Open if !self.is_own_group(at) => at = self.partners[at],
                _ if self.own_in(at..at + 1) || self.is_own_group(at) => {
                    return Err(self.misplaced(
                        at,
                        "$flow, $iface, $communityId and payload terms stand alone: \
                         join them with 'and', 'or', 'not'",
                    ));
                }
                _ => {}
            }
            at += 1;
        }
        if at - first == 1 && self.lost_its_qualifiers(range.start) {
            return Err(self.misplaced(
                first,
                "qualifiers do not reach across a term of our own: write them again, as in 'port 443'",
            ));
        }
        let bytes = self.words[range.start].span.start..self.words[at - 1].span.end;
        Ok((Part::Text(bytes), at))
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
            let place = Place::new(self.text, bytes);
            return Err(FilterError::TooManyTerms { place, what, limit });
        }
        self.pieces.push(bytes);
        Ok(())
    }

    /// Whether these words hold a term of our own.
    fn own_in(&self, words: Range<usize>) -> bool {
        self.own_before[words.start] < self.own_before[words.end]
    }

    /// Whether parentheses that hold a term of our own open at `index`.
    fn is_own_group(&self, index: usize) -> bool {
        self.words[index].kind == WordKind::Open && self.own_in(index + 1..self.partners[index])
    }

    /// Whether the operand at `start` is a number or address right behind a term of our own.
    fn lost_its_qualifiers(&self, start: usize) -> bool {
        let is_bare =
            self.text[self.words[start].span.start..].starts_with(|c: char| c.is_ascii_digit());
        let before = start.checked_sub(2);
        is_bare && before.is_some_and(|before| self.own_in(before..before + 1))
    }

    fn syntax_at(&self, index: usize) -> FilterError {
        let span = self.words.get(index).map(|word| word.span.clone());
        syntax(self.text, span.unwrap_or_else(|| end_of(self.text)))
    }

    fn too_deep(&self, index: usize) -> FilterError {
        self.misplaced(
            index,
            "too many parentheses, or changes between 'and' and 'or', inside each other",
        )
    }

    fn misplaced(&self, index: usize, message: &str) -> FilterError {
        FilterError::Misplaced {
            place: Place::new(self.text, self.words[index].span.clone()),
            message: message.to_owned(),
        }
    }
}

fn syntax(text: &str, span: Range<usize>) -> FilterError {
    FilterError::Syntax {
        place: Place::new(text, span),
    }
}

fn end_of(text: &str) -> Range<usize> {
    let end = text.trim_end().len();
    end..end
}
