//! Errors that point into the text that the user typed.

use std::{borrow::Cow, fmt::Write as _, ops::Range};

use crate::{ProgramError, Variable, display_filter};

/// Maximum number of characters that [`FilterError::render`] shows before the offending word.
const CONTEXT_CHARS_BEFORE: usize = 60;
/// Maximum number of characters that [`FilterError::render`] shows from the offending word on.
const CONTEXT_CHARS_AFTER: usize = 40;

/// The reason why a text is no filter or template, and the place in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct FilterError {
    problem: FilterProblem,
    text: String,
    /// Bytes in `text`: `start <= end <= text.len()`, on character boundaries.
    span: Range<usize>,
}

/// Kind of error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterProblem {
    /// The text is no expression.
    #[error("syntax error")]
    Syntax,
    /// libpcap rejects the expression for another reason than its syntax: libpcap's message. Or the
    /// message of a caller of [`FilterError::refused`].
    #[error("{0}")]
    Refused(String),
    /// An unknown `$name`, dollar sign included.
    #[error("unknown variable {0}; there are {names}", names = Variable::all_names())]
    UnknownVariable(String),
    /// A variable in an expression that is used without a trigger packet.
    #[error("{0} needs a trigger packet, and there is none here")]
    NeedsTrigger(Variable),
    /// An own term (`$flow`, `$iface`, `$communityId` or a payload term) at a wrong place, a value
    /// without qualifiers after an own term, or too deep nesting. Contains the message.
    #[error("{0}")]
    Misplaced(&'static str),
    /// An invalid payload term, or more patterns than allowed. Contains the message.
    #[error("{0}")]
    Payload(Cow<'static, str>),
    /// The expression has too many own terms, or too many pieces of text between own terms.
    #[error("more than {limit} {what} in one expression")]
    TooManyTerms {
        /// Name of the exceeded kind, in the plural.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A name that libpcap must look up, in the same piece as a variable. The piece is compiled
    /// after the trigger, when names must not be looked up any more.
    #[error(
        "'{name}' is a name next to {variable}: names are looked up once, before {variable} is filled in; \
         write an address instead of the name"
    )]
    NameAndVariable {
        /// The name.
        name: String,
        /// The first variable of the piece.
        variable: Variable,
    },
    /// A name in a text that is to be compiled after the names were looked up.
    #[error("'{0}' is a name, and names are not looked up here; write an address instead")]
    NameTooLate(String),
    /// A name that is not a port's or a protocol's, in a text whose author must not cause look-ups
    /// on other machines.
    #[error("'{0}' is a name, and looking it up asks other machines; write an address instead")]
    HostName(String),
    /// The text, or a part that libpcap must compile as a whole, has too many bytes.
    #[error("{bytes} bytes are too long to compile at once; the limit is {limit_bytes}")]
    TooLong {
        /// Length of the text or part in bytes.
        bytes: usize,
        /// Limit in bytes.
        limit_bytes: usize,
    },
    /// The expression, or a part that libpcap must compile as a whole, has too many primitives.
    #[error(
        "{primitives} primitives are too many to compile at once; the limit is {limit}: \
         write each with its qualifiers ('host A or host B'), without 'vlan', 'mpls', 'pppoes' or 'geneve'"
    )]
    TooMany {
        /// Approximate number of primitives, operands of arithmetic included.
        primitives: usize,
        /// The limit.
        limit: usize,
    },
    /// [`crate::Program::new`] rejects libpcap's program.
    #[error("{0}")]
    Program(ProgramError),
    /// libpcap opens no handle for the link type, for example for lack of memory. Contains the
    /// message.
    #[error("libpcap: {0}")]
    Library(String),
}

impl FilterError {
    /// An error about the bytes `span` of `text`. The span grows to character boundaries.
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

    /// An error about a whole text, with the caller's message `why`.
    #[must_use]
    pub fn refused(why: String, text: &str) -> Self {
        Self::whole(FilterProblem::Refused(why), text)
    }

    pub(crate) fn whole(problem: FilterProblem, text: &str) -> Self {
        Self::new(problem, text, 0..text.len())
    }

    /// Kind of error.
    #[must_use]
    pub fn problem(&self) -> &FilterProblem {
        &self.problem
    }

    /// The text into which [`Self::span`] points.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Bytes of the offending words in [`Self::text`], on character boundaries. Empty, for example,
    /// if something is missing here.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Moves the error to `text`, from which the current text was made. `map` converts places.
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
    /// Tabs and control characters appear as spaces. A long line is shortened to the part around
    /// the word. [`FilterProblem::TooLong`], [`FilterProblem::TooMany`] and
    /// [`FilterProblem::Library`] have the first line only. A text that looks like a display filter
    /// of Wireshark may get a last line with advice.
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
        if let Some(suggestion) = display_filter::suggestion(text) {
            let _ = write!(out, "\n  {suggestion}");
        }
        out
    }
}
