//! The files of one dump: its captures, one or (as pcap, with several link types) more, and its sidecar.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_packet::LinkType;

use super::{
    encode::{Format, VerdictField},
    names::{Directory, stem},
    output::{Known, Output, Written},
    packet::PacketMeta,
    sink::{End, Gap, Held, Sink},
};
use crate::intake::interfaces::Interface;

/// Numbers tried for a name that is taken before giving up.
const NAME_TRIES: u64 = 100_000;

/// A dump as files `TIME-NUMBER-RULE.EXTENSION`, with `.part` behind it until they are complete.
#[derive(Debug)]
pub(crate) struct DumpFile {
    directory: Directory,
    facts: FileFacts,
    /// What its names begin with.
    stem: String,
    outputs: Vec<(LinkType, Output)>,
    /// Its capture files once they are complete, and where the verdict stands in them.
    captures: Vec<(PathBuf, Option<VerdictField>)>,
    interfaces: Vec<u16>,
    known: Known,
}

/// What names of files, and their headers, say of a dump.
#[derive(Debug, Clone)]
pub(crate) struct FileFacts {
    /// Stamp of its trigger, ns since the epoch.
    pub(crate) trigger_ns: i64,
    pub(crate) number: u64,
    /// Gives further numbers where a name is taken.
    pub(crate) next_number: Arc<AtomicU64>,
    pub(crate) rule: String,
    pub(crate) headline: String,
}

impl DumpFile {
    /// Touches no disk yet.
    pub(crate) fn new(directory: &Directory, facts: FileFacts) -> Self {
        Self {
            directory: directory.clone(),
            stem: stem(facts.trigger_ns, facts.number, &facts.rule),
            facts,
            outputs: Vec::new(),
            captures: Vec::new(),
            interfaces: Vec::new(),
            known: Known::new(),
        }
    }

    /// An interface that is known gets its block at once, so that a dump without packets is still a capture of its link type.
    fn create_first(&mut self) -> io::Result<()> {
        let first = self.known.first_key_value();
        let link_type = first.map_or(LinkType::ETHERNET, |(_, it)| it.link_type);
        for _ in 0..NAME_TRIES {
            match self.open(link_type) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let facts = &self.facts;
                    let number = facts.next_number.fetch_add(1, Ordering::Relaxed);
                    self.stem = stem(facts.trigger_ns, number, &facts.rule);
                    continue;
                }
                opened => opened?,
            }
            if let Some((id, _)) = self.known.first_key_value() {
                self.outputs[0].1.interface(*id, &self.known)?;
                self.outputs[0].1.flush()?;
            }
            return Ok(());
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Opens the output of a link type, the first before all others, which are in the order of link types; refuses with `AlreadyExists` if any name of it is taken.
    fn open(&mut self, link_type: LinkType) -> io::Result<()> {
        let path = self.path(link_type);
        let disk = self.directory.disk();
        if disk.exists(&path) || disk.exists(&self.named("json")) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let headline = &self.facts.headline;
        let output = Output::create(&self.directory, part(&path), link_type, headline)?;
        let others = self.outputs.get(1..).unwrap_or_default();
        let before = others.partition_point(|(other, _)| other.0 < link_type.0);
        let place = self.outputs.len().min(1) + before;
        self.outputs.insert(place, (link_type, output));
        Ok(())
    }

    /// The final name of the file for a link type: the first is the plain one.
    fn path(&self, link_type: LinkType) -> PathBuf {
        let extension = self.directory.format.extension();
        match self.outputs.first() {
            Some((first, _)) if *first != link_type => {
                self.named(&format!("linktype{}.{extension}", link_type.0))
            }
            _ => self.named(extension),
        }
    }

    /// The name of a file with this extension.
    fn named(&self, extension: &str) -> PathBuf {
        let name = format!("{}.{extension}", self.stem);
        self.directory.path().join(name)
    }

