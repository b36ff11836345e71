//! The boolean structure of a template that holds terms of our own.
//!
//! pcap-filter(7): `and` and `or` have the same precedence and group from left to right, `not` binds tighter. Text
//! between terms of our own is not understood here: it is cut into the longest pieces that can be compiled by
//! themselves and still mean the same.

use std::ops::Range;

use crate::{
    FilterError, Place, Variable,
    words::{Word, WordKind},
};

/// Parentheses inside each other, at most.
const DEPTH_MAX: usize = 100;

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
    /// A term of our own.
    Term(Variable),
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
    /// [`FilterError::Syntax`] and [`FilterError::Misplaced`] for the structure; what the pieces say is not looked at.
    pub(crate) fn parse(
        text: &str,
        words: &[Word],
    ) -> Result<(Self, Vec<Range<usize>>), FilterError> {
        let mut parser = Parser {
            text,
            words,
            partners: partners(text, words)?,
            pieces: Vec::new(),
        };
        let chain = parser.chain(0..words.len(), 0)?;
        Ok((chain, parser.pieces))
    }
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
    },
}

struct Parser<'t> {
    text: &'t str,
    words: &'t [Word],
    partners: Vec<usize>,
    pieces: Vec<Range<usize>>,
}

impl Parser<'_> {
    /// Parses the words of `range`, which stand at one depth of parentheses or deeper.
    fn chain(&mut self, range: Range<usize>, depth: usize) -> Result<Chain, FilterError> {
        let mut parts = Vec::new();
        let mut joiner = Joiner::And;
        let mut at = range.start;
        loop {
            let (part, next) = self.operand(at..range.end, depth)?;
            parts.push((joiner, part));
            if next == range.end {
                return Ok(self.join(parts));
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
            _ => match self.term(first) {
                Some(variable) => {
                    let node = Node::Term(variable);
                    Ok((Part::Own { negated, node }, first + 1))
                }
                None if self.is_own_group(first) => {
                    if depth == DEPTH_MAX {
                        return Err(self.misplaced(first, "too many parentheses inside each other"));
                    }
                    let close = self.partners[first];
                    let node = Node::Group(self.chain(first + 1..close, depth + 1)?);
                    Ok((Part::Own { negated, node }, close + 1))
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
                _ if self.term(at).is_some() || self.is_own_group(at) => {
                    return Err(self.misplaced(
                        at,
                        "$flow, $iface and $communityId stand alone: join them with 'and', 'or', 'not'",
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
    fn join(&mut self, parts: Vec<(Joiner, Part)>) -> Chain {
        let mut operands: Vec<Operand> = Vec::new();
        // Joiner of the piece that is last in `operands`, if the last operand is a piece.
        let mut open: Option<Joiner> = None;
        for (joiner, part) in parts {
            let (negated, node) = match part {
                Part::Own { negated, node } => {
                    open = None;
                    (negated, node)
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
                    self.pieces.push(bytes);
                    (false, Node::Piece(self.pieces.len() - 1))
                }
            };
            operands.push(Operand {
                joiner,
                negated,
                node,
            });
        }
        Chain { operands }
    }

    fn term(&self, index: usize) -> Option<Variable> {
        let word = &self.words[index];
        let variable = match word.kind {
            WordKind::Dollar => Variable::from_name(&self.text[word.span.clone()])?,
            _ => return None,
        };
        variable.is_term().then_some(variable)
    }

    /// Whether parentheses that hold a term of our own open at `index`.
    fn is_own_group(&self, index: usize) -> bool {
        self.words[index].kind == WordKind::Open
            && (index + 1..self.partners[index]).any(|inside| self.term(inside).is_some())
    }

    /// Whether the operand at `start` is a number or address right behind a term of our own.
    fn lost_its_qualifiers(&self, start: usize) -> bool {
        let is_bare =
            self.text[self.words[start].span.start..].starts_with(|c: char| c.is_ascii_digit());
        let before = start.checked_sub(2);
        is_bare && before.is_some_and(|before| self.term(before).is_some())
    }

    fn syntax_at(&self, index: usize) -> FilterError {
        let span = self.words.get(index).map(|word| word.span.clone());
        syntax(self.text, span.unwrap_or_else(|| end_of(self.text)))
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
