//! `--alerts`: sources of IDS alerts, and the recorder's configuration for alerts.

mod follow;
mod line_queue;
mod live;
mod socket;

use std::{
    fs::File,
    io::{BufReader, Read as _},
    path::{Component, Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use glob::{Pattern, glob};
use retroscope_alert::{LineSplitter, ParsedLine, read};
use retroscope_recorder::{Alert, AlertConfig, AlertLines};

pub(crate) use self::live::{AlertThreads, BoundAlerts};
use super::config::Alerts;
use crate::failure::Failure;

/// Size of a read, in bytes.
const READ_BYTES: usize = 256 << 10;

/// A source of alerts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AlertSource {
    Stream(PathBuf),
    Datagrams(PathBuf),
    /// A path, or a pattern of paths with `*`, `?` and `[…]`.
    Files(String),
}

impl FromStr for AlertSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let socket = |path: &str| match path {
            "" => Err("name the socket: unix:PATH".to_owned()),
            path => Ok(PathBuf::from(path)),
        };
        if let Some(path) = text.strip_prefix("unix-dgram:") {
            return Ok(Self::Datagrams(socket(path)?));
        }
        match text.strip_prefix("unix:") {
            Some(path) => Ok(Self::Stream(socket(path)?)),
            None if text.is_empty() => {
                Err("name a file, or a socket: unix:PATH or unix-dgram:PATH".to_owned())
            }
            None if Path::new(text).exists() => Ok(Self::Files(text.to_owned())),
            // `**` would walk whole directory trees.
            None if text.contains("**") => {
                Err("'**' is not supported: '*' matches any part of one name".to_owned())
            }
            None => match Pattern::new(text) {
                Ok(_) => Ok(Self::Files(text.to_owned())),
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

/// The files that match a pattern of `--alerts` now, in the order of their names. A name that
/// begins with a dot needs a part of the pattern that begins with a dot. A directory that cannot be
/// read has no files, and a name that is not UTF-8 matches no pattern.
fn files(pattern: &str) -> Vec<PathBuf> {
    // A file name may contain wildcard characters.
    if Path::new(pattern).exists() {
        return vec![PathBuf::from(pattern)];
    }
    let is_hidden = |name: &Component<'_>| matches!(name, Component::Normal(name) if name.as_encoded_bytes().starts_with(b"."));
    let is_meant = |path: &PathBuf| {
        let parts = Path::new(pattern).components().rev();
        let mut names = path.components().rev().zip(parts);
        names.all(|(name, part)| !is_hidden(&name) || is_hidden(&part))
    };
    // `glob` has an option for hidden names, which panics on a name that is not UTF-8.
    let paths = glob(pattern).into_iter().flatten().flatten();
    paths
        .filter(|path| is_meant(path) && path.is_file())
        .collect()
}

/// Counts a line, unless the line is empty. Returns the alert if the line is an alert.
fn count(counts: &mut AlertLines, line: &[u8]) -> Option<Arc<Alert>> {
    if line.is_empty() {
        return None;
    }
    counts.lines += 1;
    match read(line) {
        ParsedLine::Alert { alert, after_torn } => {
            counts.torn += u64::from(after_torn);
            counts.alerts += 1;
            return Some(Arc::from(alert));
        }
        ParsedLine::Ignored => counts.ignored += 1,
        ParsedLine::Torn => counts.torn += 1,
        ParsedLine::Wrong(_) => counts.wrong += 1,
    }
    None
}

impl Alerts {
    /// The alert configuration of the recorder. With -r, reads all alerts.
    pub(crate) fn config(&self, offline: bool) -> Result<AlertConfig, Failure> {
        let mut config = AlertConfig {
            are_expected: !self.from.is_empty(),
            delay: *self.delay,
            max_dumps: self.max_dumps.0.0 as usize,
            window_bytes: self.budget.0.0,
            ..AlertConfig::default()
        };
        if offline {
            let counts = &mut config.lines;
            for source in self.from.values() {
                let AlertSource::Files(pattern) = source else {
                    return Err(Failure::usage(
                        "--alerts: with -r alerts come from files, which are there when it starts",
                    ));
                };
                let paths = files(pattern);
                if paths.is_empty() {
                    return Err(Failure::failed(format!(
                        "--alerts {pattern}: there is no such file"
                    )));
                }
                for path in paths {
                    let read = read_file(&path, counts, &mut config.alerts);
                    read.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
                }
            }
        }
        Ok(config)
    }
}

/// Appends all alerts of a file to `alerts`, in the order of the file.
fn read_file(
    path: &Path,
    counts: &mut AlertLines,
    alerts: &mut Vec<Arc<Alert>>,
) -> std::io::Result<()> {
    let mut file = BufReader::with_capacity(READ_BYTES, File::open(path)?);
    let mut lines = LineSplitter::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            let rest = lines.end();
            alerts.extend(rest.and_then(|rest| count(counts, &rest)));
            return Ok(());
        }
        let too_long = lines.push(&buffer[..length], |line| alerts.extend(count(counts, line)));
        counts.torn += too_long;
        counts.lines += too_long;
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

    use super::*;

    #[test]
    fn files_are_found_by_name_and_hidden_ones_by_a_dot() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        fs::create_dir(dir.path().join(".im")).unwrap();
        fs::write(dir.path().join(OsStr::from_bytes(b"eve.\xff.json")), "").unwrap();
        for name in [
            "eve.2.json",
            "eve.1.json",
            ".eve.3.json",
            "other",
            "in/eve.4.json",
            ".im/eve.5.json",
            "a[b",
            "a[b].json",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let found = |pattern: &str| {
            let pattern = format!("{}/{pattern}", dir.path().display());
            let paths = files(&pattern).into_iter();
            let names = paths.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
            names.collect::<Vec<_>>()
        };
        assert_eq!(found("*eve*.json"), ["eve.1.json", "eve.2.json"]);
        assert_eq!(found("eve.?.json"), ["eve.1.json", "eve.2.json"]);
        assert_eq!(found(".eve*"), [".eve.3.json"]);
        assert_eq!(found("eve.1.json"), ["eve.1.json"]);
        assert_eq!(found("i*/eve*"), ["eve.4.json"]);
        assert_eq!(found("*/eve*"), ["eve.4.json"]);
        assert_eq!(found(".i*/eve*"), ["eve.5.json"]);
        assert_eq!(found("a[b].json"), ["a[b].json"]);
        assert!(found("none").is_empty() && found("no*ne").is_empty());
        for wrong in ["", "***", "a/**/eve.json", "no[ne"] {
            assert!(wrong.parse::<AlertSource>().is_err(), "{wrong}");
        }
        let there = format!("{}/a[b", dir.path().display());
        assert!(there.parse::<AlertSource>().is_ok());
    }
}
