//! Helpers of several tests: hand-made frames, reference captures and tables.

pub(crate) mod frames;

use std::{
    fs,
    path::{Path, PathBuf},
};

use retroscope_filter::{FilterMode, LinkContext};
use retroscope_packet::LinkType;
use retroscope_pcapfile::CaptureReader;

/// Path of a file in the folder `shared` next to the checkout. `None`, with a message, if the file
/// is missing.
#[allow(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIP: {} is not there; nothing was tested", path.display());
    None
}

/// The rows of a table, without its header line.
pub(crate) fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).expect("the table is text");
    text.lines()
        .skip(1)
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

/// The context of a savefile, with the optimizer, which tcpdump uses by default.
pub(crate) fn savefile(link_type: LinkType, snaplen: u32) -> LinkContext {
    LinkContext {
        link_type,
        snaplen,
        mode: FilterMode::Savefile,
        optimize: true,
    }
}

/// A packet of a capture.
pub(crate) struct Packet {
    /// Index into [`Capture::links`].
    pub(crate) interface: usize,
    /// Captured bytes.
    pub(crate) data: Vec<u8>,
    /// Bytes on the wire.
    pub(crate) wire_len: u32,
}

/// A whole capture in memory, up to its end or to the first damage.
pub(crate) struct Capture {
    /// Compilation context of each interface.
    pub(crate) links: Vec<LinkContext>,
    /// The packets, in order.
    pub(crate) packets: Vec<Packet>,
}

impl Capture {
    /// Reads a capture. `None` if even its header is unreadable.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let mut reader = CaptureReader::open(path).ok()?;
        let mut packets = Vec::new();
        while let Ok(Some(record)) = reader.next() {
            let interface = usize::from(record.meta.interface);
            packets.push(Packet {
                interface,
                data: record.data.to_vec(),
                wire_len: record.meta.wire_len,
            });
        }
        let context = |interface: &retroscope_pcapfile::FileInterface| {
            savefile(interface.link_type, interface.snaplen)
        };
        let links = reader.interfaces().iter().map(context).collect();
        Some(Self { links, packets })
    }
}
