//! The boolean structure of an expression with *own terms*: terms of Retroscope that libpcap does
//! not know (`$flow`, `$iface`, `$communityId`, payload terms).
//!
//! The text between own terms is cut into pieces, which libpcap compiles separately.

use std::ops::Range;

use crate::{
    FilterError, FilterProblem, Variable,
    payload::PayloadTest,
    plan::EvaluationPlan,
    structure::{Clause, Joiner, Structure},
    words::{Word, WordKind},
};

/// Maximum nesting of an expression. Parentheses around own terms add a level. After an own term, a
/// change between `and` and `or` also adds a level, because it groups everything on its left.
const LEVELS_MAX: usize = 100;
/// Maximum number of own terms in an expression.
const TERMS_MAX: usize = 10_000;
/// Maximum number of pieces of pcap-filter text.
const PIECES_MAX: usize = 1000;

/// Makes the evaluation plan of `text`, which contains at least one own term. Also returns the byte
/// range of each piece of pcap-filter text. `tests` are the payload terms of `text`.
///
/// # Errors
/// [`FilterProblem::Syntax`], [`FilterProblem::Misplaced`], [`FilterProblem::TooManyTerms`]
pub(crate) fn plan(
    text: &str,
    words: &[Word],
    tests: &[PayloadTest],
) -> Result<(EvaluationPlan, Vec<Range<usize>>), FilterError> {
    let structure = Structure::parse(text, words).map_err(|index| {
        let end = text.trim_end().len();
        let span = words.get(index).map(|word| word.span.clone());
        FilterError::new(FilterProblem::Syntax, text, span.unwrap_or(end..end))
    })?;
    let mut parser = ChainParser {
        own_before: own_before(text, words)?,
        structure: &structure,
        tests,
        pieces: Vec::new(),
    };
    let (plan, _) = parser.chain(&structure.clauses)?;
    Ok((plan, parser.pieces))
}

/// The variable `$flow`, `$iface` or `$communityId` that a word names.
fn variable(text: &str, word: &Word) -> Option<Variable> {
    let name = (word.kind == WordKind::Dollar).then(|| &text[word.span.clone()])?;
    Variable::from_name(name).filter(|variable| variable.is_term())
}

/// Number of own terms before each word, and before the end of the text.
fn own_before(text: &str, words: &[Word]) -> Result<Vec<usize>, FilterError> {
    let mut before = Vec::with_capacity(words.len() + 1);
    let mut count = 0;
    for word in words {
        before.push(count);
        let is_own = matches!(word.kind, WordKind::Payload(_)) || variable(text, word).is_some();
        count += usize::from(is_own);
        if count > TERMS_MAX {
            let (what, limit) = ("terms of our own", TERMS_MAX);
            let problem = FilterProblem::TooManyTerms { what, limit };
            return Err(FilterError::new(problem, text, word.span.clone()));
        }
    }
    before.push(count);
    Ok(before)
}

enum ChainOperand {
    /// Bytes of pcap-filter text.
    Text(Range<usize>),
    /// An own term, or parentheses that contain one, and the number of levels inside.
    Own(EvaluationPlan, usize),
}

struct ChainParser<'t> {
    structure: &'t Structure<'t>,
    own_before: Vec<usize>,
    tests: &'t [PayloadTest],
    pieces: Vec<Range<usize>>,
}

