//! Errors that point at the place in what the user typed.

use std::{borrow::Cow, fmt::Write as _, ops::Range};

use crate::{ProgramError, Variable};

/// Characters of a long line that [`FilterError::render`] shows before the offending word.
const CONTEXT_CHARS_BEFORE: usize = 60;
/// Characters of a long line that it shows from the offending word on.
const CONTEXT_CHARS_AFTER: usize = 40;

/// Why a filter or template is none, and where in the user's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct FilterError {
    problem: FilterProblem,
    /// What the user typed.
    text: String,
    /// Bytes of the offending word, `start <= end <= text.len()`, on character boundaries.
    span: Range<usize>,
}

/// What is wrong. Each is the user's to mend, except [`FilterProblem::Library`] and [`FilterProblem::Program`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterProblem {
    /// The text is no expression: nothing valid goes on with the word at the place.
    #[error("syntax error")]
    Syntax,
    /// libpcap understands the expression and refuses it, for this link type or for any. This is its message; the place is the word
    /// that it means, as far as the message tells.
    #[error("{0}")]
    Refused(String),
    /// A `$name` that is none of ours: the name with its dollar sign.
    #[error("unknown variable {0}; there are {names}", names = Variable::all_names())]
    UnknownVariable(String),
    /// A variable in an expression that is used without a trigger packet.
    #[error("{0} needs a trigger packet, and there is none here")]
    NeedsTrigger(Variable),
    /// `$flow`, `$iface`, `$communityId` or a payload term where a term of our own cannot stand, and what to write instead.
    #[error("{0}")]
    Misplaced(&'static str),
    /// A payload term that is none. The place is the part of it that is wrong.
    #[error("{0}")]
    Payload(Cow<'static, str>),
    /// More terms of our own, or pieces of text between them, than an expression may have. The place is the first that is too many.
    #[error("more than {limit} {what} in one expression")]
    TooManyTerms {
        /// What there are too many of, in the plural.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A name of a host or network beside a variable: the text is compiled for each trigger, and names are looked up at the start only.
    #[error(
        "'{name}' is a name beside {variable}: names are looked up once, at the start, and this is filled in later; \
         write an address in the place of the name"
    )]
    NameAndVariable {
        /// The name.
        name: String,
        /// The first variable of the piece.
        variable: Variable,
    },
    /// A text with this name was to be compiled after names were looked up.
    #[error(
        "'{0}' is a name, and names are looked up once, at the start; write an address in its place"
    )]
    NameTooLate(String),
    /// A name of a host or network, in a text whose author must not cause look-ups.
    #[error(
        "'{0}' is a name, and looking it up asks other machines; write an address in its place"
    )]
    HostName(String),
    /// More text than can be compiled in reasonable time: the whole, or a part that must be compiled at once.
    #[error("{bytes} bytes are too long to compile at once; the limit is {limit_bytes}")]
    TooLong {
        /// Bytes of the text or its part.
        bytes: usize,
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// More primitives than can be compiled in reasonable time, where the expression cannot be cut into parts.
    #[error(
        "{primitives} primitives are too many to compile at once; the limit is {limit}: \
         write each with its qualifiers ('host A or host B'), without 'vlan', 'mpls', 'pppoes' or 'geneve'"
    )]
    TooMany {
        /// How many there are.
        primitives: usize,
        /// The limit.
        limit: usize,
    },
    /// libpcap compiled the expression into something that recorded packets cannot answer.
    #[error("{0}")]
    Program(ProgramError),
    /// libpcap cannot work at all here, for example for want of memory. This is what it said.
    #[error("libpcap: {0}")]
    Library(String),
}

impl FilterError {
    /// About the bytes `span` of `text`, moved outwards to character boundaries.
    pub(crate) fn new(problem: FilterProblem, text: &str, span: Range<usize>) -> Self {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let mut end = span.end.clamp(start, text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        Self {
            problem,
            text: text.to_owned(),
            span: start..end,
        }
    }

    /// About a text as a whole.
    /// An expression that somebody refuses before it is one, with a sentence of theirs.
    #[must_use]
    pub fn refused(why: String, text: &str) -> Self {
        Self::whole(FilterProblem::Refused(why), text)
    }

    pub(crate) fn whole(problem: FilterProblem, text: &str) -> Self {
        Self::new(problem, text, 0..text.len())
    }

    /// What is wrong.
    #[must_use]
    pub fn problem(&self) -> &FilterProblem {
        &self.problem
    }

    /// The whole text that the user typed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The bytes of the offending word in [`Self::text`], on character boundaries. Empty at the end of the text: something is
    /// missing there.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// The same error about `text`, of which the text so far was made; `map` takes its places to the new ones.
    pub(crate) fn relocated(self, text: &str, map: impl Fn(Range<usize>) -> Range<usize>) -> Self {
        Self::new(self.problem, text, map(self.span))
    }

    /// The message, the line of the text, and carets under the word, without a newline at the end:
    ///
    /// ```text
    /// filter: syntax error
    ///   tcp port 80 an host 1.2.3.4
    ///               ^^
    /// ```
    ///
    /// Columns are counted in characters; tabs and control characters are shown as spaces; of a long line only the
    /// part around the word is shown. Errors about a text as a whole have no second and third line.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = format!("filter: {self}");
        let whole = matches!(
            self.problem,
            FilterProblem::TooLong { .. }
                | FilterProblem::TooMany { .. }
                | FilterProblem::Library(_)
        );
        if whole {
            return out;
        }
        let Self { text, span, .. } = self;
        let start = span.start.min(text.trim_end().len());
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..]
            .find('\n')
            .map_or(text.len(), |newline| start + newline);
        let before: Vec<char> = text[line_start..start].chars().collect();
        let after: Vec<char> = text[start..line_end].trim_end().chars().collect();
        let marked = text[start..span.end.clamp(start, line_end)]
            .trim_end()
            .chars()
            .count();

        let cut_before = before.len().saturating_sub(CONTEXT_CHARS_BEFORE);
        let cut_after = after.len().min(CONTEXT_CHARS_AFTER);
        let printable = |shown: &[char]| {
            let shown = shown.iter();
            String::from_iter(shown.map(|c| if c.is_control() { ' ' } else { *c }))
        };
        let (lead, tail) = (
            printable(&before[cut_before..]),
            printable(&after[..cut_after]),
        );
        let left = if cut_before > 0 { "…" } else { "" };
        let right = if cut_after < after.len() { "…" } else { "" };

        let column = left.chars().count() + lead.chars().count();
        let carets = "^".repeat(marked.clamp(1, cut_after.max(1)));
        // Writing into a `String` cannot fail.
        let _ = write!(
            out,
            "\n  {left}{lead}{tail}{right}\n  {:column$}{carets}",
            ""
        );
        out
    }
}
