//! The text of a configuration file, and errors with their place in the text.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::OFlags;

/// Maximum size of a file in bytes, enough for 16,384 rules of 500 bytes.
const BYTES_MAX: u64 = 8 << 20;
/// Maximum number of characters that are shown before the place of an error. Twice this number is
/// the maximum for the whole line.
const SHOWN_CHARS: usize = 60;

/// The text of a file. Empty without a file.
#[derive(Debug, Default)]
pub(crate) struct ConfigText {
    name: String,
    pub(super) text: String,
}

/// An error of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigFault {
    /// Byte range in the text. `None`: the error has no place in the file, for example an error of
    /// the command line.
    pub(super) span: Option<Range<usize>>,
    /// The message. Further lines contain details.
    pub(super) message: String,
}

/// The place of a value.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Unknown,
    /// Byte range in the file.
    File(Range<usize>),
    /// The option that sets the value.
    Option(String),
}

impl From<Option<Range<usize>>> for Place {
    fn from(span: Option<Range<usize>>) -> Self {
        span.map_or(Self::Unknown, Self::File)
    }
}

impl Place {
    /// An error of the value.
    pub(super) fn fault(self, message: String) -> ConfigFault {
        match self {
            Self::Unknown => ConfigFault::nowhere(message),
            Self::File(span) => ConfigFault::at(span, message),
            Self::Option(option) => ConfigFault::nowhere(format!("{option}: {message}")),
        }
    }
}

impl ConfigFault {
    pub(super) fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            span: Some(span),
            message: message.into(),
        }
    }

    /// An error without a place in the file.
    pub(super) fn nowhere(message: impl Into<String>) -> Self {
        Self {
            span: None,
            message: message.into(),
        }
    }
}

impl ConfigText {
    /// Reads a file.
    ///
    /// # Errors
    /// A message with the name of the file and, if possible, the place.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let failed = |error: std::io::Error| {
            let hint = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "; it is read as the user that -Z names, once privileges are given up"
                }
                _ => "",
            };
            format!("cannot read {name}: {error}{hint}")
        };
        // Without `NONBLOCK`, opening a pipe without a writer would block.
        let mut options = File::options();
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let file = options.read(true).custom_flags(nonblocking).open(path);
        let file = file.map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            return Err(format!(
                "{name} is no regular file, which can be read again at a reload"
            ));
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!(
                "{name} has more than {} MiB, which is the limit",
                BYTES_MAX >> 20
            ));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let bytes = error.into_bytes();
                let text = String::from_utf8_lossy(&bytes[..valid]).into_owned();
                let text = Self { name, text };
                let (line, column) = text.place(valid);
                let (name, byte) = (&text.name, bytes[valid]);
                Err(format!(
                    "{name}:{line}:{column}: the byte 0x{byte:02x} is no UTF-8 text"
                ))
            }
        }
    }

    #[cfg(test)]
    pub(super) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// The file's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The line and the column of a byte offset. The column counts characters. Both start at 1.
    pub(super) fn place(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (line, before[line_start..].chars().count() + 1)
    }

    /// Formats an error: `FILE:LINE:COLUMN: message`, then the line with the place marked. An error
    /// without a place is only its message.
    pub(super) fn render(&self, fault: &ConfigFault) -> String {
        let name = &self.name;
        let Some(span) = &fault.span else {
            return fault.message.clone();
        };
        let (line, column) = self.place(span.start);
        let (first, rest) = match fault.message.split_once('\n') {
            Some((first, rest)) => (first, format!("\n{rest}")),
            None => (fault.message.as_str(), String::new()),
        };
        let marked = self.text.get(span.clone()).unwrap_or_default();
        let marked = marked.lines().next().unwrap_or_default().chars().count();
        let marks = "^".repeat(marked.clamp(1, SHOWN_CHARS));
        let before = column - 1;
        let skipped = before.saturating_sub(SHOWN_CHARS);
        let dots = if skipped > 0 { "…" } else { "" };
        let shown = self.text.lines().nth(line - 1).unwrap_or_default();
        let shown = shown.chars().skip(skipped).take(2 * SHOWN_CHARS);
        // Control characters could control a terminal.
        let shown: String = shown.collect::<String>().replace(char::is_control, " ");
        let margin = " ".repeat(line.to_string().len());
        let before = " ".repeat(before - skipped + dots.chars().count());
        format!(
            "{name}:{line}:{column}: {first}\n {line} | {dots}{shown}\n {margin} | {before}{marks}{rest}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ConfigText {
        let (name, text) = ("f".to_owned(), text.to_owned());
        ConfigText { name, text }
    }

    #[test]
    fn places_are_lines_and_characters() {
        let text = text("a = 1\n\u{e9}\u{e9} = 2\r\n\n");
        assert_eq!(text.place(0), (1, 1));
        assert_eq!(text.place(4), (1, 5));
        assert_eq!(text.place(6), (2, 1));
        assert_eq!(
            text.place(8),
            (2, 2),
            "in the middle of a character's bytes"
        );
        assert_eq!(text.place(text.text.len()), (4, 1));
        assert_eq!(text.place(10_000), (4, 1));
    }

    #[test]
    fn a_fault_is_shown_at_its_place() {
        let text = text("a = 1\n\tb\u{1b} = \"\u{e9}t\"\n");
        let value = text.text.find('"').unwrap();
        let fault = ConfigFault::at(value..value + 5, "it is wrong\nfor a reason");
        assert_eq!(
            text.render(&fault),
            "f:2:7: it is wrong\n 2 |  b  = \"\u{e9}t\"\n   |       ^^^^\nfor a reason"
        );
        let long = self::text(&format!("{} = {}", "k".repeat(500), "v".repeat(500)));
        let rendered = long.render(&ConfigFault::at(503..1003, "too long"));
        assert!(
            rendered.starts_with("f:1:504: too long\n 1 | …"),
            "{rendered}"
        );
        assert!(rendered.lines().all(|line| line.chars().count() < 140));
        let end = long.render(&ConfigFault::at(1003..1003, "goes on"));
        assert!(end.ends_with('^'), "{end}");
    }
}