impl ChainParser<'_> {
    /// Plans a non-empty list of clauses. Also returns the number of levels.
    fn chain(&mut self, clauses: &[Clause]) -> Result<(EvaluationPlan, usize), FilterError> {
        let mut parts = Vec::with_capacity(clauses.len());
        for clause in clauses {
            parts.push((clause.joiner, self.part(clause)?));
        }
        let joined = self.join(parts)?;
        joined.ok_or_else(|| self.too_deep(clauses[0].words.start))
    }

    fn part(&mut self, clause: &Clause) -> Result<ChainOperand, FilterError> {
        let first = clause.first;
        if !self.own_in(clause.words.clone()) {
            return self.pcap_text(clause);
        }
        let (plan, levels) = match self.own_term(first) {
            Some(plan) if clause.words.end == first + 1 => (plan, 0),
            Some(_) => return Err(self.not_joined(first + 1)),
            None => match &clause.group {
                Some(group) => self.chain(group)?,
                None => return Err(self.no_term(first..clause.words.end)),
            },
        };
        Ok(ChainOperand::Own(plan.negated_if(clause.negated), levels))
    }

    /// The plan of the word at `index`, if the word is an own term.
    fn own_term(&self, index: usize) -> Option<EvaluationPlan> {
        let word = &self.structure.words[index];
        match word.kind {
            WordKind::Payload(index) => Some(EvaluationPlan::Payload(self.tests[index].clone())),
            _ => variable(self.structure.text, word).map(EvaluationPlan::Term),
        }
    }

    /// The operand for a clause without own terms. A single word with a leading digit must not
    /// follow an own term directly: `443` in `port 80 and $flow or 443` would lack its qualifier.
    fn pcap_text(&self, clause: &Clause) -> Result<ChainOperand, FilterError> {
        let words = clause.words.clone();
        if words.end - clause.first == 1 && self.lost_its_qualifiers(words.start) {
            return Err(self.misplaced(
                clause.first,
                "qualifiers do not reach across a term of our own: write them again, as in 'port 443'",
            ));
        }
        Ok(ChainOperand::Text(self.structure.bytes(words)))
    }

    /// The error for a clause that mixes an own term with other words, such as `host $flow`, or
    /// that is nested too deeply.
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

    /// Joins operands from the left. Neighbouring operands of text become one piece, so that
    /// qualifiers reach the next primitive, as in `tcp port 80 or 443`. After the start of the
    /// chain, only the same joiner extends a piece. `None` if there are too many levels.
    fn join(
        &mut self,
        parts: Vec<(Joiner, ChainOperand)>,
    ) -> Result<Option<(EvaluationPlan, usize)>, FilterError> {
        // Operands that `joined_by` connects.
        let mut operands: Vec<EvaluationPlan> = Vec::new();
        let mut joined_by = Joiner::And;
        let mut levels = 0;
        // Joiner before the last piece, if the last operand is a piece.
        let mut open: Option<Joiner> = None;
        for (joiner, part) in parts {
            let (operand, inside) = match part {
                ChainOperand::Own(plan, levels) => {
                    open = None;
                    (plan, levels)
                }
                ChainOperand::Text(bytes) => {
                    let at_start = operands.len() == 1;
                    if let Some(piece) = self.pieces.last_mut()
                        && open.is_some_and(|opened| at_start || opened == joiner)
                    {
                        piece.end = bytes.end;
                        continue;
                    }
                    open = Some(joiner);
                    self.push_piece(bytes)?;
                    (EvaluationPlan::Piece(self.pieces.len() - 1), 0)
                }
            };
            let changes = operands.len() > 1 && joiner != joined_by;
            if changes {
                operands = vec![EvaluationPlan::join(joined_by, operands)];
            }
            levels = (levels + usize::from(changes)).max(inside + 1);
            if levels > LEVELS_MAX {
                return Ok(None);
            }
            joined_by = joiner;
            operands.push(operand);
        }
        Ok(Some((EvaluationPlan::join(joined_by, operands), levels)))
    }

    fn push_piece(&mut self, bytes: Range<usize>) -> Result<(), FilterError> {
        if self.pieces.len() == PIECES_MAX {
            let (what, limit) = ("pieces of pcap-filter text between them", PIECES_MAX);
            let problem = FilterProblem::TooManyTerms { what, limit };
            return Err(FilterError::new(problem, self.structure.text, bytes));
        }
        self.pieces.push(bytes);
        Ok(())
    }

    fn own_in(&self, words: Range<usize>) -> bool {
        self.own_before[words.start] < self.own_before[words.end]
    }

    /// Whether the word at `start` begins with a digit and follows an own term and a joiner.
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

    fn misplaced(&self, index: usize, message: &'static str) -> FilterError {
        let Structure { text, words, .. } = self.structure;
        FilterError::new(
            FilterProblem::Misplaced(message),
            text,
            words[index].span.clone(),
        )
    }
}
