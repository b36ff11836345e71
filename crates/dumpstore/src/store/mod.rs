//! The dumps that lie in the directory: those of this recorder, and of earlier ones.
//!
//! A dump is known by its sidecar, `STEM.json`, which lists its files. Nothing else is taken for one: each file has to be a plain file beside it whose
//! name begins with `STEM.` and ends as captures do, and one that is complete has to have the size that the sidecar tells. In a directory below, where
//! `into` puts dumps, sidecars have to name that directory. So nothing of somebody else is ever listed, handed out or deleted.
//!
//! `STEM.hold`, an empty file, holds a dump: it is not deleted.

#[cfg(test)]
mod full_disk_tests;
pub mod keeper;
pub mod lister;
mod listing;
pub mod queue;
pub mod retention;
pub mod second_copy;
#[cfg(test)]
mod slow_disk_tests;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::disk::Disk;

/// Bytes of a sidecar that are read. It has 1,000 hits at most, and interfaces.
const SIDECAR_BYTES_MAX: u64 = 32 << 20;
/// How the names of complete captures end, if they are not compressed.
const ENDS: [&str; 2] = [".pcapng", ".pcap"];
/// The last extension of a compressed capture's name.
pub const COMPRESSED_END: &str = ".zst";
/// The last extension of a file's name while the file is written.
pub const PART_END: &str = ".part";

/// The news of the store. The calls must not wait.
pub trait Listener: fmt::Debug + Send + Sync {
    /// A dump was deleted.
    fn deleted(&self, dump: DeletedDump);

    /// A sentence for the user.
    fn notice(&self, text: String);
}

/// Whether a file holds everything that its filter takes of its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No packet is known to be missing. If the start or end of the recording, or a limit of the
    /// dump, cuts the window, the dump is complete, and `clipped`. A dump that a limit ended has
    /// all matching packets that were read up to its last packet.
    Complete,
    /// Something is missing; `missing` says what, when and why.
    Incomplete,
    /// The file could not be written; the bytes written before the error stay under its `.part`
    /// name.
    Failed,
}

impl Verdict {
    /// The word that files use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// A dump, as its files tell of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredDump {
    /// The part that the names of the dump's files share: ASCII letters, digits, `.`, `_` and `-`.
    /// If the dump is in a subdirectory, the id starts with `SUBDIRECTORY/`, which is its only `/`.
    pub id: String,
    /// The `number` of its report. `None`: the dump is not open any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// It is being written.
    pub is_open: bool,
    /// It is not to be deleted.
    pub is_held: bool,
    /// The trigger expression, or `manual`.
    pub rule: String,
    /// What the rule is called; by hand and of alerts there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<String>,
    /// RFC 3339, as in the report.
    pub trigger_time: String,
    /// Of an open one empty.
    pub from: String,
    /// Of an open one empty.
    pub to: String,
    /// `None`: it is open.
    pub verdict: Option<Verdict>,
    /// Of an open one 0.
    pub packets: u64,
    /// Of all its files, the sidecar among them.
    pub bytes: u64,
    /// When it was completed, by the system's clock, ns since the epoch; of an open one the stamp of its trigger.
    pub made_ns: i64,
    /// Its captures.
    pub files: Vec<StoredFile>,
}

/// A capture file of a dump.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredFile {
    /// Without a directory.
    pub name: String,
    /// Bytes of it. Of an open dump: those that hold whole packets now.
    pub bytes: u64,
    /// Lower-case hexadecimal digits; `None` of a file that is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl StoredFile {
    /// Whether it is compressed.
    pub fn is_compressed(&self) -> bool {
        self.name.ends_with(COMPRESSED_END)
    }

    /// Whether the format is pcapng, compressed or not.
    pub fn is_pcapng(&self) -> bool {
        without_end(&self.name).ends_with(ENDS[0])
    }
}

/// A name without what it has while the file is written, and for compression.
fn without_end(name: &str) -> &str {
    let name = name.strip_suffix(PART_END).unwrap_or(name);
    name.strip_suffix(COMPRESSED_END).unwrap_or(name)
}

/// A finished dump, and what tells it from another one in its place.
#[derive(Debug, Clone)]
struct Known {
    dump: Arc<StoredDump>,
    directory: PathBuf,
    /// Of the sidecar: inode, and when it was changed, ns.
    seen: (u64, i64),
}

/// What a sidecar has to say.
#[derive(Debug, Deserialize)]
struct Told {
    program: String,
    #[serde(default)]
    into: Option<String>,
    rule: String,
    #[serde(default)]
    rule_name: Option<String>,
    trigger_time: String,
    from: String,
    to: String,
    verdict: String,
    packets: u64,
    #[serde(default)]
    created: Option<String>,
    files: Vec<StoredFile>,
}

/// What keeps dumps from growing without end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keep {
    /// Bytes of their files; the oldest go first. `None`: any number.
    pub bytes: Option<u64>,
    /// How old they get, from when they were completed on. `None`: any age.
    pub age: Option<std::time::Duration>,
}

/// Room that is left to others on the file system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MinFree {
    /// So many bytes.
    Bytes(u64),
    /// Such a part of it, in percent, 0 to 100.
    Percent(f64),
}

/// Why a dump was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WhyDeleted {
    /// It was too old, …
    Age,
    /// … or the dumps, of its rule or in all, had too many bytes.
    Bytes,
    /// The file system had too little room.
    MinFree,
    /// Somebody asked for it.
    Asked,
}

