//! Errors that point at the place in what the user typed.

use std::{fmt::Write as _, ops::Range};

use crate::{PayloadError, ProgramError, Variable};

/// Characters of a long line that [`FilterError::render`] shows before the offending word.
const CONTEXT_CHARS_BEFORE: usize = 60;
/// Characters of a long line that it shows from the offending word on.
const CONTEXT_CHARS_AFTER: usize = 40;

/// Why a filter or template is none. Every variant is the user's to mend, except [`FilterError::Library`] and
/// [`FilterError::Program`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The text is no expression: nothing valid goes on with the word at the place.
    #[error("syntax error")]
    Syntax {
        /// Where.
        place: Place,
    },
    /// libpcap understands the expression and refuses it, for this link type or for any.
    #[error("{message}")]
    Refused {
        /// The word that libpcap means, as far as its message tells.
        place: Place,
        /// libpcap's message.
        message: String,
    },
    /// A `$name` that is none of ours.
    #[error("unknown variable {name}; there are {}", Variable::all_names())]
    UnknownVariable {
        /// Where.
        place: Place,
        /// The name with its dollar sign.
        name: String,
    },
    /// A variable in an expression that is used without a trigger packet.
    #[error("{variable} needs a trigger packet, and there is none here")]
    NeedsTrigger {
        /// Where.
        place: Place,
        /// The variable.
        variable: Variable,
    },
    /// `$flow`, `$iface`, `$communityId` or a payload term where a term of our own cannot stand.
    #[error("{message}")]
    Misplaced {
        /// Where.
        place: Place,
        /// What to write instead.
        message: String,
    },
    /// A payload term that is none.
    #[error("{error}")]
    Payload {
        /// The part of it that is wrong.
        place: Place,
        /// What is wrong.
        error: PayloadError,
    },
    /// More terms of our own, or pieces of text between them, than an expression may have.
    #[error("more than {limit} {what} in one expression")]
    TooManyTerms {
        /// The first that is too many.
        place: Place,
        /// Of what there are too many, in the plural.
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
        place: Place,
        /// The same.
        name: String,
        /// The first variable of the piece.
        variable: Variable,
    },
    /// A text with a name was to be compiled after names were looked up.
    #[error(
        "'{name}' is a name, and names are looked up once, at the start; write an address in its place"
    )]
    NameTooLate {
        /// The name.
        place: Place,
        /// The same.
        name: String,
    },
    /// More text than can be compiled in reasonable time: the whole, or a part that must be compiled at once.
    #[error("{} bytes are too long to compile at once; the limit is {limit_bytes}", place.span.len())]
    TooLong {
        /// The text or its part.
        place: Place,
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// More primitives than can be compiled in reasonable time, where the expression cannot be cut into parts.
    #[error(
        "{primitives} primitives are too many to compile at once; the limit is {limit}: \
         write each with its qualifiers ('host A or host B'), without 'vlan', 'mpls', 'pppoes' or 'geneve'"
    )]
    TooMany {
        /// The text or its part.
        place: Place,
        /// How many there are.
        primitives: usize,
        /// The limit.
        limit: usize,
    },
    /// libpcap compiled the expression into something that recorded packets cannot answer.
    #[error("{error}")]
    Program {
        /// The whole text.
        place: Place,
        /// What the program asks for.
        error: ProgramError,
    },
    /// libpcap cannot work at all here, for example for want of memory.
    #[error("libpcap: {message}")]
    Library {
        /// The whole text.
        place: Place,
        /// What libpcap said.
        message: String,
    },
}

/// A place in a text that the user typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The whole text.
    pub text: String,
    /// Bytes of the offending word, `start <= end <= text.len()`, on character boundaries. Empty at the end of the
    /// text: something is missing there.
    pub span: Range<usize>,
}

impl Place {
    /// The bytes `span` of `text`, moved outwards to character boundaries.
    #[must_use]
    pub fn new(text: &str, span: Range<usize>) -> Self {
        let mut start = span.start.min(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let mut end = span.end.clamp(start, text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        Self {
            text: text.to_owned(),
            span: start..end,
        }
    }
}

impl FilterError {
    /// Where in the user's text.
    #[must_use]
    pub fn place(&self) -> &Place {
        match self {
            Self::Syntax { place }
            | Self::Refused { place, .. }
            | Self::UnknownVariable { place, .. }
            | Self::NeedsTrigger { place, .. }
            | Self::Misplaced { place, .. }
            | Self::Payload { place, .. }
            | Self::TooManyTerms { place, .. }
            | Self::NameAndVariable { place, .. }
            | Self::NameTooLate { place, .. }
            | Self::TooLong { place, .. }
            | Self::TooMany { place, .. }
            | Self::Program { place, .. }
            | Self::Library { place, .. } => place,
        }
    }

    /// The bytes of the offending word in the user's text.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.place().span.clone()
    }

    /// The same error about `text`, of which the text so far was made; `map` takes its places to the new ones.
    pub(crate) fn relocated(
        mut self,
        text: &str,
        map: impl Fn(Range<usize>) -> Range<usize>,
    ) -> Self {
        let place = match &mut self {
            Self::Syntax { place }
            | Self::Refused { place, .. }
            | Self::UnknownVariable { place, .. }
            | Self::NeedsTrigger { place, .. }
            | Self::Misplaced { place, .. }
            | Self::Payload { place, .. }
            | Self::TooManyTerms { place, .. }
            | Self::NameAndVariable { place, .. }
            | Self::NameTooLate { place, .. }
            | Self::TooLong { place, .. }
            | Self::TooMany { place, .. }
            | Self::Program { place, .. }
            | Self::Library { place, .. } => place,
        };
        *place = Place::new(text, map(place.span.clone()));
        self
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
            self,
            Self::TooLong { .. } | Self::TooMany { .. } | Self::Library { .. }
        );
        if whole {
            return out;
        }
        let Place { text, span } = self.place();
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
        let lead: String = before[cut_before..]
            .iter()
            .copied()
            .map(printable)
            .collect();
        let tail: String = after[..cut_after].iter().copied().map(printable).collect();
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

fn printable(character: char) -> char {
    if character.is_control() {
        ' '
    } else {
        character
    }
}
