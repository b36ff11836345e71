//! Names of files with `*` and `?` in them.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

/// A path in whose last part `*` stands for any bytes and `?` for one, of files that do not begin with a dot unless it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    directory: PathBuf,
    name: String,
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory.join(&self.name).display().fmt(f)
    }
}

impl Glob {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let path = Path::new(text);
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or("name a file, or a socket: unix:PATH or unix-dgram:PATH")?;
        let directory = path.parent().unwrap_or_else(|| Path::new(""));
        if directory.to_str().is_none_or(|it| it.contains(['*', '?'])) {
            return Err(
                "'*' and '?' may stand in the file's name, not in its directory's".to_owned(),
            );
        }
        Ok(Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The files that there are now, in the order of their names.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let plain = self.directory.join(&self.name);
        if !self.name.contains(['*', '?']) {
            return if plain.exists() {
                vec![plain]
            } else {
                Vec::new()
            };
        }
        let here = if self.directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            &self.directory
        };
        let entries = fs::read_dir(here).into_iter().flatten().flatten();
        let is_one = |name: &str| {
            (self.name.starts_with('.') || !name.starts_with('.'))
                && matches(self.name.as_bytes(), name.as_bytes())
        };
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut paths: Vec<PathBuf> = names
            .filter(|name| is_one(name))
            .map(|name| self.directory.join(name))
            .filter(|path| path.is_file())
            .collect();
        paths.sort();
        paths
    }
}

/// Whether a name is one of a pattern. Goes back to the last star only: no pattern takes long.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name, mut star) = (0, 0, None);
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => match &mut star {
                Some((behind, taken)) => {
                    *taken += 1;
                    (at, in_name) = (*behind + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_take_what_they_say() {
        for (pattern, name, is_one) in [
            ("eve.json", "eve.json", true),
            ("eve*.json", "eve.json", true),
            ("eve*.json", "eve.7.json", true),
            ("eve*.json", "eve.7.json.1", false),
            ("eve.?.json", "eve.7.json", true),
            ("eve.?.json", "eve.17.json", false),
            ("*a*b*", "xxaxxabxx", true),
            ("*a*b", "xxaxxabxx", false),
            ("*", "", true),
            ("?", "", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                is_one,
                "{pattern} {name}"
            );
        }
        let slow = [b"*a".repeat(50), b"b".to_vec()].concat();
        assert!(!matches(&slow, &b"a".repeat(5000)));
    }

    #[test]
    fn files_are_found_by_name_and_hidden_ones_by_a_dot() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["eve.2.json", "eve.1.json", ".eve.3.json", "other"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = |pattern: &str| {
            let glob = Glob::new(&format!("{}/{pattern}", dir.path().display())).unwrap();
            let paths = glob.paths().into_iter();
            let names = paths.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(found("*eve*.json"), ["eve.1.json", "eve.2.json"]);
        assert_eq!(found(".eve*"), [".eve.3.json"]);
        assert_eq!(found("eve.1.json"), ["eve.1.json"]);
        assert!(found("none").is_empty() && found("no*ne").is_empty());
        assert!(Glob::new("a*/eve.json").is_err() && Glob::new("..").is_err());
    }
}