    /// Renames without replacing; if somebody took the name meanwhile, a digit is added.
    fn rename(&self, part: &Path, path: &Path) -> io::Result<PathBuf> {
        let extension = self.directory.format.extension();
        let mut target = path.to_owned();
        for n in 2..NAME_TRIES {
            match self.directory.disk().rename_new(part, &target) {
                Ok(()) => return Ok(target),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    target = path.with_extension(format!("{n}.{extension}"));
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Sink for DumpFile {
    fn interface(&mut self, id: u16, interface: &Arc<Interface>) {
        self.known.insert(id, Arc::clone(interface));
    }

    fn create(&mut self) -> io::Result<()> {
        let created = self.directory.make().and_then(|()| self.create_first());
        created.map_err(|error| {
            let text = format!("{}: {error}", self.directory.path().display());
            io::Error::new(error.kind(), text)
        })
    }

    fn packet(&mut self, meta: &PacketMeta, data: &[u8], aside: bool) -> io::Result<()> {
        if self.directory.format == Format::PcapNg {
            return self.outputs[0].1.push(meta, data, aside, &self.known);
        }
        let interface = self.known.get(&meta.interface);
        let link_type = interface.map_or(LinkType::ETHERNET, |it| it.link_type);
        if !self.outputs.iter().any(|(it, _)| *it == link_type) {
            self.open(link_type)?;
        }
        let output = self.outputs.iter_mut().find(|(it, _)| *it == link_type);
        output.map_or(Ok(()), |(_, output)| {
            output.push(meta, data, aside, &self.known)
        })
    }

    /// The next packet says so in a comment, where the format has comments.
    fn gap(&mut self, gap: &Gap) {
        if let Some((_, output)) = self.outputs.first_mut() {
            output.comment(&gap.to_string());
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.outputs
            .iter_mut()
            .try_for_each(|(_, output)| output.flush())
    }

    /// Merges late packets, syncs and renames.
    fn finish(&mut self, end: &End) -> io::Result<()> {
        let mut fields = Vec::new();
        for (_, output) in &mut self.outputs {
            fields.push(output.finish(end, &self.known)?);
        }
        let mut captures = Vec::new();
        for ((link_type, output), field) in self.outputs.iter().zip(fields) {
            let path = self.rename(output.path(), &self.path(*link_type))?;
            captures.push((path, field));
        }
        // The files are complete and named; a directory that cannot be synced is no reason to call them failed.
        let _ = self.directory.disk().sync_directory(self.directory.here());
        let Held { interfaces, .. } = self.held();
        (self.captures, self.interfaces) = (captures, interfaces);
        self.outputs.clear();
        Ok(())
    }

    fn amend(&mut self, verdict: &str) -> io::Result<()> {
        for (path, field) in &mut self.captures {
            if let Some(field) = field {
                let file = self.directory.disk().open(path)?;
                field.write(&*file, verdict)?;
            }
        }
        Ok(())
    }

    /// By way of a `.part` file. There is none where no capture file could be made.
    fn sidecar(&mut self, json: &[u8], again: bool) -> io::Result<bool> {
        if self.outputs.is_empty() && self.captures.is_empty() {
            return Ok(false);
        }
        let path = self.named("json");
        let (part, disk) = (part(&path), self.directory.disk());
        let file = disk.create(&part)?;
        let written = file.write_all_at(json, 0).and_then(|()| file.sync());
        let renamed = written.and_then(|()| {
            if again {
                disk.rename(&part, &path)
            } else {
                disk.rename_new(&part, &path)
            }
        });
        if renamed.is_err() {
            let _ = disk.remove(&part);
        }
        renamed.map(|()| true)
    }

    /// Where no file could be made, the one that was to be made is named.
    fn held(&self) -> Held {
        let outputs = || self.outputs.iter().map(|(_, output)| output);
        let captures = self.captures.iter().map(|(path, _)| path.clone());
        let parts = outputs().map(|output| output.path().to_owned());
        let mut locations: Vec<PathBuf> = captures.chain(parts).collect();
        if locations.is_empty() {
            locations.push(self.named(self.directory.format.extension()));
        }
        let described = outputs().flat_map(|output| output.interfaces.iter());
        Held {
            safe: outputs().fold(Written::default(), |sum, output| sum.with(output.safe)),
            locations,
            interfaces: self.interfaces.iter().chain(described).copied().collect(),
        }
    }

    fn open_files(&self) -> usize {
        self.outputs
            .iter()
            .map(|(_, output)| output.open_files())
            .sum()
    }

    fn close_files(&mut self) {
        for (_, output) in &mut self.outputs {
            output.close_files();
        }
    }
}

fn part(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}
