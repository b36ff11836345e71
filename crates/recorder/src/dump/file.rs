//! The files of one dump: its captures, one or (as pcap, with several link types) more, and its sidecar.

use std::{
    io,
    path::{Path, PathBuf},
};

use retroscope_packet::LinkType;

use super::{
    encode::{Format, InterfaceTotals, VerdictField},
    names::{Directory, stem},
    output::{Output, Written},
    packet::PacketMeta,
};
use crate::intake::interfaces::InterfaceCache;

/// Numbers tried for a name that is taken before giving up.
const NAME_TRIES: u64 = 100_000;

/// A dump being written.
#[derive(Debug)]
pub(crate) struct DumpFile {
    label: Label,
    headline: String,
    outputs: Vec<(LinkType, Output)>,
}

/// Where a dump's files are and what their names begin with.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    directory: Directory,
    stem: String,
}

/// A dump on disk.
#[derive(Debug)]
pub(crate) struct FinishedFile {
    pub(crate) label: Label,
    /// Its capture files, at least one, and where the verdict stands in them.
    pub(crate) captures: Vec<(PathBuf, Option<VerdictField>)>,
}

impl DumpFile {
    /// Creates the first file of a dump: `TIME-NUMBER-RULE.EXTENSION.part`, with the next number that is free,
    /// which is returned. `label` gives the names of a number.
    ///
    /// `interface`, if any, gets its block at once, so that a dump without packets is still a capture of its link type.
    pub(crate) fn create(
        label: impl Fn(u64) -> Label,
        number: u64,
        headline: &str,
        interface: Option<u16>,
        names: &mut InterfaceCache,
    ) -> io::Result<(Self, u64)> {
        let link_type = interface
            .and_then(|id| names.interface(id))
            .map_or(LinkType::ETHERNET, |i| i.link_type);
        for number in number..number.saturating_add(NAME_TRIES) {
            let mut file = Self {
                label: label(number),
                headline: headline.to_owned(),
                outputs: Vec::new(),
            };
            match file.open(link_type) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            }
            if let Some(interface) = interface {
                file.outputs[0].1.interface(interface, names)?;
                file.outputs[0].1.flush()?;
            }
            return Ok((file, number));
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Opens the output of a link type; refuses with `AlreadyExists` if any name of it is taken.
    fn open(&mut self, link_type: LinkType) -> io::Result<()> {
        let path = self.path(link_type);
        let directory = &self.label.directory;
        if directory.disk().exists(&path) || directory.disk().exists(&self.label.path("json")) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let output = Output::create(directory, part(&path), link_type, &self.headline)?;
        self.outputs.push((link_type, output));
        Ok(())
    }

    /// The final name of the file for a link type: the first is the plain one.
    fn path(&self, link_type: LinkType) -> PathBuf {
        let extension = self.label.directory.format.extension();
        match self.outputs.first() {
            Some((first, _)) if *first != link_type => {
                let extension = format!("linktype{}.{extension}", link_type.0);
                self.label.path(&extension)
            }
            _ => self.label.path(extension),
        }
    }

    /// For the sidecar.
    pub(crate) fn label(&self) -> Label {
        self.label.clone()
    }

    /// The `.part` files as they are now.
    pub(crate) fn parts(&self) -> Vec<PathBuf> {
        let parts = self.outputs.iter().map(|(_, output)| output.part.clone());
        parts.collect()
    }

    /// Takes a packet, see [`Output::push`]; after an error the dump has failed.
    pub(crate) fn push(
        &mut self,
        meta: &PacketMeta,
        data: &[u8],
        aside: bool,
        names: &mut InterfaceCache,
    ) -> io::Result<()> {
        if self.label.directory.format == Format::PcapNg {
            return self.outputs[0].1.push(meta, data, aside, names);
        }
        let link_type = names
            .interface(meta.interface)
            .map_or(LinkType::ETHERNET, |i| i.link_type);
        let index = match self.outputs.iter().position(|(l, _)| *l == link_type) {
            Some(index) => index,
            None => {
                self.open(link_type)?;
                self.outputs.len() - 1
            }
        };
        self.outputs[index].1.push(meta, data, aside, names)
    }

    /// Hands what was pushed to the file system.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.outputs
            .iter_mut()
            .try_for_each(|(_, output)| output.flush())
    }

    /// Packets that a failed dump still holds.
    pub(crate) fn safe(&self) -> Written {
        self.sum(|output| output.safe)
    }

    /// Packets that the finished dump will hold.
    pub(crate) fn taken(&self) -> Written {
        self.sum(|output| output.taken)
    }

    fn sum(&self, of: impl Fn(&Output) -> Written) -> Written {
        let outputs = self.outputs.iter();
        outputs.fold(Written::default(), |sum, (_, output)| sum.with(of(output)))
    }

    /// The ring-wide identifiers of the interfaces in the files.
    pub(crate) fn interfaces(&self) -> Vec<u16> {
        self.outputs
            .iter()
            .flat_map(|(_, output)| output.interfaces.iter().copied())
            .collect()
    }

    /// Completes, syncs and renames the captures. After an error the dump has failed.
    pub(crate) fn finish(
        &mut self,
        verdict: &str,
        totals: &dyn Fn(u16) -> InterfaceTotals,
        names: &mut InterfaceCache,
    ) -> io::Result<FinishedFile> {
        let mut fields = Vec::new();
        for (_, output) in &mut self.outputs {
            fields.push(output.finish(verdict, totals, names)?);
        }
        let mut captures = Vec::new();
        for ((link_type, output), field) in self.outputs.iter().zip(fields) {
            let path = self.rename(&output.part, &self.path(*link_type))?;
            captures.push((path, field));
        }
        // The files are complete and named; a directory that cannot be synced is no reason to call them failed.
        let directory = &self.label.directory;
        let _ = directory.disk().sync_directory(directory.here());
        Ok(FinishedFile {
            label: self.label(),
            captures,
        })
    }

    /// Renames without replacing; if somebody took the name meanwhile, a digit is added.
    fn rename(&self, part: &Path, path: &Path) -> io::Result<PathBuf> {
        let extension = self.label.directory.format.extension();
        let mut target = path.to_owned();
        for n in 2..NAME_TRIES {
            match self.label.directory.disk().rename_new(part, &target) {
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

impl Label {
    /// Of the dump of this number.
    pub(crate) fn new(directory: &Directory, trigger_ns: i64, number: u64, rule: &str) -> Self {
        Self {
            directory: directory.clone(),
            stem: stem(trigger_ns, number, rule),
        }
    }

    /// The name of a file with this extension.
    pub(crate) fn path(&self, extension: &str) -> PathBuf {
        let name = format!("{}.{extension}", self.stem);
        self.directory.path().join(name)
    }

    /// Writes (or, after a late packet, writes again) the sidecar, by way of a `.part` file.
    pub(crate) fn write_sidecar(&self, json: &[u8], again: bool) -> io::Result<()> {
        let path = self.path("json");
        let (part, disk) = (part(&path), self.directory.disk());
        let mut file = disk.create(&part)?;
        let written = file.write_all(json).and_then(|()| file.sync());
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
        renamed
    }
}

impl FinishedFile {
    /// Changes the verdict that stands in the captures.
    pub(crate) fn amend(&mut self, verdict: &str) -> io::Result<()> {
        for (path, field) in &mut self.captures {
            if let Some(field) = field {
                let file = self.label.directory.disk().open(path)?;
                field.write(&*file, verdict)?;
            }
        }
        Ok(())
    }
}

fn part(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}
