//! The template of the names of dump files.

use crate::time::file_stamp;

/// Maximum length of a rule, a host or an interface in a name, in bytes.
const PART_BYTES: usize = 64;
/// Maximum length of a name in bytes, without extensions and without a number that is appended to
/// distinguish dumps. With these the name stays below 255 bytes, the limit of most file systems.
const STEM_BYTES: usize = 190;

/// The form of the names of dump files: letters, digits, `.`, `_` and `-`, and placeholders in
/// braces.
///
/// | placeholder | value |
/// |---|---|
/// | `{time}` | the trigger's time, UTC: `20261120T191503.123456789Z` |
/// | `{date}` | the day of the trigger: `20261120` |
/// | `{number}` | the number of the dump, higher once a name was taken, at least 4 digits |
/// | `{rule}` | [`NameFacts::rule`] |
/// | `{interface}` | the interface of the trigger packet, or `any` |
/// | `{host}` | the name of this system |
///
/// Each run of other characters in a value becomes at most one `-`. Names are cut at 190 bytes.
/// Names need not be unique: if a name is taken, the next `{number}` is tried, or `-2`, `-3` and so
/// on are appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameTemplate(Vec<TemplatePiece>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePiece {
    Text(String),
    Time,
    Date,
    Number,
    Rule,
    Interface,
    Host,
}

/// The facts of a dump for the template.
#[derive(Debug, Clone, Default)]
pub struct NameFacts {
    /// Stamp of the trigger, ns since the epoch.
    pub trigger_ns: i64,
    /// The expression of the trigger rule, the name of the script or module, `alert` or `manual`.
    /// If a command triggered a rule, the name of the rule.
    pub rule: String,
    /// Interface of the trigger packet. `None` for a trigger without a packet: a command or an
    /// alert.
    pub interface: Option<String>,
}

impl NameTemplate {
    /// Checks a template.
    ///
    /// # Errors
    /// A message for the user.
    pub fn new(text: &str) -> Result<Self, String> {
        let known = "{time} {date} {number} {rule} {interface} {host}";
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (plain, more) = rest.split_once('{').unwrap_or((rest, ""));
            if let Some(bad) = plain.chars().find(|c| !is_good(*c)) {
                return Err(format!(
                    "{bad:?} may not be in a file's name: letters, digits, '.', '_' and '-', and {known}"
                ));
            }
            if !plain.is_empty() {
                pieces.push(TemplatePiece::Text(plain.to_owned()));
            }
            if plain.len() == rest.len() {
                break;
            }
            let (name, behind) = more
                .split_once('}')
                .ok_or_else(|| format!("'{{{more}' has no '}}'"))?;
            pieces.push(match name {
                "time" => TemplatePiece::Time,
                "date" => TemplatePiece::Date,
                "number" => TemplatePiece::Number,
                "rule" => TemplatePiece::Rule,
                "interface" => TemplatePiece::Interface,
                "host" => TemplatePiece::Host,
                _ => return Err(format!("nothing is called {{{name}}}: there are {known}")),
            });
            rest = behind;
        }
        if text.starts_with('.') || pieces.is_empty() || text.len() > STEM_BYTES {
            return Err(format!(
                "a name is 1 to {STEM_BYTES} bytes long, and does not begin with '.'"
            ));
        }
        Ok(Self(pieces))
    }

    /// A name without extension. `again` is 0 for the first name of a dump, and larger for each
    /// further name, which also needs another `number`.
    pub fn stem(&self, facts: &NameFacts, host: &str, number: u64, again: u64) -> String {
        let mut stem = String::new();
        for piece in &self.0 {
            match piece {
                TemplatePiece::Text(text) => stem.push_str(text),
                TemplatePiece::Time => stem.push_str(&file_stamp(facts.trigger_ns)),
                TemplatePiece::Date => stem.push_str(&file_stamp(facts.trigger_ns)[..DATE_BYTES]),
                TemplatePiece::Number => stem.push_str(&format!("{number:04}")),
                TemplatePiece::Rule => stem.push_str(&part(&facts.rule, "all")),
                TemplatePiece::Interface => {
                    stem.push_str(&part(facts.interface.as_deref().unwrap_or_default(), "any"));
                }
                TemplatePiece::Host => stem.push_str(&part(host, "localhost")),
            }
        }
        stem.truncate(STEM_BYTES);
        // The cut may have removed the number that makes names different.
        let is_numbered = self.0.contains(&TemplatePiece::Number) && stem.len() < STEM_BYTES;
        if again > 0 && !is_numbered {
            stem.push_str(&format!("-{}", again + 1));
        }
        stem
    }
}