/// A dump that was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedDump {
    /// See [`StoredDump::id`].
    pub id: String,
    /// Its trigger expression, or `manual`.
    pub rule: String,
    /// What its files had.
    pub bytes: u64,
    /// Why.
    pub why: WhyDeleted,
    /// Who asked for it, where that is told.
    #[serde(rename = "caller", skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// Bytes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// That this process may still use.
    pub free: u64,
    /// The size of the file system.
    pub total: u64,
}

impl MinFree {
    /// In bytes.
    pub fn bytes(self, space: Space) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a part of what is a number of bytes; floats end at their ends"
            )]
            Self::Percent(percent) => (space.total as f64 * percent / 100.0) as u64,
        }
    }
}

impl Known {
    /// Reads what a sidecar tells. `None`: it is none, or not of what lies there.
    fn read(disk: &dyn Disk, root: &Path, into: Option<&str>, stem: &str) -> Option<Self> {
        let directory = into.map_or_else(|| root.to_owned(), |name| root.join(name));
        let path = directory.join(format!("{stem}.json"));
        let meta = disk.entry(&path).ok().filter(|meta| meta.is_file)?;
        if meta.bytes > SIDECAR_BYTES_MAX {
            return None;
        }
        let mut text = Vec::new();
        let file = disk.open_to_read(&path).ok()?;
        let mut reader = file.reader().take(SIDECAR_BYTES_MAX);
        reader.read_to_end(&mut text).ok()?;
        let told: Told = serde_json::from_slice(&text).ok()?;
        if !told.program.starts_with("retroscope ") || told.into.as_deref() != into {
            return None;
        }
        let mut bytes = meta.bytes;
        for file in &told.files {
            if !is_capture_of(stem, &file.name) {
                return None;
            }
            match disk.entry(&directory.join(&file.name)) {
                Ok(meta) if meta.is_file => {
                    if file.sha256.is_some() && meta.bytes != file.bytes {
                        return None;
                    }
                    bytes += meta.bytes;
                }
                // Deleting it was begun.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(_) | Err(_) => return None,
            }
        }
        let created = told.created.as_deref().and_then(nanoseconds);
        Some(Self {
            dump: Arc::new(StoredDump {
                id: id(into, stem),
                number: None,
                is_open: false,
                is_held: is_held(disk, &directory, stem),
                rule: told.rule,
                rule_name: told.rule_name,
                trigger_time: told.trigger_time,
                from: told.from,
                to: told.to,
                verdict: Some(match told.verdict.as_str() {
                    "complete" => Verdict::Complete,
                    "incomplete" => Verdict::Incomplete,
                    "failed" => Verdict::Failed,
                    _ => return None,
                }),
                packets: told.packets,
                bytes,
                made_ns: created.unwrap_or(meta.changed_ns),
                files: told.files,
            }),
            directory,
            seen: (meta.inode, meta.changed_ns),
        })
    }

    fn stem(&self) -> &str {
        let id = &self.dump.id;
        id.rsplit_once('/').map_or(id, |(_, stem)| stem)
    }

    fn sidecar(&self) -> PathBuf {
        self.directory.join(format!("{}.json", self.stem()))
    }

    /// What its sidecar tells, whole.
    fn told(&self, disk: &dyn Disk) -> io::Result<Value> {
        let file = disk.open_to_read(&self.sidecar())?;
        let reader = io::BufReader::new(file.reader().take(SIDECAR_BYTES_MAX));
        Ok(serde_json::from_reader(reader)?)
    }

    /// Deletes its files, the sidecar last: whoever goes on finds it by that.
    fn delete(&self, disk: &dyn Disk) -> io::Result<()> {
        let captures = self.dump.files.iter();
        let captures = captures.map(|file| self.directory.join(&file.name));
        for path in captures.chain([self.sidecar()]) {
            match disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn id(into: Option<&str>, stem: &str) -> String {
    into.map_or_else(|| stem.to_owned(), |name| format!("{name}/{stem}"))
}

fn hold_mark(directory: &Path, stem: &str) -> PathBuf {
    directory.join(format!("{stem}.hold"))
}

fn is_held(disk: &dyn Disk, directory: &Path, stem: &str) -> bool {
    disk.exists(&hold_mark(directory, stem))
}

/// Whether a text may be the name of a file of ours.
fn is_name(text: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_good)
}

/// `STEM.END`, `STEM.linktypeN.END` or, where that was taken, `STEM.M.linktypeN.END`: not what belongs to a longer stem.
fn is_capture_of(stem: &str, name: &str) -> bool {
    let rest = name.strip_prefix(stem).filter(|_| is_name(name));
    let between = |rest: &str| {
        let mut ends = ENDS.iter().filter_map(|end| rest.strip_suffix(end));
        ends.any(is_between)
    };
    rest.map(without_end).is_some_and(between)
}

/// Whether a text may stand between a stem and the end of a capture's name.
fn is_between(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let Some((before, link_type)) = text.split_once(".linktype") else {
        return text.is_empty();
    };
    let before = before
        .strip_prefix('.')
        .map_or(before.is_empty(), is_number);
    before && is_number(link_type)
}

/// The stem of a sidecar's name.
fn stem_of(name: &Path) -> Option<&str> {
    let name = std::str::from_utf8(name.as_os_str().as_bytes()).ok()?;
    name.strip_suffix(".json").filter(|stem| is_name(stem))
}

fn nanoseconds(rfc3339: &str) -> Option<i64> {
    let stamp: jiff::Timestamp = rfc3339.parse().ok()?;
    i64::try_from(stamp.as_nanosecond()).ok()
}
