//! The dumps in the directory, from this recorder and from earlier ones.
//!
//! A dump is identified by its sidecar, `STEM.json`, which lists its files. Each listed file, if it
//! exists, must be a plain file next to the sidecar. Its name must begin with `STEM.` and end like
//! a capture, and it must have the size in the sidecar. In a subdirectory, where `into` puts dumps,
//! sidecars must name that subdirectory. So a sidecar cannot make other files of the system part of
//! a dump.
//!
//! An empty file `STEM.hold` holds a dump: a held dump is not deleted.

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

/// Maximum number of bytes read from a sidecar. A sidecar lists at most 1,000 alerts with up to
/// 8 KiB of text, of which JSON makes up to 48 KiB, the times of at most 1,000 suppressed hits, and
/// interfaces.
const SIDECAR_BYTES_MAX: u64 = 64 << 20;
/// The extensions of complete captures without compression.
const ENDS: [&str; 2] = [".pcapng", ".pcap"];
/// The last extension of a compressed capture's name.
pub const COMPRESSED_END: &str = ".zst";
/// The last extension of a file's name while the file is written.
pub const PART_END: &str = ".part";

/// Receives reports of the store. The calls must not wait.
pub trait StoreListener: fmt::Debug + Send + Sync {
    /// A dump was deleted.
    fn deleted(&self, dump: DeletedDump);

    /// A message for the user.
    fn notice(&self, text: String);
}

/// Whether a dump has all packets of its window that match its filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No packet is known to be missing. If the start or end of the recording, the end of the flow,
    /// or a limit of the dump cuts the window, the dump is complete, and `clipped`. A dump that a
    /// limit ended has all matching packets that were read up to its last packet.
    Complete,
    /// Something is missing; `missing` says what, when and why.
    Incomplete,
    /// A file could not be written, or the recording was aborted. The bytes written before usually
    /// stay under a `.part` name.
    Failed,
}

impl Verdict {
    /// The verdict in lower case, as in sidecars.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// A dump, as its files describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredDump {
    /// The part that the names of the dump's files share: ASCII letters, digits, `.`, `_` and `-`.
    /// If the dump is in a subdirectory, the id starts with `SUBDIRECTORY/`, which is its only `/`.
    pub id: String,
    /// The `number` of its report. `None` if the dump is not open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The dump is being written.
    pub is_open: bool,
    /// The dump is held: it is not deleted.
    pub is_held: bool,
    /// The `rule` of its report, for example the trigger expression or `manual`.
    pub rule: String,
    /// The name of the rule. `None` for dumps by hand and of IDS alerts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<String>,
    /// Time of the trigger, RFC 3339, as in the report.
    pub trigger_time: String,
    /// Start of the window, as in the report. Empty for an open dump.
    pub from: String,
    /// End of the window, as in the report. Empty for an open dump.
    pub to: String,
    /// The verdict. `None` for an open dump.
    pub verdict: Option<Verdict>,
    /// Number of packets. 0 for an open dump.
    pub packets: u64,
    /// Bytes of all files, sidecar included. For an open dump: bytes that contain whole packets.
    pub bytes: u64,
    /// Time of completion by the system's clock, ns since the epoch. For an open dump: the stamp of
    /// its trigger.
    pub made_ns: i64,
    /// The capture files.
    pub files: Vec<StoredFile>,
    /// The UUID of the recording: IDs of packets (`epb_packetid`) are valid together with it.
    /// `None`: the packets have no IDs, or the dump is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
}

/// A capture file of a dump.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StoredFile {
    /// Name without directory.
    pub name: String,
    /// Length in bytes. For an open dump: bytes that contain whole packets now.
    pub bytes: u64,
    /// SHA-256 digest in lower-case hexadecimal digits. `None` if the file is not complete, or if
    /// the recorder computed no digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl StoredFile {
    /// Whether the name is that of a complete compressed file.
    pub fn is_compressed(&self) -> bool {
        self.name.ends_with(COMPRESSED_END)
    }

    /// Whether the format is pcapng, compressed or not.
    pub fn is_pcapng(&self) -> bool {
        without_end(&self.name).ends_with(ENDS[0])
    }
}