/// The default form is `{time}-{number}-{rule}`.
impl Default for NameTemplate {
    fn default() -> Self {
        let dash = || TemplatePiece::Text("-".to_owned());
        Self(vec![
            TemplatePiece::Time,
            dash(),
            TemplatePiece::Number,
            dash(),
            TemplatePiece::Rule,
        ])
    }
}

/// Length of the date `20261120`, with which a stamp begins.
const DATE_BYTES: usize = 8;

/// A text reduced to `[A-Za-z0-9._-]`: each run of other characters becomes at most one `-`. Cut at
/// 64 bytes, without `-` and `.` at the ends. `empty` if nothing is left.
fn part(text: &str, empty: &str) -> String {
    let mut part = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            part.push(c);
        } else if !part.is_empty() && !part.ends_with('-') {
            part.push('-');
        }
        if part.len() >= PART_BYTES {
            break;
        }
    }
    let part = part.trim_matches(['-', '.']);
    if part.is_empty() { empty } else { part }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(rule: &str) -> NameFacts {
        NameFacts {
            trigger_ns: 1_795_202_103_123_456_789,
            rule: rule.to_owned(),
            interface: Some("eth0".to_owned()),
        }
    }

    #[test]
    fn a_stem_sorts_by_time_and_is_safe() {
        let default = NameTemplate::default();
        assert_eq!(
            default.stem(&facts("udp port 60000"), "", 1, 0),
            "20261120T191503.123456789Z-0001-udp-port-60000"
        );
        assert_eq!(NameTemplate::new("{time}-{number}-{rule}"), Ok(default));
        let rule = |text: &str| part(text, "all");
        assert_eq!(
            rule("tcp[tcpflags] & (tcp-syn|tcp-fin) != 0"),
            "tcp-tcpflags-tcp-syn-tcp-fin-0"
        );
        assert_eq!(rule("../../etc/passwd"), "etc-passwd");
        assert_eq!(rule(""), "all");
        assert_eq!(rule("härte"), "h-rte");
        assert!(rule(&"host 10.0.0.1 or ".repeat(50)).len() <= PART_BYTES);
    }

    #[test]
    fn a_template_is_filled_in() {
        let stem = |text: &str, again| {
            let template = NameTemplate::new(text).unwrap();
            template.stem(&facts("tcp"), "sensor-1.example.org", 17, again)
        };
        let all = "{host}_{date}.{interface}-{rule}-{number}";
        assert_eq!(stem(all, 0), "sensor-1.example.org_20261120.eth0-tcp-0017");
        // The name is taken: the caller passes another number, or a number is appended.
        assert_eq!(stem(all, 1), stem(all, 0));
        assert_eq!(
            [0, 1, 2].map(|n| stem("dump", n)),
            ["dump", "dump-2", "dump-3"]
        );
        let long = "{rule}".repeat(30) + "{number}";
        assert_eq!(stem(&long, 0).len(), 30 * 3 + 4);
        let by_hand = NameTemplate::new("{interface}-{rule}{rule}{rule}{rule}{number}").unwrap();
        let facts = NameFacts {
            rule: "x".repeat(100),
            ..NameFacts::default()
        };
        let cut = by_hand.stem(&facts, "", 1, 3);
        assert!(cut.starts_with("any-x") && cut.ends_with("x-4"), "{cut}");
        assert_eq!(cut.len(), STEM_BYTES + 2);
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for (text, word) in [
            ("", "1 to 190"),
            (".hidden", "begin with '.'"),
            ("a/b", "'/'"),
            ("../{time}", "'/'"),
            ("{time", "no '}'"),
            ("time}", "'}'"),
            ("{uid}", "{uid}"),
            ("{}", "{}"),
            ("{{time}}", "{{time}"),
            ("a b", "' '"),
            ("ä", "'ä'"),
            ("a\0", r"'\0'"),
            (&"x".repeat(191), "190"),
        ] {
            let refused = NameTemplate::new(text).unwrap_err();
            assert!(refused.contains(word), "{text:?}: {refused}");
        }
    }
}
