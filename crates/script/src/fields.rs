//! The structs that modules declare for states and keys. Fields are scalars and arrays of scalars,
//! without pointers.
//!
//! The text of the declaration is not passed to a C compiler. `module.lua` makes its own struct
//! from the list of fields, with its own names, and with checked access to each field.

use std::ops::Range;

/// Maximum number of fields in a struct.
const FIELDS_MAX: usize = 64;
/// Maximum number of elements in an array.
const ELEMENTS_MAX: usize = 1024;

/// Types of fields, as in C, with their sizes in bytes.
const TYPES: [(&str, usize); 12] = [
    ("uint8_t", 1),
    ("int8_t", 1),
    ("uint16_t", 2),
    ("int16_t", 2),
    ("uint32_t", 4),
    ("int32_t", 4),
    ("uint64_t", 8),
    ("int64_t", 8),
    ("float", 4),
    ("double", 8),
    ("bool", 1),
    ("char", 1),
];

/// A field of a struct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateField {
    pub(crate) name: String,
    /// One of [`TYPES`].
    pub(crate) kind: &'static str,
    /// Number of elements of an array. `None` if the field is not an array.
    pub(crate) elements: Option<usize>,
}

/// The reason why a declaration is invalid, and its position: a range of bytes in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) what: String,
    pub(crate) at: Range<usize>,
}

/// Reads a declaration such as `struct { uint64_t packets; char name[16]; }`. The struct may have a
/// name. `struct` may be missing, and then also the braces.
pub(crate) fn read(text: &str) -> Result<Vec<StateField>, FieldError> {
    let mut words = Words { text, at: 0 };
    let is_struct = words.skip("struct");
    if is_struct && words.peek().0 != "{" {
        words.name("the name of a struct")?;
    }
    let is_braced = if is_struct {
        words.expect("{")?;
        true
    } else {
        words.skip("{")
    };
    let mut fields: Vec<StateField> = Vec::new();
    while !matches!(words.peek().0, "" | "}") {
        let (word, at) = words.next();
        let kind = TYPES.iter().find(|(kind, _)| *kind == word);
        let Some((kind, _)) = kind else {
            let types = TYPES.map(|(kind, _)| kind).join(", ");
            return Err(FieldError {
                what: format!("'{word}' is no type of a field: {types} are"),
                at,
            });
        };
        loop {
            let (name, at) = words.name("the name of a field")?;
            if fields.iter().any(|field| field.name == name) {
                let what = format!("there are two fields '{name}'");
                return Err(FieldError { what, at });
            }
            if fields.len() == FIELDS_MAX {
                let what = format!("more than {FIELDS_MAX} fields");
                return Err(FieldError { what, at });
            }
            let elements = if words.skip("[") {
                let elements = words.elements()?;
                words.expect("]")?;
                Some(elements)
            } else {
                None
            };
            fields.push(StateField {
                name: name.to_owned(),
                kind,
                elements,
            });
            if !words.skip(",") {
                break;
            }
        }
        words.expect(";")?;
    }
    if is_braced {
        words.expect("}")?;
        words.skip(";");
    }
    match words.next() {
        ("", _) => Ok(fields),
        (word, at) => Err(FieldError {
            what: format!("'{word}' after the end of the struct"),
            at,
        }),
    }
}

/// The words of a declaration: names, numbers, and single other characters.
#[derive(Debug)]
struct Words<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Words<'t> {
    /// The next word and its position. The word is empty at the end.
    fn peek(&self) -> (&'t str, Range<usize>) {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        let start = self.text.len() - trimmed.len();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let len = match trimmed.find(|c| !is_part(c)) {
            Some(0) => trimmed.chars().next().map_or(0, char::len_utf8),
            Some(len) => len,
            None => trimmed.len(),
        };
        (&trimmed[..len], start..start + len)
    }

    fn next(&mut self) -> (&'t str, Range<usize>) {
        let (word, at) = self.peek();
        self.at = at.end;
        (word, at)
    }

    /// Skips a word if it is the next word.
    fn skip(&mut self, word: &str) -> bool {
        let is_next = self.peek().0 == word;
        if is_next {
            self.next();
        }
        is_next
    }

    fn expect(&mut self, word: &str) -> Result<(), FieldError> {
        let (found, at) = self.next();
        if found == word {
            return Ok(());
        }
        let found = if found.is_empty() { "the end" } else { found };
        Err(FieldError {
            what: format!("'{word}' expected, found '{found}'"),
            at,
        })
    }

    fn name(&mut self, what: &str) -> Result<(&'t str, Range<usize>), FieldError> {
        let (word, at) = self.next();
        if word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            return Ok((word, at));
        }
        Err(FieldError {
            what: format!("{what} expected, found '{word}'"),
            at,
        })
    }

    fn elements(&mut self) -> Result<usize, FieldError> {
        let (word, at) = self.next();
        let elements = word.parse().ok();
        elements
            .filter(|count| (1..=ELEMENTS_MAX).contains(count))
            .ok_or_else(|| FieldError {
                what: format!("an array has 1 to {ELEMENTS_MAX} elements, not '{word}'"),
                at,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_c_has_them() {
        let field = |name: &str, kind, elements| StateField {
            name: name.to_owned(),
            kind,
            elements,
        };
        let fields = [
            field("packets", "uint64_t", None),
            field("bytes", "uint64_t", None),
            field("name", "char", Some(16)),
        ];
        for text in [
            "struct { uint64_t packets, bytes; char name[16]; }",
            "struct state{uint64_t packets;uint64_t bytes;char name [ 16 ] ; } ;",
            "uint64_t packets; uint64_t bytes;\n  char name[16];",
        ] {
            assert_eq!(read(text).unwrap(), fields, "{text}");
        }
        assert_eq!(read("struct {}"), Ok(Vec::new()));
        assert_eq!(read(""), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, place, what) in [
            ("struct { void *next; }", "void", "no type"),
            ("struct { char *name; }", "*", "name of a field"),
            ("struct { uint8_t a; uint8_t a; }", "a; }", "two fields"),
            ("struct { uint8_t a[0]; }", "0", "1 to 1024"),
            ("struct { uint8_t a[n]; }", "n]", "1 to 1024"),
            ("struct { uint8_t a[2000]; }", "2000", "1 to 1024"),
            ("struct { uint8_t a }", "}", "';' expected"),
            ("struct { uint8_t a; ", "", "found 'the end'"),
            ("struct { uint8_t a; } b", "b", "after the end"),
            (
                "struct { struct { int8_t a; } b; }",
                "struct { int8_t",
                "no type",
            ),
            ("struct { uint8_t größe; }", "ö", "';' expected"),
        ] {
            let wrong = read(text).unwrap_err();
            assert!(wrong.what.contains(what), "{text}: {wrong:?}");
            assert!(
                text[wrong.at.start..].starts_with(place),
                "{text}: {wrong:?}"
            );
            assert!(text.get(wrong.at.clone()).is_some(), "{text}: {wrong:?}");
        }
        let many: String = (0..65).map(|n| format!("bool b{n};")).collect();
        assert!(read(&many).unwrap_err().what.contains("64 fields"));
    }
}