/// A name without the extensions for unfinished and for compressed files.
fn without_end(name: &str) -> &str {
    let name = name.strip_suffix(PART_END).unwrap_or(name);
    name.strip_suffix(COMPRESSED_END).unwrap_or(name)
}

/// A finished dump, and the identity of its sidecar.
#[derive(Debug, Clone)]
struct ListedDump {
    dump: Arc<StoredDump>,
    directory: PathBuf,
    /// Inode of the sidecar, and the time of its last change, ns.
    seen: (u64, i64),
}

/// The fields of a sidecar that the list of dumps needs.
#[derive(Debug, Deserialize)]
struct SidecarFields {
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
    #[serde(default)]
    recording: Option<String>,
    files: Vec<StoredFile>,
}

/// A retention limit on a set of dumps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionLimit {
    /// Maximum number of bytes of the dumps' files; the oldest dumps are deleted first. `None`: no
    /// limit.
    pub bytes: Option<u64>,
    /// Maximum age, from the completion of the dump on. `None`: no limit.
    pub age: Option<std::time::Duration>,
}

/// Space that must stay free on the file system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MinFree {
    /// A number of bytes.
    Bytes(u64),
    /// A part of the file system, in percent, 0 to 100.
    Percent(f64),
}

/// Why a dump was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WhyDeleted {
    /// The dump exceeded the maximum age.
    Age,
    /// The dumps, of its rule or in total, exceeded their maximum number of bytes.
    Bytes,
    /// The file system had too little free space.
    MinFree,
    /// A client or user deleted the dump.
    Asked,
}

/// A dump that was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedDump {
    /// See [`StoredDump::id`].
    pub id: String,
    /// The `rule` of its report, for example the trigger expression or `manual`.
    pub rule: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// The reason.
    pub why: WhyDeleted,
    /// The client that deleted the dump. Absent if a limit deleted the dump.
    #[serde(rename = "caller", skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The space of a file system, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Space that processes without privileges may still use (`f_bavail` of statvfs(3)).
    pub free: u64,
    /// The size of the file system.
    pub total: u64,
}

impl MinFree {
    /// The limit in bytes.
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

impl ListedDump {
    /// Reads a sidecar. `None` if the sidecar is unreadable, invalid, or does not match the files.
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
        let told: SidecarFields = serde_json::from_slice(&text).ok()?;
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
                    if meta.bytes != file.bytes {
                        return None;
                    }
                    bytes += meta.bytes;
                }
                // For example, the deletion of this dump was interrupted.
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
                recording: told.recording,
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

    /// The whole content of the sidecar.
    fn read_sidecar(&self, disk: &dyn Disk) -> io::Result<Value> {
        let file = disk.open_to_read(&self.sidecar())?;
        let reader = io::BufReader::new(file.reader().take(SIDECAR_BYTES_MAX));
        Ok(serde_json::from_reader(reader)?)
    }

    /// Deletes the files, the sidecar last, so that an interrupted deletion can be continued.
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

/// Whether a text may be the name of one of our files.
fn is_name(text: &str) -> bool {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(is_good)
}

/// Whether a name is `STEM.END`, `STEM.linktypeN.END` or, if that was taken,
/// `STEM.M.linktypeN.END`, perhaps with `.zst` or `.part`. `STEM-2.END` and `STEM.2.END` belong to
/// other stems.
fn is_capture_of(stem: &str, name: &str) -> bool {
    let rest = name.strip_prefix(stem).filter(|_| is_name(name));
    let between = |rest: &str| {
        let mut ends = ENDS.iter().filter_map(|end| rest.strip_suffix(end));
        ends.any(is_between)
    };
    rest.map(without_end).is_some_and(between)
}

/// Whether a text may be between a stem and the extension of a capture.
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
